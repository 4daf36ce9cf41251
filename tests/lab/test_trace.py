from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from headway.core.hints import slo_of_ms
from headway.core.slo import Slo
from headway.engine.demo_model import DemoRecipe
from headway.errors import TraceError
from headway.lab.trace import BACKGROUND, INTERACTIVE, REQUESTS, Trace, TraceFacts, demo_stream, trace_facts
from headway.traces import TraceRequest

DRAWN = "gen:poisson:rate=5/input=zipf:theta=1.1,max=40/output=zipf:theta=1.1,max=12/count=20"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,70\n")
    return path


def test_each_seed_draws_another_workload() -> None:
    assert Trace(DRAWN).requests(1) == Trace(f"{DRAWN}/seed=1").requests(0)
    assert Trace(DRAWN).requests(1) != Trace(DRAWN).requests(0)
    assert Trace("demo").requests(3) == demo_stream(3)


def test_a_file_is_the_same_for_all_seeds(trace: Path) -> None:
    stream = Trace(str(trace))
    assert not stream.is_drawn
    assert stream.requests(0) == stream.requests(1)


@pytest.mark.parametrize("source", [DRAWN, "demo"])
def test_the_first_few_alone(source: str) -> None:
    assert Trace(source, limit=3).requests() == Trace(source).requests()[:3]


def test_targets_go_to_requests_that_name_none(trace: Path) -> None:
    slo = Slo(ttft_s=0.5)
    assert {request.slo for request in Trace(str(trace), slo=slo).requests()} == {slo}
    assert Trace("demo", slo=slo).requests() == demo_stream()


def test_each_target_goes_to_requests_that_name_none_of_its_kind(tmp_path: Path) -> None:
    """As `serve` holds requests to its own."""
    path = tmp_path / "targets.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,ttft_s,tbt_s\n1,9,5,2,\n2,9,5,,0.3\n3,9,5,2,0.3\n")
    default = Slo(ttft_s=1.0, tbt_s=0.1, deadline_s=9.0)
    assert [request.slo for request in Trace(str(path), slo=default).requests()] == [
        Slo(ttft_s=2.0, tbt_s=0.1, deadline_s=9.0),
        Slo(ttft_s=1.0, tbt_s=0.3, deadline_s=9.0),
        Slo(ttft_s=2.0, tbt_s=0.3, deadline_s=9.0),
    ]
    served = [slo_of_ms(2000, None, None, default), slo_of_ms(None, 300, None, default)]
    assert [request.slo for request in Trace(str(path), slo=default).requests()][:2] == served


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,input_tokens,output_tokens\n1,9,0\n2,9,3\n3,9,0\n4,9,2\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:15:0{second},9,{tokens}\n" for second, tokens in enumerate((0, 3, 0, 2))),
        "".join(
            f'{{"timestamp": {second * 1000}, "input_length": 9, "output_length": {tokens}}}\n'
            for second, tokens in enumerate((0, 3, 0, 2))
        ),
    ],
    ids=["headway", "azure", "mooncake"],
)
def test_requests_without_output_are_left_out_and_counted_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    for _ in range(2):
        found = Trace(str(path)).requests()
        assert [(request.arrival_s, request.output_tokens) for request in found] == [(0.0, 3), (2.0, 2)]
    [said] = caplog.messages
    assert said.startswith(f"{path}: left out 2 of 4 rows: ")
    assert "is not 1 or more (2, first line" in said


def test_the_limit_is_declared_or_hides_the_longest_output() -> None:
    assert TraceFacts("", 1, 512, 0, 0).output_limit(None) == 512
    assert TraceFacts("", 1, 512, 512, 0).output_limit(None) == 512
    assert TraceFacts("", 1, 512, 513, 0).output_limit(None) == 1024
    assert TraceFacts("", 1, 0, 70, 0).output_limit(None) == 128
    assert TraceFacts("", 1, 0, 64, 0).output_limit(None) == 64
    assert TraceFacts("", 1, 0, 1, 0).output_limit(None) == 1
    assert TraceFacts("", 1, 0, 70, 0).output_limit(70) == 70


