"""How a policy leads its parts through a job's life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.job import Job, JobState
from headway.core.plan import Departure, Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.recompute import Recompute
from headway.policies.order import Order
from headway.policies.order.arrival import Arrival
from headway.policies.policy import Policy
from tests.strategies import decoding, ids, make_job


class Told(Arrival):
    """An order that notes what it is told."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def add(self, job: Job) -> None:
        self._log.append(f"order.add {job.id}")
        super().add(job)

    def remove(self, job: Job) -> None:
        self._log.append(f"order.remove {job.id}")
        super().remove(job)

    def end(self, job: Job) -> None:
        self._log.append(f"order.end {job.id}")

    def touch(self, job: Job) -> None:
        self._log.append(f"order.touch {job.id}")

    def observe(self, outcome: StepOutcome) -> None:
        self._log.append("order.observe")


class ToldRule:
    """A leaving rule that notes what it is told, and lets whom it is given leave."""

    def __init__(self, log: list[str], leaves: Mapping[Job, Departure] | None = None) -> None:
        self._log = log
        self._leaves = leaves or {}

    def add(self, job: Job) -> None:
        self._log.append(f"rule.add {job.id}")

    def remove(self, job: Job) -> None:
        self._log.append(f"rule.remove {job.id}")

    def leave(self, view: StepView) -> Mapping[Job, Departure]:
        return self._leaves


class ToldBatching(DecodeFirst):
    """A batching that notes what it is told."""

    log: list[str]

    def observe(self, outcome: StepOutcome) -> None:
        self.log.append("batching.observe")


class PreemptsPaused:
    """Preempts whoever does not run."""

    def preempt(self, view: StepView, plan: StepPlan, order: Order) -> Mapping[Job, Fate]:
        return {job: Fate.SWAP for job in view.residents if job not in plan.run}


def told() -> tuple[Policy, list[str]]:
    """A policy whose parts write to one log."""
    log: list[str] = []
    batching = ToldBatching()
    batching.log = log
    return Policy("told", Told(log), batching, Recompute(), (ToldRule(log),)), log


def outcome(**fields: Any) -> StepOutcome:
    """A step that was filled."""
    return StepOutcome(now_s=0.0, plan=StepPlan(), **fields)


def view(residents: Sequence[Job] = (), waiting: Sequence[Job] = (), **fields: Any) -> StepView:
    """An engine with room for everybody."""
    sizes = {"max_run": 8, "max_resident": 8, "max_tokens": 64}
    return StepView(residents=residents, waiting=waiting, **{**sizes, **fields})


def test_a_job_that_starts_to_wait_is_known_to_the_order_and_every_rule() -> None:
    policy, log = told()
    policy.add(make_job())
    assert log == ["order.add a", "rule.add a"]


def test_the_end_of_a_waiting_job_takes_it_out_of_the_queue_first() -> None:
    policy, log = told()
    job = make_job()
    policy.add(job)
    log.clear()
    policy.end(job)
    assert log == ["order.remove a", "rule.remove a", "order.end a"]


def test_the_end_of_a_resident_concerns_the_order_alone() -> None:
    policy, log = told()
    policy.end(decoding())
    assert log == ["order.end a"]


def test_a_touched_job_is_ranked_anew_and_watched_anew_while_it_waits() -> None:
    policy, log = told()
    policy.touch(decoding("r"))
    policy.touch(make_job("w"))
    assert log == ["order.touch r", "order.touch w", "rule.remove w", "rule.add w"]


def test_a_step_moves_the_admitted_out_and_the_preempted_in_before_the_parts_learn() -> None:
    policy, log = told()
    starts, falls = make_job("starts"), make_job("falls", num_preemptions=1)
    policy.add(starts)
    log.clear()
    policy.observe(outcome(admitted=[starts], preempted={falls: Fate.RECOMPUTE}))
    assert log == [
        "order.remove starts",
        "rule.remove starts",
        "order.add falls",
        "rule.add falls",
        "order.observe",
        "batching.observe",
    ]


def test_who_leaves_is_in_the_plan_and_not_admitted() -> None:
    jobs = [make_job(name) for name in "abc"]
    a, b, _ = jobs
    rules = (ToldRule([], {a: Departure.SHED}), ToldRule([], {b: Departure.EXPIRED}))
    policy = Policy("p", Arrival(), DecodeFirst(), Recompute(), rules)
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


def test_a_job_preempted_and_put_back_runs_again() -> None:
    policy = Policy("p", Arrival(), DecodeFirst(), Recompute())
    job, later = make_job("job"), make_job("later")
    policy.add(job)
    policy.observe(outcome(admitted=[job]))
    job.state = JobState.RESIDENT
    policy.add(later)
    job.state, job.num_preemptions = JobState.WAITING, 1
    policy.observe(outcome(preempted={job: Fate.RECOMPUTE}))
    assert ids(policy.plan(view(waiting=[later, job])).admit) == ["job", "later"]
