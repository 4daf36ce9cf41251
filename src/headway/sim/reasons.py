"""Why a request waited, paused or lost its memory in one step, in words."""

from __future__ import annotations

from headway.core.job import Job
from headway.core.plan import Fate, Reason
from headway.sim.watcher import Sight

_NO_SEAT = "all seats were taken"
_NO_TOKENS = "the tokens of the step were given to others"
_WAITED = {
    Reason.SEATS: _NO_SEAT,
    Reason.BUDGET: _NO_TOKENS,
    Reason.ISL: "its KV blocks did not fit the free ones",
    Reason.WATERMARK: "its KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "its whole prompt did not fit the tokens left in the step",
    Reason.STALE_OUTPUT: "a step from before its preemption was still under way",
}
_BLOCKED = {
    Reason.ISL: "behind one whose KV blocks did not fit the free ones",
    Reason.WATERMARK: "behind one whose KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "behind one whose whole prompt did not fit the tokens left in the step",
}
_PAUSED = {
    Reason.BUDGET: _NO_TOKENS,
    Reason.IN_FLIGHT: "its last token was on its way",
}


def why_waiting(job: Job, sight: Sight) -> tuple[str, str]:
    """Why a job that waits, swapped out or not, did not start, and the id of the one that stood before it, if any."""
    outcome = sight.outcome
    admit = outcome.plan.admit
    if reason := outcome.passed_over.get(job):
        return _WAITED.get(reason, str(reason)), ""
    if len(outcome.preempted) > len(outcome.plan.preempt):
        return "blocks ran out, and nobody starts in a step that preempts", ""
    if full := _full(sight):
        return full, ""
    reasons = {outcome.passed_over[other]: other for other in admit if other in outcome.passed_over}
    for reason in _BLOCKED:
        if reason in reasons:
            return _BLOCKED[reason], reasons[reason].id
    for reason in (Reason.SEATS, Reason.BUDGET):
        if reason in reasons:
            return _WAITED[reason], ""
    return ("others were to start first" if admit else "the policy let nobody start"), ""


def _full(sight: Sight) -> str:
    """Why nobody could have joined, whatever its rank; "" if somebody could."""
    residents = len(sight.residents) - len(sight.outcome.preempted)
    if residents >= sight.max_resident:
        return _NO_SEAT
    return "the batch was as wide as it may be" if residents >= sight.max_run else ""


def why_paused(job: Job, sight: Sight) -> str:
    """Why a resident job got no tokens in this step."""
    reason = sight.outcome.passed_over.get(job)
    if reason is not None:
        return _PAUSED.get(reason, str(reason))
    if job in sight.restoring:
        return "its KV was on its way back"
    if any(job not in sight.residents for job in sight.outcome.tokens):
        return "the policy let new prompts run first"
    return "the policy let others run"


def why_preempted(job: Job, sight: Sight) -> str:
    """Why a job's KV left the device, and what becomes of it."""
    outcome = sight.outcome
    fate = outcome.preempted[job]
    after = "copied to the host" if fate is Fate.SWAP else "to be computed again"
    if job in outcome.plan.preempt:
        first = next(iter(outcome.plan.admit), None)
        return f"the policy made room{f' for {first.id}' if first else ''}; its KV is {after}"
    others = f"{len(outcome.tokens)} request{'' if len(outcome.tokens) == 1 else 's'}"
    return f"blocks ran out ({sight.free_blocks} free) as {others} before it grew; its KV is {after}"
