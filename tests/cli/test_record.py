"""`headway record` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.traces import read_trace
from tests.cli.conftest import Headway, Refused

SYSTEM = {"role": "system", "content": "You are the assistant of Anna Smith. " * 120}


@pytest.fixture
def access_log(tmp_path: Path) -> Path:
    """Three requests of a server, two of them with the same beginning, and one that failed."""
    path = tmp_path / "access.jsonl"
    asked = [[SYSTEM, {"role": "user", "content": f"Question {number}"}] for number in range(2)]
    usage = {"usage": {"prompt_tokens": 1100, "completion_tokens": 20}}
    rows = [
        {
            "timestamp": f"2026-01-01T00:00:0{number}Z",
            "request": {"messages": messages, "user": "anna"},
            "response": usage,
        }
        for number, messages in enumerate([*asked, [{"role": "user", "content": "Another " * 550}]])
    ]
    rows.append({"timestamp": "2026-01-01T00:00:09Z", "request": {}, "response": {"error": "overloaded"}})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.jsonl", "new/trace.csv.gz"])
def test_prefixes_survive_and_texts_do_not(
    headway: Headway, access_log: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    out.parent.mkdir(exist_ok=True)
    code, printed, err = headway("record", access_log, "--out", out)
    assert (code, printed) == (0, "")
    assert f"{access_log}: left out 1 of 4 rows" in err
    assert (
        f"{access_log}: 3 requests over 2 s, 1.5 a second, mean input 1,100 and output 20 tokens (access log"
        in err
    )
    assert err.endswith(f"{out}: 3 requests; 31% of prompt tokens are in blocks that came before\n")
    first, second, third = read_trace(out, time_unit=None)
    assert first.prefix_blocks[:2] == second.prefix_blocks[:2]
    assert first.prefix_blocks[2] != second.prefix_blocks[2]
    assert not {*third.prefix_blocks} & {*first.prefix_blocks}
    if name == "trace.csv":
        written = out.read_text()
        assert not any(word in written for word in ("Anna", "anna", "Question", "assistant"))
        assert [each.tenant for each in (first, second, third)] == ["tenant-0"] * 3


def test_a_log_without_prompts_says_so(headway: Headway, tmp_path: Path) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "out.csv"
    log.write_text("created,prompt_tokens,completion_tokens\n1700000000,5,6\n1700000001,5,0\n")
    assert "requests share nothing" in headway("record", log, "--out", out).err
    assert len(read_trace(out)) == 1


def test_what_is_there_is_replaced_only_if_asked(
    headway: Headway, refused: Refused, access_log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace.csv"
    out.write_text("mine")
    assert "name a new file, or add --force to replace it" in refused("record", access_log, "--out", out)
    assert out.read_text() == "mine"
    assert headway("record", access_log, "--out", out, "--force").code == 0
    assert "line 4: " in refused("record", access_log, "--out", out, "--force", "--strict")
