"""How a policy leads its parts through a job's life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any
from unittest.mock import Mock, call

import pytest

from headway.core.job import Job
from headway.core.plan import Departure, Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import PlanError
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.reactive import Recompute
from headway.policies.order.arrival import Arrival
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.policies.protocols import Batching, Leaving, Order
from tests.strategies import decoding, ids, make_job


class PreemptsPaused:
    """Preempts whoever does not run."""

    serial = True

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        return replace(plan, preempt={job: Fate.SWAP for job in view.residents if job not in plan.run})

    def next_change_s(self, view: StepView) -> float:
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        pass


def told() -> tuple[Policy, Mock]:
    """A policy whose parts note what they are told, in one log; its batching learns nothing from answers."""
    parts = Mock()
    parts.batching = Mock(spec=Batching)
    parts.attach_mock(parts.batching, "batching")
    return Policy("told", parts.order, parts.batching, parts.eviction, (parts.rule,)), parts


def view(residents: Sequence[Job] = (), waiting: Sequence[Job] = (), **fields: Any) -> StepView:
    """An engine with room for everybody."""
    sizes = {"max_run": 8, "max_resident": 8, "max_tokens": 64}
    return StepView(residents=residents, waiting=waiting, **{**sizes, **fields})


def test_a_job_that_starts_to_wait_is_known_to_the_order_and_every_rule() -> None:
    policy, parts = told()
    job = make_job()
    policy.add(job)
    assert parts.mock_calls == [call.order.add(job), call.rule.add(job)]


def test_the_end_of_a_waiting_job_takes_it_out_of_the_queue_first() -> None:
    policy, parts = told()
    job = make_job()
    policy.end(job, finished=False)
    assert parts.mock_calls == [call.order.remove(job), call.rule.remove(job), call.order.end(job)]


def test_the_end_of_a_resident_concerns_the_order_alone() -> None:
    policy, parts = told()
    job = decoding()
    policy.end(job, finished=False)
    assert parts.mock_calls == [call.order.end(job)]


def test_an_order_learns_from_answers_that_finished_before_it_forgets_them() -> None:
    policy, parts = told()
    job = decoding()
    policy.end(job, finished=True)
    assert parts.mock_calls == [call.order.finished(job), call.order.end(job)]


def test_a_batching_that_learns_is_told_too() -> None:
    parts = Mock()
    policy = Policy("told", parts.order, parts.batching, parts.eviction)
    job = decoding()
    policy.end(job, finished=True)
    assert parts.mock_calls == [call.order.finished(job), call.batching.finished(job), call.order.end(job)]
    parts.reset_mock()
    policy.end(job, finished=False)
    assert parts.mock_calls == [call.order.end(job)]


def test_an_order_that_does_not_learn_is_told_of_the_end_alone() -> None:
    policy = Policy("plain", Arrival(), DecodeFirst(), Recompute())
    job = make_job()
    policy.add(job)
    policy.end(job, finished=True)
    assert policy.order.top(9, 0.0) == []


def test_a_touched_job_is_ranked_anew_and_watched_anew_while_it_waits() -> None:
    policy, parts = told()
    runs, waits = decoding(), make_job()
    policy.touch(runs)
    assert parts.mock_calls == [call.order.touch(runs)]
    parts.reset_mock()
    policy.touch(waits)
    assert parts.mock_calls == [call.order.touch(waits), call.rule.remove(waits), call.rule.add(waits)]


def test_a_step_moves_the_admitted_out_and_the_preempted_in_before_the_parts_learn() -> None:
    policy, parts = told()
    starts, falls = make_job("starts"), make_job("falls")
    step = StepOutcome(now_s=0.0, plan=StepPlan(), admitted=[starts], preempted={falls: Fate.RECOMPUTE})
    policy.observe(step)
    assert parts.mock_calls == [
        call.order.remove(starts),
        call.rule.remove(starts),
        call.order.add(falls),
        call.rule.add(falls),
        call.order.observe(step),
        call.eviction.observe(step),
        call.batching.observe(step),
    ]


def test_who_leaves_is_in_the_plan_and_not_admitted() -> None:
    jobs = [make_job(name) for name in "abc"]
    a, b, _ = jobs
    rules = [Mock(spec=Leaving), Mock(spec=Leaving)]
    for rule, leave in zip(rules, ({a: Departure.SHED}, {b: Departure.EXPIRED}), strict=True):
        rule.leave.return_value = leave
    policy = Policy("p", Arrival(), DecodeFirst(), Recompute(), tuple(rules))
    for job in jobs:
        policy.add(job)
    plan = policy.plan(view(waiting=jobs))
    assert plan.leave == {a: Departure.SHED, b: Departure.EXPIRED}
    assert ids(plan.admit) == ["c"]


def test_the_batch_is_cut_to_its_width_and_the_eviction_sees_who_is_left_out() -> None:
    residents = [decoding(name) for name in "abc"]
    policy = Policy("p", Arrival(), DecodeFirst(), PreemptsPaused())
    plan = policy.plan(view(residents, max_run=2))
    assert ids(plan.run) == ["a", "b"]
    assert plan.preempt == {residents[2]: Fate.SWAP}


def test_whether_copies_are_serial_is_the_evictions_to_say() -> None:
    assert Policy("p", Arrival(), DecodeFirst(), PreemptsPaused()).serial_copies
    assert not Policy("p", Arrival(), DecodeFirst(), Recompute()).serial_copies


def test_ranks_that_change_change_no_plan_while_nobody_goes_by_them() -> None:
    # The order's ranks change with every token, and the simulator is told so; nobody is ranked until somebody waits.
    policy = build_policy(find_preset("headway"))
    residents = [decoding("a"), decoding("b")]
    for job in residents:
        policy.add(job)
        policy.order.remove(job)
    alone = view(residents, free_blocks=2)
    assert (policy.next_change_s(alone), policy.same_plan_until_s(alone)) == (-inf, inf)
    for changed in (
        view(residents, [make_job("new")], free_blocks=2),
        view(residents, free_blocks=1),
        view(residents, free_blocks=2, max_run=1),
    ):
        assert policy.same_plan_until_s(changed) == -inf


def test_costs_are_used_by_those_that_have_a_part_which_is_given_them() -> None:
    uses = {
        name: build_policy(find_preset(name)).uses_costs for name in ("vllm", "edf", "fastserve", "headway")
    }
    assert uses == {"vllm": False, "edf": False, "fastserve": True, "headway": True}
    # Whatever kind of part it is; and who puts a policy together by hand may have given them to anybody.
    assert build_policy(find_preset("vllm", leaving=("at-risk",))).uses_costs
    assert Policy("by hand", Arrival(), DecodeFirst(), Recompute()).uses_costs


@pytest.mark.parametrize("kind", ["order", "batching", "eviction", "rule"])
@pytest.mark.parametrize("change_s", [nan, None, "soon", True])
def test_an_instant_that_is_none_is_refused_from_whichever_part(kind: str, change_s: object) -> None:
    policy, parts = told()
    for part in (parts.order, parts.batching, parts.eviction, parts.rule):
        part.next_change_s.return_value = inf
    assert policy.next_change_s(view()) == inf
    getattr(parts, kind).next_change_s.return_value = change_s
    with pytest.raises(
        PlanError, match=f"next_change_s of Mock is {change_s!r}; accepted: seconds, inf or -inf"
    ):
        policy.next_change_s(view())
