"""The length predictors of a bench; the servers it starts are tested with `headway bench` itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from headway.core.prediction_quality import kendall_tau
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, RecordError, UpstreamError
from headway.json_file import read_json
from headway.lab.policy_bench import (
    PolicyBench,
    _Pace,
    all_finished,
    at_load,
    made_estimates,
    merge_engine_side,
    sample,
)
from headway.lab.server import why_not_ready
from headway.lab.trace import demo_stream
from headway.loadgen import ReplayOptions
from headway.results import RunMeta, read_records, record_writer, start_run
from headway.results.records import write_records
from headway.traces import TraceRequest
from tests.gateway.upstream import upstream
from tests.results.examples import make, unfinished

REQUESTS = [TraceRequest(str(number), 0.1 * number, 10, 5 + 3 * number, prompt="x") for number in range(40)]


def bench(**fields: Any) -> PolicyBench:
    return PolicyBench(
        **{
            "model": "demo-random",
            "policies": ("vllm", "predicted"),
            "requests": REQUESTS,
            "out": Path("nowhere"),
            "settings": EngineSettings(batch_width=4),
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("predictor", "of_server"),
    [(None, None), ("none", "none"), ("learned", "learned"), ("noisy-oracle:tau=0.8", "none")],
)
def test_a_real_predictor_is_every_servers_own_and_a_made_one_the_clients(
    predictor: str | None, of_server: str | None
) -> None:
    chosen = bench(predictor=predictor)
    for policy in chosen.policies:
        settings = chosen._settings(policy)
        assert (settings.policy, settings.batch_width) == (policy, 4)
        assert settings.predictor == of_server
    options = chosen._options("http://127.0.0.1:1")
    assert bool(options.estimates) == (predictor == "noisy-oracle:tau=0.8")


@pytest.mark.parametrize("named", [False, True])
def test_a_policy_without_targets_is_told_of_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    told: list[str] = []

    def measure(_: PolicyBench, policy: str, *given: object) -> bool:
        told.append(policy)
        return True

    monkeypatch.setattr(PolicyBench, "_measure", measure)
    requests = [replace(REQUESTS[0], slo=Slo(ttft_s=1.0)), *REQUESTS[1:]] if named else REQUESTS
    chosen = bench(model=str(tmp_path), policies=("vllm", "edf"), requests=requests, out=tmp_path / "out")
    assert chosen.run(lambda *given: pytest.fail("nothing is sent"), told.append)
    said = "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf"
    assert told == [*([] if named else [said]), "vllm", "edf"]


def test_a_made_predictor_says_what_the_true_lengths_and_the_seed_make_it_say() -> None:
    said = made_estimates("noisy-oracle:tau=0.8", REQUESTS, seed=1)
    assert list(said) == [request.id for request in REQUESTS]
    tau = kendall_tau((said[request.id].tokens, float(request.output_tokens)) for request in REQUESTS)
    assert tau == pytest.approx(0.8, abs=0.03)
    assert made_estimates("noisy-oracle:tau=0.8", REQUESTS, seed=1) == said
    assert made_estimates("noisy-oracle:tau=0.8", REQUESTS, seed=2) != said


def test_what_the_engine_wrote_is_added_to_what_the_client_wrote_or_nothing_is(tmp_path: Path) -> None:
    client = make("a", first_scheduled_s=None)
    with record_writer(tmp_path, "vllm") as writer:
        writer.append(client)
    file, engine = tmp_path / "vllm.records.jsonl", tmp_path / "vllm.engine.jsonl"
    for unreadable in (None, b"", b"no record\n"):
        if unreadable is not None:
            engine.write_bytes(unreadable)
        with pytest.raises(RecordError, match=r"vllm\.engine\.jsonl"):
            merge_engine_side(tmp_path, "vllm", [client], engine)
        assert read_records(file) == [client]
    write_records(engine, [make("cmpl-a-0", preemptions=3)])
    merge_engine_side(tmp_path, "vllm", [client], engine)
    assert [record.preemptions for record in read_records(file)] == [3]


def test_a_request_that_was_started_after_its_client_had_left_can_be_read(tmp_path: Path) -> None:
    """As when a bench is interrupted while requests wait."""
    client = unfinished("a", Outcome.CANCELLED, 1.0, 3.0)
    file, engine = tmp_path / "vllm.records.jsonl", tmp_path / "vllm.engine.jsonl"
    write_records(engine, [unfinished("cmpl-a-0", Outcome.CANCELLED, 10.0, 12.2, first_scheduled_s=12.1)])
    merge_engine_side(tmp_path, "vllm", [client], engine)
    assert [record.first_scheduled_s for record in read_records(file)] == [3.0]


def test_whether_the_model_stops_by_itself_is_up_to_the_stream_that_is_sent() -> None:
    assert bench(own_stops=True)._options("http://127.0.0.1:1").own_stops
    assert not bench()._options("http://127.0.0.1:1").own_stops


def test_a_stream_without_prompts_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    chosen = bench(own_stops=True, requests=[TraceRequest("a", 0.0, 10, 5)], out=out)
    with pytest.raises(ConfigError, match="request 'a' has no prompt"):
        chosen.run(lambda *_: pytest.fail("sent"), print)
    assert not out.exists()


@pytest.mark.engine
def test_a_server_that_does_not_come_up_is_told_of_and_leaves_the_folder_free(tmp_path: Path) -> None:
    chosen = bench(out=tmp_path / "out", vllm_flags=("--no-such-flag",))
    with pytest.raises(UpstreamError) as refused:
        chosen.run(lambda *_: pytest.fail("sent"), print)
    assert str(refused.value).startswith("policy 'vllm': the server at http://127.0.0.1:")
    assert "unrecognized arguments: --no-such-flag; its messages are in " in str(refused.value)
    assert [path.name for path in chosen.out.iterdir()] == ["vllm.server.log"]
    start_run(chosen.out, chosen._meta())  # as another try does


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", "; "),
        ("one\nValueError: a\nerror: b\nbye\n", ": b; "),
        ("(Worker pid=3) OSError: c\n", ": OSError: c; "),
    ],
)
def test_why_a_server_is_not_ready_is_the_last_error_in_its_log(tmp_path: Path, log: str, told: str) -> None:
    file = tmp_path / "vllm.server.log"
    file.write_text(log)
    assert why_not_ready(UpstreamError("it ended"), file) == f"it ended{told}its messages are in {file}"


EVENLY_SPACED = [TraceRequest(str(number), 0.1 * (number + 1), 10, 5) for number in range(40)]


def test_requests_arrive_at_the_load_in_the_mean() -> None:
    # 40 requests in 4 s; half of a capacity of 5 a second is 2.5, at which they take 16 s.
    sent = at_load(EVENLY_SPACED, 0.5, capacity=5.0)
    assert sent[-1].arrival_s == pytest.approx(16.0)
    assert sent[0].arrival_s == pytest.approx(0.4)
    assert [replace(each, arrival_s=0.0) for each in sent] == [
        replace(each, arrival_s=0.0) for each in EVENLY_SPACED
    ]


@pytest.mark.parametrize("load", [0.0, -1.0, float("inf"), float("nan")])
def test_a_load_that_is_none_is_refused(load: float) -> None:
    with pytest.raises(ConfigError, match=r"--load is .*; accepted: a finite number above 0"):
        at_load(EVENLY_SPACED, load, capacity=5.0)


def test_requests_that_come_all_at_once_have_no_load() -> None:
    with pytest.raises(
        ConfigError, match="--load is 1 and all 1 requests arrive at 0 s; accepted: requests that"
    ):
        at_load([TraceRequest("a", 0.0, 10, 5)], 1.0, capacity=5.0)


def test_a_sample_has_the_lengths_of_the_whole_stream() -> None:
    # The demo's answers have a heavy tail: of its first 120 requests the mean prompt is 20 % off.
    stream = demo_stream()
    some = sample(stream, 120)
    assert len(some) == 120
    assert fmean(each.input_tokens for each in some) == pytest.approx(
        fmean(each.input_tokens for each in stream), rel=0.1
    )
    assert fmean(each.output_tokens for each in some) == pytest.approx(
        fmean(each.output_tokens for each in stream), rel=0.1
    )
    assert sample(stream[:3], 120) == [replace(each, id=f"capacity-{each.id}") for each in stream[:3]]


def test_a_request_that_does_not_finish_leaves_no_capacity() -> None:
    with pytest.raises(UpstreamError, match="2 of 3 requests did not finish: shed"):
        all_finished([make("a"), unfinished("b", Outcome.SHED, 0.0, 1.0)], 3)


async def test_the_first_policys_server_is_measured_and_the_stream_sent_at_the_load(tmp_path: Path) -> None:
    told: list[str] = []
    async with upstream("vllm") as server:
        bench = PolicyBench(
            model="demo",
            policies=("vllm", "headway"),
            requests=EVENLY_SPACED,
            out=tmp_path,
            settings=EngineSettings(),
            load=0.5,
        )
        start_run(tmp_path, bench._meta())
        pace, options = _Pace(EVENLY_SPACED), ReplayOptions(url=server.url)
        for policy in bench.policies:
            await asyncio.to_thread(bench._work_through_burst, policy, 0.5, pace, options, told.append)
    meta = read_json(tmp_path / "run.json", RunMeta)
    assert meta is not None
    assert meta.capacity_rps is not None
    assert meta.load == 0.5
    assert pace.requests == at_load(EVENLY_SPACED, 0.5, meta.capacity_rps)
    assert told == [
        "vllm: sending 40 requests at once",
        f"capacity: {meta.capacity_rps:.3g} requests a second; load: {meta.offered}",
        "headway: sending 40 requests at once",
    ]
    assert len(server.bodies) == 80
