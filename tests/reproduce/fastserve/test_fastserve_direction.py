"""What the paper says in words, on small fixed workloads: which of two is the shorter, not by how much."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from headway_reproduce.fastserve.cells import (
    ABLATED,
    DEFER,
    END_TO_END,
    FASTER_TRANSFORMER,
    FASTSERVE,
    FCFS,
    LONGER_RUN,
    NO_PREEMPT,
    ORCA,
    ORCA_AS_SHORT,
    PREEMPT,
    REACTIVE,
    SLOTS_FOR_ALL,
    FastServePoint,
)
from headway_reproduce.study_runs import simulate_run

pytestmark = pytest.mark.slow

JOBS = 300
LOW_RPS, KNEE_RPS, HIGH_RPS = 0.4, 1.4, 2.3
"""A quarter, nine tenths, and one and a half times what Orca gets through end to end."""
ABLATED_RPS = 25.0
"""Above what one GPU gets through."""


def small(point: FastServePoint, jobs: int = JOBS) -> FastServePoint:
    return replace(point, lengths=replace(point.lengths, count=jobs))


@cache
def mean_s(point: FastServePoint, policy: str, jobs: int = JOBS) -> float:
    mean = simulate_run(small(point, jobs).run(policy, 0)).summary.mean_jct_s
    assert mean is not None
    return mean


def test_at_low_rates_fastserve_is_as_orca() -> None:
    point = END_TO_END.at(LOW_RPS)
    assert mean_s(point, FASTSERVE) == pytest.approx(mean_s(point, ORCA), rel=0.05)


def test_above_capacity_it_is_shorter_than_orca_and_both_than_fastertransformer() -> None:
    point = END_TO_END.at(HIGH_RPS)
    assert mean_s(point, FASTSERVE) < mean_s(point, ORCA) < mean_s(point, FASTER_TRANSFORMER)


def test_part_of_the_gain_is_the_memory_that_orca_reserves() -> None:
    point = END_TO_END.at(HIGH_RPS)
    assert mean_s(ORCA_AS_SHORT.of(point), ORCA) < mean_s(point, ORCA)
    slots = SLOTS_FOR_ALL.of(point)
    assert mean_s(slots, ORCA) / mean_s(slots, FASTSERVE) < mean_s(point, ORCA) / mean_s(point, FASTSERVE)


def test_bursts_widen_the_gap() -> None:
    calm, bursts = (END_TO_END.at(KNEE_RPS, cv) for cv in (1.0, 8.0))
    gains = [mean_s(point, ORCA) / mean_s(point, FASTSERVE) for point in (calm, bursts)]
    assert gains[0] < gains[1]


def test_killed_iterations_cost_more_than_none() -> None:
    point = ABLATED.at(ABLATED_RPS)
    assert mean_s(point, FASTSERVE) < mean_s(point, PREEMPT)
    assert mean_s(point, NO_PREEMPT) < mean_s(point, FCFS)


def test_newcomers_that_wait_for_a_whole_place_wait_long() -> None:
    point = ABLATED.at(ABLATED_RPS)
    assert mean_s(point, FASTSERVE) < mean_s(point, DEFER)


def test_where_memory_is_short_swapping_ahead_of_need_is_sooner() -> None:
    # Long answers, so that jobs that wait hold much KV.
    point = ABLATED.with_theta(0.7).at(3.0)
    assert mean_s(point, FASTSERVE, jobs=100) < mean_s(point, REACTIVE, jobs=100)


def test_a_longer_run_above_capacity_lengthens_the_mean() -> None:
    # Why the headline is a rate: this mean has no limit.
    point = small(END_TO_END.at(HIGH_RPS))
    longer = simulate_run(LONGER_RUN.of(point).run(ORCA, 0)).summary.mean_jct_s
    assert longer is not None
    assert longer > 1.5 * mean_s(END_TO_END.at(HIGH_RPS), ORCA)
