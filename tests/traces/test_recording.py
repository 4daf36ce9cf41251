from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.traces import TraceRequest, read_trace
from headway.traces.recording import recorded, shared_share
from headway.traces.writer import write_mooncake, write_trace

REQUEST = TraceRequest("a", 0.0, 1300, 5, tenant="Anna", session="secret")


def ids(*tokens: int) -> str:
    return " ".join(map(str, tokens))


def test_prefixes_of_token_ids_survive_and_nothing_else_does() -> None:
    first, same = ids(*range(1300)), ids(*range(1300), 7)
    other = ids(*range(1023), 7, *range(1024, 1300))  # the last token of its second block is another
    given_texts = [
        (replace(REQUEST, arrival_s=place), text) for place, text in enumerate((first, other, same, ""))
    ]
    blocks = [each.prefix_blocks for each in recorded(given_texts)]
    assert blocks == [(0, 1, 2), (0, 3, 4), (0, 1, 5), ()]
    assert recorded(given_texts)[1] == TraceRequest(
        "1", 1.0, 1300, 5, tenant="tenant-0", session="session-0", prefix_blocks=(0, 3, 4)
    )


def test_text_is_cut_at_the_mean_bytes_of_512_tokens() -> None:
    # 6,000 bytes and 1,500 tokens in all: 4 bytes a token, 2,048 a block
    long, short = replace(REQUEST, input_tokens=1200), replace(REQUEST, input_tokens=300)
    talk = "x" * 4096
    blocks = [each.prefix_blocks for each in recorded([(long, talk + "é" * 256), (short, "x" * 1392)])]
    assert blocks == [(0, 1, 2), (3,)]


def test_a_prompt_to_send_and_given_blocks_become_numbers_too() -> None:
    one, other = replace(REQUEST, prompt="Hello" * 1300), replace(REQUEST, prefix_blocks=(77, -8))
    out = recorded([(each, "") for each in (one, one, other)])
    assert [each.prompt for each in out] == [None] * 3
    assert [each.prefix_blocks for each in out] == [(0, 1, 2), (0, 1, 2), (3, 4)]


@given(st.lists(st.text(max_size=60), min_size=1, max_size=6), st.integers(1, 4000))
def test_what_is_recorded_depends_on_which_texts_are_equal_alone(texts: list[str], tokens: int) -> None:
    request = replace(REQUEST, input_tokens=tokens)
    found = [each.prefix_blocks for each in recorded([(request, text) for text in texts])]
    assert all(len(blocks) <= -(-tokens // 512) for blocks in found)
    for one, of_one in zip(texts, found, strict=True):
        for other, of_other in zip(texts, found, strict=True):
            if one == other:
                assert of_one == of_other


def test_the_share_that_came_before() -> None:
    requests = [replace(REQUEST, prefix_blocks=blocks) for blocks in ((0, 1, 2), (0, 1, 3), (), (0, 1, 3))]
    assert shared_share(requests) == (1024 + 1300) / (4 * 1300)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz", "trace.csv"])
def test_what_is_recorded_reads_back(name: str, tmp_path: Path) -> None:
    requests = recorded([(replace(REQUEST, arrival_s=3.0 * place), ids(*range(1300))) for place in range(3)])
    (write_mooncake if ".jsonl" in name else write_trace)(requests, tmp_path / name)
    back = read_trace(tmp_path / name, strict=True)
    kept = [replace(each, tenant="", session=None) for each in requests] if ".jsonl" in name else requests
    assert back == kept


def test_mooncakes_lines_are_as_mooncake_has_them(tmp_path: Path) -> None:
    write_mooncake([replace(REQUEST, arrival_s=0.1234, prefix_blocks=(0, 1, 2))], tmp_path / "trace.jsonl")
    row = {"timestamp": 123, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}
    assert json.loads((tmp_path / "trace.jsonl").read_text()) == row
