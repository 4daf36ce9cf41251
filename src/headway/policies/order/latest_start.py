"""How late a job may be served next and still meet its targets."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState, has_decodes
from headway.core.plan import StepOutcome
from headway.policies.order.remaining_work import ASSUMED_STEP_S, RemainingWork

TOO_LATE = -inf
NO_TARGET = inf
_NEWEST_SHARE = 0.1
"""Weight of the newest step in the running mean of step times."""
_MOST_TIMES = 100.0
"""The mean that a step counts with at most: what takes longer is an engine that was paused, or stood still."""


class LatestStart:
    """The instant after which a job, served in every step from then on, misses a target.

    Before the first token: the time it is due, less the prefill still to compute, at least a step, less the load of
    what a connector's store holds of it, and less the step that is under way while it is decided (asynchronous
    scheduling). After it, with a target for the time
    between tokens: the time at which its next token is due at that pace, since any may be its last, or the last of
    those foreseen (`RemainingWork.foreseen_tokens`), less what they take at the pace of the steps of late; so a job
    that is ahead of its token schedule may wait, by as much as it is ahead. Without `by_tokens` that is until the last
    chance. With a deadline: that, less all that is still to do, as long as `RemainingWork` expects. The earliest
    counts. TOO_LATE if a target is missed already, NO_TARGET without one that is still open. O(1).
    """

    def __init__(self, work: RemainingWork, cost: CostModel | None = None, *, by_tokens: bool = True) -> None:
        self.by_tokens = by_tokens
        self._work = work
        self._cost: CostModel = cost or UnknownCost()
        self._step_s = 0.0
        self._decoded_tokens = 1.0
        self._last_s = 0.0
        self._ran: Collection[Job] = ()
        self._had_decodes = self._answers_paused = False
        self._pause_s = 0.0

    @property
    def step_s(self) -> float:
        """What a step takes of late; before any was seen, one of a single token."""
        return self._step_s or self._cost.prefill_s(1) or ASSUMED_STEP_S

    @property
    def token_s(self) -> float:
        """What a token of an answer takes of late: a step, or less of one where drafts are right."""
        return self.step_s / self._decoded_tokens

    def of(self, job: Job) -> float:
        """A job's latest start, as things are now."""
        return self.with_last_chance(job)[0]

    def with_last_chance(self, job: Job) -> tuple[float, float]:
        """A job's latest start and its last chance, which is no earlier, in seconds."""
        last_chance_s = self.last_chance_s(job)
        if last_chance_s == TOO_LATE or not (self.by_tokens and _is_between_tokens(job)):
            return last_chance_s, last_chance_s
        return min(last_chance_s, self._at_pace_s(job, self._work.foreseen_tokens(job))), last_chance_s

    def last_chance_s(self, job: Job) -> float:
        """Its latest start, but between tokens until when it can catch up by the end that is expected of its answer."""
        slo = job.slo
        if not slo:
            return NO_TARGET
        if _missed_first_token(job):
            return TOO_LATE
        latest_s = NO_TARGET
        if slo.ttft_s is not None and not job.num_output_tokens:
            # The step under way comes to its end first: `_step_s` is 0 until steps have been seen.
            prefill_s = self._work.prompt_s(job)
            begins_s = max(prefill_s, self.step_s) + self._work.load_s(job)
            latest_s = job.arrival_s + slo.ttft_s - begins_s - self._step_s
        if slo.deadline_s is None and not _is_between_tokens(job):
            return latest_s
        to_come = self._work.expected_tokens(job)
        if _is_between_tokens(job):
            latest_s = min(latest_s, self._at_pace_s(job, to_come))
        if slo.deadline_s is not None:
            latest_s = min(latest_s, job.arrival_s + slo.deadline_s - self._rest_s(job, to_come))
        return latest_s

    def _at_pace_s(self, job: Job, tokens: float) -> float:
        """Until when it may wait if so many tokens more are to keep the target between tokens in the mean."""
        assert job.first_token_s is not None
        assert job.slo.tbt_s is not None
        last_due_s = job.first_token_s + (job.num_output_tokens + tokens - 1) * job.slo.tbt_s
        return last_due_s - self._rest_s(job, tokens)

    def _rest_s(self, job: Job, tokens: float) -> float:
        """What so many tokens more take, and before them the load and the prompt."""
        return self._work.prompt_s(job) + self._work.load_s(job) + tokens * self.token_s

    def observe(self, outcome: StepOutcome) -> float:
        """Learn what steps take; returns the seconds since the step before, 0 if nothing of it goes on.

        A step of prompts alone, for which answers pause, is part of the next: a token takes both.
        """
        self._decoded_tokens = outcome.decoded_tokens
        began_s, ran = self._last_s, self._ran
        paused = self._answers_paused
        decoded = self._had_decodes
        if outcome.tokens is not ran:  # else it is the same step once more
            self._had_decodes = has_decodes(outcome.tokens)
        self._answers_paused = decoded and not self._had_decodes
        self._last_s, self._ran = outcome.now_s, outcome.tokens
        if not any(job.state is JobState.RESIDENT for job in ran):
            self._pause_s = 0.0
            return 0.0  # the engine may have been idle since
        step_s = outcome.now_s - began_s
        if paused:
            self._pause_s = step_s
        else:
            round_s, self._pause_s = step_s + self._pause_s, 0.0
            if self._step_s:
                newest_s = min(round_s, _MOST_TIMES * self._step_s)
                self._step_s += (newest_s - self._step_s) * _NEWEST_SHARE
            else:
                self._step_s = round_s
        return step_s

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is gone."""
        if job in self._ran:
            self._ran = [one for one in self._ran if one is not job]


def _is_between_tokens(job: Job) -> bool:
    """Whether it has a target between tokens, and has begun to bring some."""
    return job.slo.tbt_s is not None and job.first_token_s is not None


def _missed_first_token(job: Job) -> bool:
    """Whether a job's first token came after its target; not while there is no token, or no target."""
    slo, first_s = job.slo, job.first_token_s
    return slo.ttft_s is not None and first_s is not None and first_s > job.arrival_s + slo.ttft_s
