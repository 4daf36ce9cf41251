from __future__ import annotations

from inspect import signature
from math import inf
from pathlib import Path

import pytest

from headway.cli.options import command_of
from headway.cli.replay import remarks
from headway.cli.replay import replay as replay_command
from headway.core.record import Outcome, Record
from headway.loadgen import ReplayReport
from headway.loadgen.replay_options import DEFAULT_TIMEOUT_S, ReplayOptions
from headway.routing.batch_service import BatchCounts
from tests.cli.conftest import Refused, words

GENERATED = "gen:fixed:interval=0.01/input=constant:tokens=8/output=constant:tokens=4/count=3"


@pytest.fixture
def replay(refused: Refused, tmp_path: Path) -> Refused:
    """Says what is wrong with these flags in place of good ones, after what is understood of the trace."""
    good = {"url": "http://127.0.0.1:9", "trace": GENERATED, "out": tmp_path / "out.jsonl"}

    def run(**flags: object) -> str:
        return refused("replay", *words({**good, **flags})).splitlines(keepends=True)[-1]

    return run


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"url": "localhost:8000"}, "error: --url is 'localhost:8000'; accepted: a base URL such as http://"),
        ({"trace": "no-such.csv"}, "error: no-such.csv"),
        ({"trace": "gen:poisson"}, "error: "),
        ({"rate-scale": "0"}, "error: rate factor is 0.0; accepted"),
        ({"limit": "0"}, "error: --limit is 0; accepted"),
        ({"vocab-size": "0"}, "error: --vocab-size is 0; accepted: 2 or more"),
        ({"timeout": "nan"}, "error: --timeout is nan; accepted: a number of seconds above 0, or inf"),
        ({"timeout": "0"}, "error: --timeout is 0.0; accepted"),
        ({"batches": "ccb"}, "error: unknown batches 'ccb'; accepted: vs, vsq, glp, abp, magnus"),
        ({"batches": "vsq"}, "error: batches 'vsq' exist in the simulator alone"),
        ({"batches": "vs", "batch-size": "0"}, "error: --batch-size is 0; accepted: 1 or more"),
        ({"batches": "vs", "kv-tokens": "0"}, "error: capacity_tokens is 0; accepted: 1 or more"),
        (
            {"batches": "vs", "predictor": "tarot"},
            "error: unknown length predictor 'tarot'; accepted: learned",
        ),
        ({"predictor": "learned"}, "error: --predictor is accepted with --batches alone"),
        ({"kv-tokens": "9"}, "error: --kv-tokens is accepted with --batches alone"),
        ({"safety-factor": "2"}, "error: --safety-factor is accepted with --batches alone"),
        ({"batches": "vs", "length-model": "x"}, "error: --length-model is accepted with --predictor alone"),
        ({"out": "/proc/none/out.jsonl"}, "error: --out /proc/none/out.jsonl cannot be written"),
        (
            {"batches": "vs", "predictor": "learned", "length-model": "/proc/none/lengths"},
            "error: --length-model /proc/none/lengths cannot be written",
        ),
    ],
)
def test_flags_out_of_range_are_one_line_and_code_2(
    replay: Refused, flags: dict[str, str], complaint: str
) -> None:
    err = replay(**flags)
    assert err.startswith(complaint)
    assert err.count("\n") == 1


def test_a_request_is_given_up_after_as_long_as_in_other_replays() -> None:
    assert signature(command_of(replay_command)).parameters["timeout_s"].default == DEFAULT_TIMEOUT_S
    sessions = [ReplayOptions(url="http://a", timeout_s=limit_s).session_timeout_s for limit_s in (5.0, inf)]
    assert sessions == [5.0, None]


def test_a_server_that_is_not_there_leaves_an_old_file_alone(
    replay: Refused, tmp_path: Path, unused_tcp_port: int
) -> None:
    out = tmp_path / "old.jsonl"
    out.write_text("precious\n")
    err = replay(url=f"http://127.0.0.1:{unused_tcp_port}", out=out)
    assert "does not answer" in err
    assert out.read_text() == "precious\n"


@pytest.mark.parametrize("through_a_link", [False, True])
def test_records_are_not_written_over_the_trace(
    replay: Refused, tmp_path: Path, through_a_link: bool
) -> None:
    trace = out = tmp_path / "mine.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,8,4\n")
    if through_a_link:
        out = tmp_path / "link.csv"
        out.symlink_to(trace)
    before = trace.read_bytes()
    assert replay(trace=trace, out=out) == f"error: --out {out} is the trace itself; name another file\n"
    assert trace.read_bytes() == before


def test_several_servers_are_accepted_with_batches_alone(refused: Refused, tmp_path: Path) -> None:
    two = ("--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:10")
    err = refused("replay", *two, *words({"trace": GENERATED, "out": tmp_path / "out.jsonl"}))
    assert err.endswith("\nerror: --url is given 2 times; give it once, or add --batches\n")


def test_remarks_tell_the_clients_lateness_and_what_went_wrong() -> None:
    records = [Record(id=str(n), arrival_s=0.0, prompt_tokens=1, outcome=Outcome.FINISHED) for n in range(4)]
    for record in records[:3]:
        record.outcome, record.error = Outcome.FAILED, "HTTP 503: busy"
    report = ReplayReport("m", records, lateness_s=[0.001, -1e-9, 0.003, 0.010], interrupted=True)
    assert remarks(report) == [
        "requests were sent 3.0 ms late (median; at most 10.0 ms)",
        "3 of 4 requests: HTTP 503: busy",
        "interrupted: 4 requests recorded",
    ]
    assert remarks(ReplayReport("m")) == []


def test_remarks_tell_what_became_of_batches() -> None:
    assert remarks(ReplayReport("m", batches=BatchCounts(sent=5, members=9, split=2))) == [
        "5 batches were sent with 9 requests; of 2 some came back"
    ]
