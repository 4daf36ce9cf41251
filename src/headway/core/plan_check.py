"""The rules of every plan, checked by the simulator and the plug-in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import Departure, Fate, StepPlan
from headway.core.view import StepView
from headway.errors import PlanError

_SEQUENCES = ("run", "admit", "offload", "prefetch")
_MAPPINGS = ("chunk_cap", "preempt", "leave")
_LIST_OR_TUPLE = (list, tuple)
_JOB = {Job}
_ID = attrgetter("id")


def check_plan(plan: StepPlan, view: StepView, ledger: Ledger) -> None:
    """Raise PlanError unless the plan keeps the rules of every policy.

    Engines call this for every plan, so that a bad plan costs its policy and not the engine. Parts of other packages
    may return anything: no declared type is trusted. O(jobs named + residents); a `run` that is the residents' own list
    is not examined again.

    The fields hold what `StepPlan` declares, in lists, tuples and dicts that can be read more than once. Every job is
    the ledger's own, and is named at most once (invariant 1): run, preempt and offload name residents, admit and leave
    waiting or swapped jobs, prefetch swapped ones. Nothing is offloaded or prefetched without a host. Budget, caps and
    batch width are within the view's limits. (A swap without a host is legal: it becomes a RECOMPUTE, and the outcome
    says so.)
    """
    _check_types(plan)
    goes_on = plan.run is ledger.residents and not (plan.preempt or plan.offload)
    run = () if goes_on else plan.run
    named = [*run, *plan.admit, *plan.preempt, *plan.leave, *plan.offload, *plan.prefetch]
    _check_jobs("a plan", named)
    distinct = set(named)
    if len(distinct) != len(named):
        twice = sorted({job.id for job in named if named.count(job) > 1})
        raise PlanError(f"a plan may name a job once; named more than once: {twice}")
    _check_places(plan, run, distinct, ledger)
    if plan.chunk_cap:
        _check_caps(plan.chunk_cap)
    if plan.preempt:
        _check_values("preempt", plan.preempt, Fate)
    if plan.leave:
        _check_values("leave", plan.leave, Departure)
    if (plan.offload or plan.prefetch) and not view.host_total_blocks:
        part = "offload" if plan.offload else "prefetch"
        raise PlanError(f"{part} names jobs, but this engine has no host blocks to copy to or from")
    if type(plan.token_budget) is not int or not 0 <= plan.token_budget <= view.max_tokens:
        raise PlanError(
            f"token_budget is {plan.token_budget!r}; accepted: an int from 0 to {view.max_tokens}"
        )
    if len(plan.run) > view.max_run:
        raise PlanError(f"run names {len(plan.run)} jobs; the batch width is {view.max_run}")


def _check_types(plan: StepPlan) -> None:
    if type(plan) is not StepPlan:
        raise PlanError(f"a policy planned a {type(plan).__name__}; accepted: a StepPlan")
    for part in _SEQUENCES:
        jobs = getattr(plan, part)
        if not isinstance(jobs, _LIST_OR_TUPLE):
            raise PlanError(f"{part} is a {type(jobs).__name__}; accepted: a list or a tuple of jobs")
    for part in _MAPPINGS:
        table = getattr(plan, part)
        if not isinstance(table, dict):
            raise PlanError(f"{part} is a {type(table).__name__}; accepted: a dict whose keys are jobs")
    if type(plan.whole_prompts) is not bool:
        raise PlanError(f"whole_prompts is a {type(plan.whole_prompts).__name__}; accepted: True or False")
    if plan.room_for is not None:
        _check_jobs("room_for", (plan.room_for,))


def _check_jobs(part: str, found: Collection[object]) -> None:
    if not _JOB.issuperset(map(type, found)):
        stranger = next(each for each in found if type(each) is not Job)
        raise PlanError(f"{part} names a {type(stranger).__name__}; accepted: jobs")


def _check_values(part: str, values: Mapping[Job, object], kind: type[Fate | Departure]) -> None:
    for job, value in values.items():
        if type(value) is not kind:
            accepted = ", ".join(kind)
            raise PlanError(f"{part} of {job!r} is {value!r}; accepted: a {kind.__name__} ({accepted})")


def _check_places(plan: StepPlan, run: Sequence[Job], named: set[Job], ledger: Ledger) -> None:
    """Check that every job is in the place that its part of the plan requires; a job with a cap is live, wherever
    it is.
    """
    residents = named
    on_device = len(run) + len(plan.preempt) + len(plan.offload)
    # If the plan names as many jobs as there are residents, and every resident, all others are queued.
    if on_device != len(ledger.residents) or not named.issuperset(ledger.residents):
        residents = set(ledger.residents) if on_device or plan.chunk_cap else set()
        for part, jobs in (("run", run), ("preempt", plan.preempt), ("offload", plan.offload)):
            _refuse(part, [job for job in jobs if job not in residents], "resident")
    _refuse("admit", _not_queued(plan.admit, ledger), "waiting or swapped")
    _refuse("leave", _not_queued(plan.leave, ledger), "waiting or swapped")
    _refuse("prefetch", [job for job in plan.prefetch if ledger.swapped.get(job.id) is not job], "swapped")
    if plan.chunk_cap:
        _check_jobs("chunk_cap", plan.chunk_cap)
        unnamed = [job for job in plan.chunk_cap if job not in named and job not in residents]
        _refuse("chunk_cap", _not_queued(unnamed, ledger), "live")


def _check_caps(caps: Mapping[Job, int]) -> None:
    for job, cap in caps.items():
        if type(cap) is not int or cap < 1:
            raise PlanError(
                f"chunk_cap of {job!r} is {cap!r}; accepted: an int from 1 up (leave a job out of run to pause it)"
            )


def _not_queued(jobs: Collection[Job], ledger: Ledger) -> list[Job]:
    waiting, swapped = ledger.waiting, ledger.swapped
    if list(map(waiting.get, map(_ID, jobs))) == list(jobs):  # the common case, in half the time
        return []
    return [job for job in jobs if waiting.get(job.id) is not job and swapped.get(job.id) is not job]


def _refuse(part: str, strangers: Sequence[Job], accepted: str) -> None:
    if strangers:
        raise PlanError(f"{part} names {strangers[0]!r}; accepted: jobs of this engine that are {accepted}")
