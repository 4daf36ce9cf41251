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
    line = [*plan.run, *_paused(plan, residents)]
    budget = _fill_run(plan, line, kv, outcome)
    if len(outcome.preempted) == len(plan.preempt):
        seats = min(max_run - len(plan.run), max_resident - len(line))
        _fill_admit(plan, kv, outcome, budget=budget, seats=seats)
    outcome.num_tokens = sum(outcome.tokens.values())
    outcome.left.update(plan.leave)
    outcome.free_blocks = kv.free_blocks
    return outcome


def _paused(plan: StepPlan, residents: Sequence[Job]) -> list[Job]:
    """Residents in neither `run` nor `preempt`."""
    if len(plan.run) + len(plan.preempt) == len(residents):
        return []
    running = set(plan.run)
    return [job for job in residents if job not in running and job not in plan.preempt]


def _fill_run(plan: StepPlan, line: list[Job], kv: KvSide, outcome: StepOutcome) -> int:
    """Grant tokens to `run`, which begins `line`, evicting from its end; returns the budget left."""
    budget, caps, grow = plan.token_budget, plan.chunk_cap, kv.grow
    for index, job in enumerate(plan.run):
        if index >= len(line):
            break
        granted = min(uncomputed_tokens(job), budget)
        if caps:
            granted = min(granted, caps.get(job, granted))
        if granted <= 0:
            outcome.passed_over[job] = Reason.BUDGET if budget <= 0 else Reason.IN_FLIGHT
            continue
        while not grow(job, granted):
            victim = line.pop()
            kv.release(victim, Fate.RECOMPUTE)
            outcome.preempted[victim] = Fate.RECOMPUTE
            if victim is job:
                return budget
        outcome.tokens[job] = granted
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
        outcome.tokens[job] = granted
        budget -= granted
        room -= job.num_tokens
        seats -= 1


def uncomputed_tokens(job: Job) -> int:
    """Tokens a resident job could compute now: known ones, and those that steps in flight will bring.

    None when a step in flight certainly brings the last output token that the job's limit allows.
    """
    in_flight = job.num_output_placeholders
    if in_flight:
        certain = job.num_computed_tokens + 2 - in_flight
        if certain >= job.num_prompt_tokens + job.max_output_tokens:
            return 0
    return job.num_prompt_tokens + job.num_output_tokens + in_flight - job.num_computed_tokens


def starts_whole(num_tokens: int, room: int, full_budget: int) -> bool:
    """Whether a prompt fits what is left, or is longer than any step and has this one to itself."""
    return num_tokens <= room or room == full_budget
