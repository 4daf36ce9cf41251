from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core.cost import UnknownCost
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.predictor_choice import length_source
from headway.planner.machine import Configuration, planned_policies
from headway.planner.runs import (
    FILE,
    KeptPlanRuns,
    PlanResult,
    PlanRun,
    _shared_predictions,
    answers,
    capacity_rps,
    fitting,
    groups_of,
    simulate_next,
    simulate_plan_run,
)
from headway.planner.sampling import Sample
from headway.policies.policy import Policy
from headway.sim.lengths import GivenLengths, RecordedLengths
from headway.traces import TraceRequest
from tests.planner.plans import TARGETS, prepared
from tests.planner.summaries import summary

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


def test_pools_have_the_budgets_that_were_given() -> None:
    pooled = prepared(slo=TARGETS, gpus=2, policies=("vllm", "ascendra"))
    ascendra = replace(pooled.default, policy="ascendra", lp=1, lp_tokens=512, hp_tokens=2048)
    made = planned_policies(ascendra)
    assert isinstance(made, dict)
    lp, hp = (made[pool](UnknownCost()) for pool in ("lp", "hp"))
    assert isinstance(lp, Policy)
    assert isinstance(hp, Policy)
    assert [getattr(policy.batching, "token_budget", None) for policy in (lp, hp)] == [512, 2048]
    assert [getattr(rule, "hp_tokens", None) for rule in lp.leaving] == [2048, None]


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
    kept = KeptPlanRuns.open(tmp_path, {})
    with kept.adding() as add:
        add(RUN, simulate_plan_run(RUN))
    read = KeptPlanRuns.open(tmp_path, {}).result(RUN)
    assert read is not None
    assert read == kept.result(RUN)
    (tmp_path / FILE).write_text("no run\n")
    with pytest.raises(ConfigError, match="holds something else than runs"):
        KeptPlanRuns.open(tmp_path, {})


def test_targets_of_the_plan_go_to_every_request() -> None:
    assert {each.slo for each in prepared(slo=Slo(ttft_s=0.5)).task.requests()} == {Slo(ttft_s=0.5)}


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


def test_what_was_recorded_is_given_again() -> None:
    request = TraceRequest(id="7", arrival_s=0.0, input_tokens=5, output_tokens=40)
    other = replace(request, id="8")
    source = length_source("noisy-oracle:tau=0.8", [request, other])
    assert source is not None
    noted = RecordedLengths(source)
    said = noted.predict(request, 100)
    assert said is not None
    given = GivenLengths(noted.said)
    assert given.predict(request, 100) == said
    assert given.predict(other, 100) is None


def test_a_predictor_learns_as_stock_vllm_serves_and_all_others_hear_the_same() -> None:
    found = prepared(policies=("predicted",))
    part = Sample(0, 0.0, 4.0)
    told = _shared_predictions(found.task, part, 1, "learned")
    said = [told.predict(request, 100) for request in found.task.requests() if request.arrival_s <= 4.0]
    first = next(place for place, estimate in enumerate(said) if estimate is not None)
    assert first > 10
    assert all(estimate is not None for estimate in said[first:])
    predicted = replace(found.default, policy="predicted", seats=4, predictor="learned")
    run = PlanRun(task=found.task, configuration=predicted, sample=part)
    assert run.digest() != replace(run, shared_predictions=True).digest()
    assert simulate_plan_run(replace(run, shared_predictions=True)).summary.finished > 0
