"""The fill rule: how a plan becomes a step's work. It is vLLM's own rule, written once.

The simulator fills with this function; the plug-in shapes vLLM's queues so that `Scheduler.schedule`
fills in the same way (vLLM 0.32, v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.core.job import Job
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan


class KvSide(Protocol):
    """The memory a step allocates from, real or simulated."""

    def ready(self, job: Job) -> Reason | None:
        """None when a waiting job may start now, else why it is passed over."""
        ...

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens of a waiting job whose KV is already on the device."""
        ...

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job's first `num_tokens` tokens past the cached ones, or say why not."""
        ...

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Allocate for `num_tokens` more tokens of a resident job; False when blocks are short."""
        ...

    def release(self, job: Job, fate: Fate) -> None:
        """Take a job's blocks away."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        ...


def fill(
    plan: StepPlan, residents: Sequence[Job], kv: KvSide, *, now_s: float, max_run: int, max_resident: int
) -> StepOutcome:
    """Carry out a plan: `run` in order, then, only if nothing was preempted meanwhile, `admit` in order.

    Each job gets min(need, its cap, what is left of the budget). A waiting job that is not ready is
    passed over; the first ready one that does not fit ends admission. When blocks run out the victim is
    the last resident: paused jobs, then the end of `run`. O(residents + admitted) allocations.
    """
    outcome = StepOutcome(now_s=now_s, plan=plan)
    for job, fate in plan.preempt.items():
        kv.release(job, fate)
        outcome.preempted[job] = fate
    running = set(plan.run)
    paused = [job for job in residents if job not in running and job not in plan.preempt]
    line = [*plan.run, *paused]
    budget = _fill_run(plan, line, len(plan.run), kv, outcome)
    if len(outcome.preempted) == len(plan.preempt):
        seats = min(max_run - len(plan.run), max_resident - len(line))
        _fill_admit(plan, kv, outcome, budget=budget, seats=seats)
    outcome.left.update(plan.leave)
    outcome.free_blocks = kv.free_blocks
    return outcome


def _fill_run(plan: StepPlan, line: list[Job], num_run: int, kv: KvSide, outcome: StepOutcome) -> int:
    """Grant tokens to `line[:num_run]`, evicting from the end of `line`; returns the budget left."""
    budget = plan.token_budget
    index = 0
    while index < min(num_run, len(line)):
        job = line[index]
        index += 1
        granted = min(job.num_tokens - job.num_computed_tokens, plan.chunk_cap.get(job, budget), budget)
        if granted <= 0:
            outcome.passed_over[job] = Reason.BUDGET if budget <= 0 else Reason.IN_FLIGHT
            continue
        while not kv.grow(job, granted):
            victim = line.pop()
            kv.release(victim, Fate.RECOMPUTE)
            outcome.preempted[victim] = Fate.RECOMPUTE
            if victim is job:
                return budget
        _grant(outcome, job, granted)
        budget -= granted
    return budget


def _fill_admit(plan: StepPlan, kv: KvSide, outcome: StepOutcome, *, budget: int, seats: int) -> None:
    """Start waiting jobs in order until seats, tokens or blocks end it.

    Whole prompts are fitted by all their tokens, cached or not, so the fit is known before any look-up.
    """
    room = budget
    for job in plan.admit:
        if budget <= 0 or seats <= 0:
            outcome.passed_over[job] = Reason.SEATS if seats <= 0 else Reason.BUDGET
            return
        not_ready = kv.ready(job)
        if not_ready is not None:
            outcome.passed_over[job] = not_ready
            continue
        cached = kv.cached_tokens(job)
        need = job.num_tokens - cached
        if plan.whole_prompts and not starts_whole(job.num_tokens, room, plan.token_budget):
            outcome.passed_over[job] = Reason.WHOLE_PROMPT
            return
        granted = min(need, plan.chunk_cap.get(job, budget), budget)
        misfit = kv.start(job, granted)
        if misfit is not None:
            outcome.passed_over[job] = misfit
            return
        outcome.admitted.append(job)
        outcome.cached_tokens[job] = cached
        _grant(outcome, job, granted)
        budget -= granted
        room -= job.num_tokens
        seats -= 1


def _grant(outcome: StepOutcome, job: Job, tokens: int) -> None:
    outcome.tokens[job] = tokens
    outcome.num_tokens += tokens


def starts_whole(num_tokens: int, room: int, full_budget: int) -> bool:
    """Whether a prompt fits what is left, or is longer than any step and has this one to itself."""
    return num_tokens <= room or room == full_budget
