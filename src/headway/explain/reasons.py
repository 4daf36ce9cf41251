"""Why requests waited, paused or lost their memory in one step, in words."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason, StepOutcome
from headway.core.view import StepView

MOST_NAMED = 3
"""Ids that a preemption names; more ran in such a step than anybody would read."""

NO_SEAT = "all seats were taken"
_NO_TOKENS = "the tokens of the step were given to others"
_PREEMPTING = "blocks ran out, and nobody starts in a step that preempts"
_COPYING = "its KV was still being copied"
_DECODES_TURN = "the step was the decodes' turn, and the next is the prompts'"
WAITED = {
    Reason.SEATS: NO_SEAT,
    Reason.BUDGET: _NO_TOKENS,
    Reason.ISL: "its KV blocks did not fit the free ones",
    Reason.WATERMARK: "its KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "its whole prompt did not fit the tokens left in the step",
    Reason.STALE_OUTPUT: "a step from before its preemption was still under way",
    Reason.PREEMPTION: _PREEMPTING,
    Reason.BLOCKS: "KV blocks were short",
    Reason.REMOTE_KV: _COPYING,
    Reason.REMOTE_LOOKUP: "the KV connector had not yet said what it holds of it",
    Reason.RESTORES: "too many others were on their way back from the host",
    Reason.HOST_BLOCKS: "the host had no blocks left",
    Reason.LORA: "as many adapters ran as may",
    Reason.GRAMMAR: "its grammar was not ready",
    Reason.HELD: "the engine held it back",
    Reason.ENGINE_PAUSED: "the engine was paused, or deferred all prompts",
}
_BLOCKED = {
    Reason.ISL: "behind one whose KV blocks did not fit the free ones",
    Reason.WATERMARK: "behind one whose KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "behind one whose whole prompt did not fit the tokens left in the step",
}
_PAUSED = {
    Reason.BUDGET: _NO_TOKENS,
    Reason.IN_FLIGHT: "its last token was on its way",
    Reason.BLOCKS: "KV blocks were short",
    Reason.REMOTE_KV: "its KV was on its way back",
    Reason.LORA: "as many adapters ran as may",
    Reason.ENGINE_PAUSED: "the engine was paused, or deferred all prompts",
}
NEW_PROMPTS_FIRST = "the policy let new prompts run first"
OTHERS_FIRST = "the policy let others run"


def why_waiting(job: Job, outcome: StepOutcome) -> str:
    """Why a job that waits was passed over by itself; "" if it waited for what all the others waited for."""
    reason = outcome.passed_over.get(job)
    return "" if reason is None else WAITED.get(reason, str(reason))


def why_all_waited(view: StepView, outcome: StepOutcome) -> tuple[str, str]:
    """Why those who were not passed over by themselves did not start, and the id of who stood before them, if one.

    O(jobs passed over), O(1) where the engine is full.
    """
    if len(outcome.preempted) > len(outcome.plan.preempt):
        return _PREEMPTING, ""
    if full := _full(view, outcome):
        return full, ""
    reasons = _of_admission(outcome)
    for reason in _BLOCKED:
        if reason in reasons:
            return _BLOCKED[reason], reasons[reason].id
    for reason in (Reason.SEATS, Reason.BUDGET):
        if reason in reasons:
            return WAITED[reason], ""
    if outcome.plan.admit:
        return "others were to start first", ""
    return (_DECODES_TURN if outcome.plan.next_up else "the policy let nobody start"), ""


def _full(view: StepView, outcome: StepOutcome) -> str:
    """Why nobody could have joined, whatever its rank; "" if somebody could."""
    residents = len(view.residents) - len(outcome.preempted)
    if residents >= view.max_resident:
        return NO_SEAT
    return "the batch was as wide as it may be" if residents >= view.max_run else ""


def _of_admission(outcome: StepOutcome) -> dict[Reason, Job]:
    """Why jobs of `admit` were passed over, each reason with the last of them."""
    prefetched = outcome.plan.prefetch
    return {
        reason: job
        for job, reason in outcome.passed_over.items()
        if job.state is not JobState.RESIDENT and job not in outcome.preempted and job not in prefetched
    }


def why_paused(job: Job, view: StepView, outcome: StepOutcome) -> str:
    """Why a resident job in particular got no tokens; "" if it is the policy that let others run."""
    reason = outcome.passed_over.get(job)
    if reason is not None:
        return _PAUSED.get(reason, str(reason))
    return _PAUSED[Reason.REMOTE_KV] if job in view.restoring else ""


def why_others_ran(outcome: StepOutcome) -> str:
    """Whom the policy let run in a step in which residents paused."""
    new = any(job in outcome.tokens for job in outcome.admitted)
    return NEW_PROMPTS_FIRST if new else OTHERS_FIRST


def why_preempted(job: Job, view: StepView, outcome: StepOutcome) -> str:
    """Why a job's KV left the device, and what becomes of it."""
    fate = outcome.preempted[job]
    after = "copied to the host" if fate is Fate.SWAP else "to be computed again"
    if job in outcome.plan.preempt:
        first = outcome.plan.room_for or next(iter(outcome.plan.admit), None)
        return f"the policy made room{f' for {first.id}' if first else ''}; its KV is {after}"
    if not outcome.plan.token_budget:
        return f"the engine took its KV back between two steps; it is {after}"
    others = f"{len(outcome.tokens)} request{'' if len(outcome.tokens) == 1 else 's'}"
    return f"blocks ran out ({view.free_blocks} free) as {others} before it grew; its KV is {after}"


def who_displaced(job: Job, view: StepView, outcome: StepOutcome) -> Sequence[str]:
    """Ids of whom a step took a job's KV away for: the one that the policy made room for, else some that had tokens in
    it, those that started, else those that took a new block, else any that ran. At most MOST_NAMED; none where nobody
    ran. O(tokens) at worst.
    """
    newcomer = outcome.plan.room_for
    if newcomer is not None and job in outcome.plan.preempt:
        return [newcomer.id]
    tokens, size = outcome.tokens, view.block_size
    new = [started.id for started in outcome.admitted if started in tokens]
    if new:
        return new[:MOST_NAMED]
    grew = [
        ran.id
        for ran, granted in tokens.items()
        if (ran.num_computed_tokens - 1) // size != (ran.num_computed_tokens - granted - 1) // size
    ]
    return (grew or [ran.id for ran in tokens])[:MOST_NAMED]