@pytest.mark.parametrize("wanted", [69, 0, -1])
def test_a_limit_that_some_output_exceeds_is_refused(wanted: int) -> None:
    with pytest.raises(TraceError, match=f"max_output_tokens is {wanted}; accepted: 70 or more"):
        TraceFacts("", 1, 0, 70, 0).output_limit(wanted)


def test_the_facts_of_all_seeds() -> None:
    streams = [Trace(DRAWN).requests(seed) for seed in range(3)]
    facts = trace_facts(Trace(DRAWN), range(3))
    assert facts.num_requests == 20
    assert facts.undeclared_tokens == max(r.output_tokens for requests in streams for r in requests)
    assert facts.longest_tokens == max(
        r.input_tokens + r.output_tokens for requests in streams for r in requests
    )
    assert facts.declared_tokens == 0
    assert trace_facts(Trace(f"{DRAWN}/max_output=9"), range(1)).declared_tokens == 9
    assert facts.digest != trace_facts(Trace(DRAWN), range(2)).digest
    assert facts == trace_facts(Trace(DRAWN), range(3))


def test_a_pipe_cannot_be_read_again(tmp_path: Path) -> None:
    pipe = tmp_path / "trace.csv"
    os.mkfifo(pipe)
    with pytest.raises(
        TraceError, match=r"trace\.csv is a pipe, and is read more than once; accepted: a file"
    ):
        trace_facts(Trace(str(pipe)), range(1))


CONTEXT_TOKENS = DemoRecipe().max_position_embeddings
SEEDS = range(8)


@pytest.fixture(scope="module", params=SEEDS)
def stream(request: pytest.FixtureRequest) -> list[TraceRequest]:
    return demo_stream(request.param)


def test_the_same_seed_is_the_same_stream() -> None:
    assert demo_stream() == demo_stream(0) == demo_stream(0)
    assert len({tuple(demo_stream(seed)) for seed in SEEDS}) == len(SEEDS)


def test_its_size_and_ids(stream: list[TraceRequest]) -> None:
    assert len(stream) == REQUESTS
    assert len({request.id for request in stream}) == REQUESTS
    arrivals = [request.arrival_s for request in stream]
    assert arrivals == sorted(arrivals)


def test_it_is_over_within_a_minute(stream: list[TraceRequest]) -> None:
    assert 10 < stream[-1].arrival_s < 60


def test_it_comes_in_bursts(stream: list[TraceRequest]) -> None:
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(stream)]
    assert pstdev(gaps) / fmean(gaps) > 1.5


def test_every_request_fits_the_demo_model(stream: list[TraceRequest]) -> None:
    longest = max(request.input_tokens + request.output_tokens for request in stream)
    assert 1000 < longest <= CONTEXT_TOKENS
    assert min(request.input_tokens for request in stream) >= 8
    assert all(request.prompt is None for request in stream)


def test_lengths_have_a_heavy_tail(stream: list[TraceRequest]) -> None:
    prompts = [request.input_tokens for request in stream]
    answers = [request.output_tokens for request in stream]
    assert fmean(prompts) > 1.5 * median(prompts)
    assert fmean(answers) > 1.3 * median(answers)


def test_people_and_a_batch_job_share_it(stream: list[TraceRequest]) -> None:
    tenants = Counter(request.tenant for request in stream)
    assert set(tenants) == {"interactive", "background"}
    assert 0.6 < tenants["interactive"] / REQUESTS < 0.8
    targets = {request.tenant: request.slo for request in stream}
    assert targets == {"interactive": INTERACTIVE, "background": BACKGROUND}
    assert all(request.slo == targets[request.tenant] for request in stream)


def test_who_asks_says_nothing_of_how_long(stream: list[TraceRequest]) -> None:
    means = [
        fmean(request.output_tokens for request in stream if request.tenant == tenant)
        for tenant in ("interactive", "background")
    ]
    assert max(means) < 1.6 * min(means)
