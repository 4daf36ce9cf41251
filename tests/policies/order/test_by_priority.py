"""Priority first, over any order: by hand, and every preset through the checks of the contract."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import Slo
from headway.policies.eviction.proactive import foresees
from headway.policies.order.arrival import Arrival
from headway.policies.order.by_priority import by_priority
from headway.policies.order.keyed import ShortestPrompt
from headway.policies.order.on_time import OnTime
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, Preset, build_policy
from headway.policies.protocols import Order, knows_late, predicts
from tests.policies.contract import (
    Workload,
    check_blind_to_true_lengths,
    check_drains,
    check_repeats,
    workloads,
)
from tests.policies.instance import LinearCost
from tests.strategies import FEW, ids, make_job


def waiting(order: Any, *jobs: Any) -> Order:
    made: Order = order
    for job in jobs:
        made.add(job)
    return made


def test_priority_comes_first_and_the_order_decides_within_one() -> None:
    jobs = [
        make_job("long", prompt=9, priority=-1),
        make_job("tiny", prompt=1, priority=1),
        make_job("short", prompt=2, priority=-1),
        make_job("middle", prompt=5),
    ]
    order = waiting(by_priority(ShortestPrompt)(), *jobs)
    assert ids(order.top(4, 0.0)) == ids(order.rank(jobs, 0.0)) == ["short", "long", "middle", "tiny"]
    assert ids(order.top(1, 0.0)) == ["short"]
    for job in (jobs[0], jobs[2], jobs[3]):
        order.remove(job)
    assert ids(order.top(4, 0.0)) == ["tiny"]


def test_a_late_job_of_a_better_priority_ranks_before_one_in_time() -> None:
    late = make_job("late", arrival_s=0.0, slo=Slo(ttft_s=1.0), priority=0)
    hurried = make_job("hurried", arrival_s=9.0, slo=Slo(ttft_s=5.0), priority=1)
    assert ids(waiting(OnTime(patience_s=1e9), late, hurried).top(2, 10.0)) == ["hurried", "late"]
    assert ids(waiting(by_priority(OnTime)(patience_s=1e9), late, hurried).top(2, 10.0)) == [
        "late",
        "hurried",
    ]


def test_no_job_is_expected_to_be_served_before_one_of_a_better_priority() -> None:
    order: Any = by_priority(SkipJoinMlfq)(quantum_s=1.0)
    jobs = [make_job("a", priority=1), make_job("b", priority=0), make_job("c", priority=0)]
    waiting(order, *jobs)
    order._keys[jobs[1]] = (3, 2)  # b has sunk to the third level
    order._jobs_at.update({1: -1, 3: 1})
    a, b, c = order.next_service_s(jobs, 0.0, 1)
    assert c == 0.0
    assert a == b > 0.0


def test_what_an_order_offers_it_offers_by_priority_too() -> None:
    for kind in (ShortestPrompt, SkipJoinMlfq, OnTime):
        plain, first = kind(), by_priority(kind)()
        for offers in (foresees, knows_late, predicts):
            assert offers(plain) == offers(first)


def test_the_order_of_arrival_becomes_vllms_own_priority_queue() -> None:
    jobs = [
        make_job("a", arrival_s=2.0, priority=1),
        make_job("b", arrival_s=3.0),
        make_job("c", arrival_s=1.0, priority=1),
    ]
    order = waiting(by_priority(Arrival)(), *jobs)
    assert ids(order.top(3, 0.0)) == ["b", "c", "a"]
    assert order.rank(jobs, 0.0) is jobs


OF_EACH_ORDER = {(row.order, row.eviction.partition(":")[0]): row for row in PRESETS.values()}
"""One preset of each order with an eviction, which takes from its end."""


@pytest.mark.parametrize("row", OF_EACH_ORDER.values(), ids=lambda row: row.name)
@FEW
@given(workload=workloads(), seed=st.integers(0, 99))
def test_every_order_serves_all_by_priority(row: Preset, workload: Workload, seed: int) -> None:
    def make(_: Workload) -> Policy:
        return build_policy(row, LinearCost(), priority_first=True)

    run = check_drains(make, workload)
    check_repeats(run, make, workload, any_order=False)
    check_blind_to_true_lengths(run, make, workload, seed)
