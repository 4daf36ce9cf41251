"""What the paper says in words, on small fixed workloads: which of two is the shorter, not by how much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headway_reproduce.fastserve.scope import LONGER_RUN, ORCA_AS_SHORT, OVERLOAD
from headway_reproduce.fastserve.setting import (
    ABLATED,
    DEFER,
    END_TO_END,
    FASTER_TRANSFORMER,
    FASTSERVE,
    FCFS,
    NO_PREEMPT,
    ORCA,
    PREEMPT,
    REACTIVE,
    CapacityPoint,
    FastServePoint,
)
from headway_reproduce.study_runs import simulate_run

pytestmark = pytest.mark.slow

JOBS = 200


def small(point: FastServePoint, jobs: int = JOBS) -> FastServePoint:
    return replace(point, lengths=replace(point.lengths, count=jobs))


def mean_s(point: FastServePoint, policy: str) -> float:
    mean = simulate_run(small(point).run(policy, 0)).summary.mean_jct_s
    assert mean is not None
    return mean


def capacity_rps(place: CapacityPoint) -> float:
    found = simulate_run(small(place.at_once()).run(place.baseline, 0)).summary.throughput_rps
    assert found is not None
    return found


@pytest.fixture(scope="module")
def end_to_end_rps() -> float:
    return capacity_rps(END_TO_END)


@pytest.fixture(scope="module")
def ablated_rps() -> float:
    return capacity_rps(ABLATED)


def test_at_low_rates_fastserve_is_as_orca(end_to_end_rps: float) -> None:
    point = END_TO_END.at(0.25 * end_to_end_rps)
    assert mean_s(point, FASTSERVE) == pytest.approx(mean_s(point, ORCA), rel=0.05)


def test_above_capacity_it_is_shorter_than_orca_and_both_than_fastertransformer(
    end_to_end_rps: float,
) -> None:
    point = END_TO_END.at(OVERLOAD * end_to_end_rps)
    assert mean_s(point, FASTSERVE) < mean_s(point, ORCA) < mean_s(point, FASTER_TRANSFORMER)


def test_part_of_the_gain_is_the_memory_that_orca_reserves(end_to_end_rps: float) -> None:
    point = END_TO_END.at(OVERLOAD * end_to_end_rps)
    assert mean_s(ORCA_AS_SHORT.of(point), ORCA) < mean_s(point, ORCA)


def test_bursts_widen_the_gap(end_to_end_rps: float) -> None:
    calm, bursts = (END_TO_END.at(0.75 * end_to_end_rps, cv) for cv in (1.0, 8.0))
    gains = [mean_s(point, ORCA) / mean_s(point, FASTSERVE) for point in (calm, bursts)]
    assert gains[0] < gains[1]


def test_killed_iterations_cost_more_than_none(ablated_rps: float) -> None:
    point = ABLATED.at(OVERLOAD * ablated_rps)
    assert mean_s(point, FASTSERVE) < mean_s(point, PREEMPT)
    assert mean_s(point, NO_PREEMPT) < mean_s(point, FCFS)


def test_with_little_memory_deferring_and_reacting_cost_time(ablated_rps: float) -> None:
    point = replace(ABLATED.at(OVERLOAD * ablated_rps), memory=0.35)
    assert mean_s(point, FASTSERVE) < mean_s(point, DEFER)
    assert mean_s(point, FASTSERVE) < mean_s(point, REACTIVE)


def test_a_longer_run_above_capacity_lengthens_the_mean(end_to_end_rps: float) -> None:
    # Why the headline is a rate: this mean has no limit.
    point = small(END_TO_END.at(OVERLOAD * end_to_end_rps))
    longer = LONGER_RUN.of(point)
    means = [simulate_run(each.run(ORCA, 0)).summary.mean_jct_s or 0.0 for each in (point, longer)]
    assert means[1] > 1.5 * means[0]
