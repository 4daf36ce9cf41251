from __future__ import annotations

from collections import Counter
from itertools import pairwise
from statistics import fmean, median, pstdev

import pytest

from headway.engine.demo_model import DemoRecipe
from headway.lab.demo_stream import BACKGROUND, INTERACTIVE, REQUESTS, demo_stream
from headway.traces import TraceRequest

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
