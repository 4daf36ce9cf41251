"""The fill rule: how a plan becomes a step's work. It is vLLM's own rule, written once.

The simulator fills with this function; the plug-in shapes vLLM's queues so that `Scheduler.schedule`
fills in the same way (vLLM 0.32, v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan


class KvSide(Protocol):
    """The memory from which a step allocates, real or simulated."""

    def ready(self, job: Job) -> Reason | None:
        """Why a waiting or swapped job is skipped; None if it may start now."""
        ...

    def cached_tokens(self, job: Job) -> int:
        """Leading tokens of a waiting or swapped job whose KV is on the device, or is loaded when the job starts."""
        ...

    def start(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for a waiting job's first `num_tokens` tokens past the cached ones, or return why not.

        For a swapped job: allocate for all its tokens and start to copy its KV back. For a job whose KV a store holds:
        allocate for what is loaded, and start the load.
        """
        ...

    def grow(self, job: Job, num_tokens: int) -> bool:
        """Allocate for `num_tokens` more tokens of a resident job; False if blocks are short."""
        ...

    def resume(self, job: Job, num_tokens: int) -> Reason | None:
        """Allocate for the first step of a job that came back, or return why not; no job is evicted for it."""
        ...

    def release(self, job: Job, fate: Fate) -> Fate:
        """Take a job's blocks away, at once or after their copy; return the fate for which there was room."""
        ...

    def evict(self, job: Job) -> Fate:
        """Take a victim's blocks away as fast as possible: swapped only if the host has a valid copy."""
        ...

    def offload(self, job: Job) -> Reason | None:
        """Start to copy a paused resident's KV to the host, or return why not."""
        ...

    def prefetch(self, job: Job) -> Reason | None:
        """Allocate for all tokens of a swapped job and start to copy its KV back, or return why not."""
        ...

    @property
    def restoring(self) -> Collection[Job]:
        """Residents whose KV is on its way back from the host, or from a store."""
        ...

    @property
    def returned(self) -> Collection[Job]:
        """Residents whose KV came from the host or a store and that had no step since, including those still
        restoring.
        """
        ...

    @property
    def blocks_coming_free(self) -> int:
        """Blocks that come free when the copies under way, or about to start, are done."""
        ...

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated now."""
        ...


def fill(
    plan: StepPlan, residents: Sequence[Job], kv: KvSide, *, now_s: float, max_run: int, max_resident: int
) -> StepOutcome:
    """Carry out a plan: `run` in order, then, only if nothing was preempted meanwhile, `admit` in order.

    Each job gets min(need, its cap, what is left of the budget). Jobs of `run` that came back from the host have their
    first step after the others, as vLLM resumes them: before `admit`, and no job is evicted for them. A waiting job
    that is not ready is skipped; the first ready one that does not fit ends admission. When blocks run out the victim
    is the last resident: paused jobs, then the end of `run`, but no job that came back and has not run yet, which only
    a plan takes away again. While blocks are coming free, the job that lacks some waits for them, and so do those
    behind it. Offloads come before all that, prefetches last. O(residents + admitted) allocations.
    """
    outcome = StepOutcome(now_s=now_s, plan=plan)
    for job, fate in plan.preempt.items():
        outcome.preempted[job] = kv.release(job, fate)
    if plan.offload:
        _offload(plan, kv, outcome)
    paused = paused_by(plan, residents)
    kept = len(plan.run) + len(paused)
    budget = _fill_run(plan, paused, kv, outcome)
    if budget is not None:
        seats = min(max_run - len(plan.run), max_resident - kept)
        left = _fill_returned(plan, kv, outcome, budget)
        if left is not None:
            _fill_admit(plan, kv, outcome, budget=left, seats=seats)
        if plan.prefetch:
            _prefetch(plan, kv, outcome, slots=max_resident - kept - len(outcome.admitted))
    outcome.offloaded = [job for job in outcome.offloaded if job not in outcome.preempted]
    outcome.num_tokens = sum(outcome.tokens.values())
    outcome.left.update(plan.leave)
    outcome.free_blocks = kv.free_blocks
    return outcome


def paused_by(plan: StepPlan, residents: Sequence[Job]) -> list[Job]:
    """Residents in neither `run` nor `preempt`. O(1) if there are none."""
    if len(plan.run) + len(plan.preempt) == len(residents):
        return []
    running = set(plan.run)
    return [job for job in residents if job not in running and job not in plan.preempt]


def _fill_run(plan: StepPlan, paused: list[Job], kv: KvSide, outcome: StepOutcome) -> int | None:
    """Grant tokens to `run`, evicting the paused jobs and then its end; jobs that came back are left for later.

    Returns the rest of the budget; None if blocks ran out.
    """
    budget, caps, grow, returned = plan.token_budget, plan.chunk_cap, kv.grow, kv.returned
    run = [job for job in plan.run if job not in returned] if returned else plan.run
    line = [*run, *(job for job in paused if job not in returned)]
    for index, job in enumerate(run):
        if index >= len(line):
            break
        granted = min(uncomputed_tokens(job), budget)
        if caps:
            granted = min(granted, caps.get(job, granted))
        if granted <= 0:
            outcome.passed_over[job] = Reason.BUDGET if budget <= 0 else Reason.IN_FLIGHT
            continue
        while not grow(job, granted):
            if kv.blocks_coming_free:
                outcome.passed_over[job] = Reason.BLOCKS
                return None
            victim = line.pop()
            outcome.preempted[victim] = kv.evict(victim)
            if victim is job:
                return None
        outcome.tokens[job] = granted
        budget -= granted
    return budget if len(outcome.preempted) == len(plan.preempt) else None


def _fill_returned(plan: StepPlan, kv: KvSide, outcome: StepOutcome, budget: int) -> int | None:
    """Give the jobs of `run` that came back from the host their first step; None if one of them does not fit."""
    returned = kv.returned
    for job in [job for job in plan.run if job in returned] if returned else ():
        if job in kv.restoring:
            outcome.passed_over[job] = Reason.REMOTE_KV
            continue
        granted = min(uncomputed_tokens(job), budget, plan.chunk_cap.get(job, budget))
        if granted <= 0:
            outcome.passed_over[job] = Reason.BUDGET
            continue
        misfit = kv.resume(job, granted)
        if misfit is not None:
            outcome.passed_over[job] = misfit
            return None
        outcome.tokens[job] = granted
        budget -= granted
    return budget


def _fill_admit(plan: StepPlan, kv: KvSide, outcome: StepOutcome, *, budget: int, seats: int) -> None:
    """Start waiting jobs in order until seats, tokens or blocks run out.

    Whole prompts are fitted by all their tokens, cached or not, so no lookup is needed to know the fit. A swapped job
    is no prompt: it takes a seat, and tokens only if its KV is there at once. A job whose KV is loaded takes a seat and
    no tokens.
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
        need = job.num_tokens - max(cached, job.num_computed_tokens)
        swapped = job.state is JobState.SWAPPED
        if plan.whole_prompts and not (swapped or starts_whole(job.num_tokens, room, plan.token_budget)):
            outcome.passed_over[job] = Reason.WHOLE_PROMPT
            return
        granted = min(need, plan.chunk_cap.get(job, budget), budget)
        misfit = kv.start(job, granted)
        if misfit is not None:
            outcome.passed_over[job] = misfit
            return
        outcome.admitted.append(job)
        outcome.cached_tokens[job] = cached
        seats -= 1
        if job in kv.restoring:
            continue
        outcome.tokens[job] = granted
        budget -= granted
        room -= granted if swapped else job.num_tokens


