from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.cost import UnknownCost
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.planner.machine import planned_policies, rules_with, with_threshold
from headway.planner.runs import (
    FILE,
    KeptPlanRuns,
    PlanRun,
    capacity_rps,
    fitting,
    simulate_plan_run,
)
from headway.planner.sampling import Sample
from headway.policies.policy import Policy
from tests.planner.plans import TARGETS, prepared

PLAIN = prepared()
RUN = PlanRun(task=PLAIN.task, configuration=PLAIN.default, sample=Sample(0, 0.0, 2.0))


def test_a_run_repeats_and_counts_what_comes_after_the_warm_up() -> None:
    first, second = simulate_plan_run(RUN), simulate_plan_run(RUN)
    assert first.summary == second.summary
    in_window = [each for each in PLAIN.task.requests() if each.arrival_s <= 2.0]
    assert first.summary.requests == sum(each.arrival_s >= 0.2 for each in in_window) > 0


def test_another_sample_is_another_draw() -> None:
    other = simulate_plan_run(replace(RUN, sample=Sample(1, 0.0, 2.0)))
    assert other.summary != simulate_plan_run(RUN).summary


@pytest.mark.parametrize(
    "change",
    [
        {"configuration": replace(PLAIN.default, seats=16)},
        {"configuration": replace(PLAIN.default, policy="edf")},
        {"sample": Sample(1, 0.0, 2.0)},
        {"sample": Sample(0, 0.0, 3.0)},
        {"task": replace(PLAIN.task, rate_scale=2.0)},
        {"task": replace(PLAIN.task, longest_tokens=100)},
        {"task": replace(PLAIN.task, requests_digest="others")},
    ],
)
def test_whatever_may_differ_gives_another_digest(change: dict[str, object]) -> None:
    assert replace(RUN, **change).digest() != RUN.digest() == replace(RUN).digest()  # type: ignore[arg-type]


def test_fewer_seats_are_slower() -> None:
    one = simulate_plan_run(replace(RUN, configuration=replace(PLAIN.default, seats=1)))
    every = simulate_plan_run(RUN)
    assert one.summary.mean_jct_s is not None
    assert every.summary.mean_jct_s is not None
    assert one.summary.mean_jct_s > 2 * every.summary.mean_jct_s


def test_pools_hand_off_by_the_threshold_that_was_given() -> None:
    pooled = prepared(slo=TARGETS, gpus=2, policies=("vllm", "ascendra"))
    ascendra = replace(pooled.default, policy="ascendra", lp=1, threshold=0.25)
    made = planned_policies(ascendra)
    assert isinstance(made, dict)
    lp, hp = (made[pool](UnknownCost()) for pool in ("lp", "hp"))
    assert isinstance(lp, Policy)
    assert [getattr(rule, "threshold", None) for rule in lp.leaving] == [0.25, None]
    assert [getattr(rule, "threshold", None) for rule in hp.leaving] == [None]
    run = PlanRun(task=pooled.task, configuration=ascendra, sample=Sample(0, 0.0, 2.0))
    assert simulate_plan_run(run).summary.requests > 0


def test_a_threshold_takes_the_place_of_the_rules_own() -> None:
    assert with_threshold(("at-risk:threshold=0,confidence=0.95", "expired"), 0.1) == (
        "at-risk:threshold=0.1,confidence=0.95",
        "expired",
    )
    assert rules_with("vllm", 0.1) is None
    assert rules_with("ascendra-lp", None) is None


def test_those_too_long_are_left_out() -> None:
    requests = PLAIN.task.requests()
    some = fitting(requests, 100)
    assert 0 < len(some) < len(requests)
    assert all(each.input_tokens + each.output_tokens <= 100 for each in some)


def test_capacity_is_what_a_burst_gets_through() -> None:
    requests = PLAIN.task.requests()
    alone = capacity_rps(PLAIN.task, replace(PLAIN.default, seats=1), requests)
    together = capacity_rps(PLAIN.task, PLAIN.default, requests)
    assert together > 3 * alone > 0
    two = prepared(gpus=2)
    assert capacity_rps(two.task, two.default, requests) > together


def test_what_is_done_is_kept(tmp_path: Path) -> None:
    kept = KeptPlanRuns.read(tmp_path)
    with kept.adding() as add:
        add(RUN, simulate_plan_run(RUN))
    read = KeptPlanRuns.read(tmp_path).result(RUN)
    assert read is not None
    assert read == kept.result(RUN)
    (tmp_path / FILE).write_text("no run\n")
    with pytest.raises(ConfigError, match="holds something else than runs"):
        KeptPlanRuns.read(tmp_path)


def test_targets_of_the_plan_go_to_every_request() -> None:
    assert {each.slo for each in prepared(slo=Slo(ttft_s=0.5)).task.requests()} == {Slo(ttft_s=0.5)}
