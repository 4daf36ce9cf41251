from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.planner.machine import Configuration
from headway.planner.runs import PlanResult, PlanRun, answers, groups_of, simulate_next, simulate_plan_run
from headway.planner.sampling import Sample
from tests.planner.plans import TARGETS, prepared
from tests.planner.summaries import summary

FOUND = prepared(slo=TARGETS, gpus=2)
PART = Sample(0, 0.0, 3.0)
ROOMY = replace(FOUND.default, seats=1024, host_gib=4.0)


def run(configuration: Configuration) -> PlanRun:
    return PlanRun(task=FOUND.task, configuration=configuration, sample=PART)


@pytest.mark.parametrize(
    "policy", ["vllm", "headway", "sarathi", "predicted", "fastserve", "edf", "ascendra"]
)
def test_what_one_simulation_answers_is_what_each_would_have_come_to(policy: str) -> None:
    roomy = replace(ROOMY, policy=policy, lp=int(policy == "ascendra"))
    known = simulate_plan_run(run(roomy))
    # Of the requests many come at once, so that one seat less than that would be missed.
    assert 4 < known.most_live < 100
    assert not known.evicted
    for other in (
        replace(roomy, seats=known.most_live),
        replace(roomy, seats=known.most_live, host_gib=0.0),
        replace(roomy, host_gib=1.0),
    ):
        assert answers(roomy, known, other)
        assert replace(simulate_plan_run(run(other)), wall_s=known.wall_s) == known


def result(**shown: Any) -> PlanResult:
    return PlanResult(summary=summary(), wall_s=1.0, **{"most_live": 20, "evicted": False, **shown})


@pytest.mark.parametrize(
    ("shown", "other", "answered"),
    [
        ({}, {"seats": 20}, True),
        ({}, {"seats": 19}, False),
        ({"most_live": 2000}, {"seats": 512}, False),
        ({"most_live": 2000}, {"host_gib": 0.0}, True),
        ({"evicted": True}, {"seats": 20}, False),
        ({"evicted": True}, {"host_gib": 0.0}, False),
        ({"evicted": True}, {"seats": 20, "host_gib": 1.0}, False),
    ],
)
def test_what_was_short_is_simulated(shown: dict[str, Any], other: dict[str, Any], answered: bool) -> None:
    assert answers(ROOMY, result(**shown), replace(ROOMY, **other)) is answered


def test_a_group_differs_in_seats_and_host_memory_and_begins_with_the_most_of_both() -> None:
    sizes = [(16, 0.0), (64, 4.0), (1024, 0.0), (1024, 4.0)]
    several = [run(replace(ROOMY, seats=seats, host_gib=host_gib)) for seats, host_gib in sizes]
    alone = run(replace(ROOMY, tokens_a_step=512))
    groups = groups_of([alone, *several])
    assert groups == [[several[place] for place in (3, 1, 2, 0)], [alone]]


def test_only_what_another_does_not_answer_takes_time() -> None:
    few = replace(ROOMY, seats=2)
    group = [run(each) for each in (ROOMY, replace(ROOMY, seats=512), few)]
    roomy = simulate_next(group, [])
    same = simulate_next(group, [roomy])
    short = simulate_next(group, [roomy, same])
    assert [each.wall_s > 0 for each in (roomy, same, short)] == [True, False, True]
    assert same.summary == roomy.summary != short.summary