def _prefetch(plan: StepPlan, kv: KvSide, outcome: StepOutcome, *, slots: int) -> None:
    """Bring swapped jobs back in order until slots or blocks run out."""
    for job in plan.prefetch:
        if slots <= 0:
            outcome.passed_over[job] = Reason.SEATS
            return
        not_ready = kv.ready(job)
        if not_ready is not None:
            outcome.passed_over[job] = not_ready
            continue
        cached = kv.cached_tokens(job)
        misfit = kv.prefetch(job)
        if misfit is not None:
            outcome.passed_over[job] = misfit
            return
        outcome.admitted.append(job)
        outcome.cached_tokens[job] = cached
        slots -= 1


def _offload(plan: StepPlan, kv: KvSide, outcome: StepOutcome) -> None:
    """Start the copies of paused residents."""
    for job in plan.offload:
        refused = kv.offload(job)
        if refused is None:
            outcome.offloaded.append(job)
        else:
            outcome.passed_over[job] = refused


def uncomputed_tokens(job: Job) -> int:
    """Tokens that a resident job could compute now: known ones, and those that steps in flight will bring.

    0 if a step in flight certainly brings the last output token that the job's limit allows. A limit that was declared
    and is exceeded (`headway_max_output_tokens`) does not count.
    """
    in_flight, most = job.num_output_placeholders, job.max_output_tokens
    if (
        in_flight
        and job.num_output_tokens < most
        and brings_last_token(in_flight, job.num_computed_tokens, job.num_prompt_tokens + most)
    ):
        return 0
    return job.num_prompt_tokens + job.num_output_tokens + in_flight - job.num_computed_tokens


def brings_last_token(in_flight: int, computed_tokens: int, most_tokens: int) -> bool:
    """Whether steps that bring `in_flight` output tokens certainly reach `most_tokens`, prompt and longest answer.

    Tokens in flight count as computed, but all except one of them may be drafts that are refused; one more comes after.
    """
    return computed_tokens - (in_flight - 1) + 1 >= most_tokens


def starts_whole(num_tokens: int, room: int, full_budget: int) -> bool:
    """Whether a prompt fits the rest of the budget, or exceeds any step and has this one to itself."""
    return num_tokens <= room or room == full_budget
