"""How much work a job still is, as far as anybody can guess."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError

DEFAULT_DECODES_A_STEP = 8
"""Answers that share a step, in the estimate of what a token costs; the same as the clairvoyant reference's."""
ASSUMED_STEP_S = 0.01
"""A decode step until the first have been measured."""
LEAST_STRIDE_TOKENS = 8
"""Tokens an answer brings before its work is estimated anew, at least."""
_RECENT_ANSWERS = 400
"""Finished answers after which each counts for half, so that the usual length follows the traffic."""


class RemainingWork:
    """Seconds of the engine that each live job still needs, kept between estimates.

    Work is the prefill still to compute, by the cost model, and a step's share, 1 / `decodes_a_step`, for each
    token to come: the median of the job's prediction, given what it has produced, up to its limit. A job without
    a prediction is expected to be as long as the last few hundred answers were on average, with the usual doubt:
    the mean is what a server that knows nothing else pays on average, while the limit would put all who bring no
    prediction behind all who do. Until the first has finished, its limit stands for it.

    With `memory` the share of the KV memory that it will hold on average counts too, for as long as it holds it: where
    memory is short, that is the time for which it keeps the engine from others. Without `believes_predictions` all
    are taken for jobs that nobody predicted.

    An estimate holds until the answer has brought a quarter of what was to come, or half as much as it then had,
    whichever is less; one that has outgrown its prediction, until it has grown by a sixteenth at least; and 8 tokens
    at least. So a job is estimated O(log length) times in its life, and not at every step. Where intervals are a
    factor of up to 4 either way, what is kept is at most a third more or a tenth less than a new estimate, and the
    worth of 8 tokens; of an answer that has outgrown its prediction, at most twice as much, or as little as was
    expected up to 8 tokens or a quarter of it earlier; for a job in prefill, also the part computed since it was
    admitted. An estimate made before the cost model knew better stays until the next.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        decodes_a_step: float = DEFAULT_DECODES_A_STEP,
        *,
        memory: bool = False,
    ) -> None:
        if not 0 < decodes_a_step < inf:
            raise ConfigError(f"decodes_a_step is {decodes_a_step}; accepted: more than 0")
        self._cost: CostModel = cost or UnknownCost()
        self._decodes_a_step = decodes_a_step
        self._memory = memory
        self.believes_predictions = True
        self._work_s: dict[Job, float] = {}
        self._until_tokens: dict[Job, int] = {}
        self._num_finished = 0
        self._finished_tokens = 0

    def estimate(self, job: Job) -> float:
        """Estimate a job's work anew and keep it. A few microseconds."""
        produced = job.num_output_tokens
        to_come = self.expected_tokens(job)
        expected = self._expected(job)
        outgrown = expected is not None and produced > expected.tokens
        stride = max(LEAST_STRIDE_TOKENS, min(to_come, 2.0 * produced or to_come) / 4)
        self._until_tokens[job] = produced + ceil(max(stride, produced / 16) if outgrown else stride)
        step_s = self._cost.prefill_s(1) or ASSUMED_STEP_S
        uncomputed = job.num_tokens - job.num_computed_tokens
        prefill_s = max(0.0, self._cost.prefill_s(uncomputed) - step_s) if uncomputed > 1 else 0.0
        work_s = prefill_s + to_come * step_s / self._decodes_a_step
        if self._memory and self._cost.kv_tokens:
            held_share = (job.num_tokens + to_come / 2) / self._cost.kv_tokens
            work_s += held_share * to_come * step_s
        self._work_s[job] = work_s
        return work_s

    def expected_tokens(self, job: Job) -> float:
        """Tokens that a job's answer is expected to bring yet: more than none, at most its limit."""
        at_most = max(1, job.max_output_tokens - job.num_output_tokens)
        expected = self._expected(job)
        return at_most if expected is None else min(expected.remaining_tokens(job.num_output_tokens), at_most)

    def _expected(self, job: Job) -> LengthEstimate | None:
        return (job.predicted_length if self.believes_predictions else None) or self._usual()

    def _usual(self) -> LengthEstimate | None:
        """What is expected of an answer nobody predicted."""
        if not self._num_finished:
            return None
        return LengthEstimate.around(self._finished_tokens / self._num_finished)

    def of(self, job: Job) -> float:
        """The work that was last estimated, in seconds."""
        return self._work_s[job]

    def outdated(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of `jobs` that have brought enough tokens to be estimated anew. O(jobs), without calls."""
        until = self._until_tokens
        return [job for job in jobs if job.num_output_tokens >= until[job]]

    def learn(self, job: Job) -> None:
        """An answer finished: what is usual changes for those estimated from now on."""
        if self._num_finished == _RECENT_ANSWERS:
            self._num_finished //= 2
            self._finished_tokens //= 2
        self._num_finished += 1
        self._finished_tokens += max(1, job.num_output_tokens)

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is gone."""
        del self._work_s[job], self._until_tokens[job]
