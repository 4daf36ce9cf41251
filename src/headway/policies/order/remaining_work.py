"""Estimates the remaining work of jobs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from math import ceil, inf, sqrt

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.length_estimate import TAIL, UNKNOWN_SPREAD, LengthEstimate
from headway.core.plan import StepOutcome
from headway.policies.recent_lengths import RecentLengths

_RECENT_ANSWERS = 400
"""Finished answers that define the usual length; few enough to follow the traffic."""
_TELLING_ANSWERS = 5
"""Finished answers needed to estimate the spread of lengths."""
_LEAST_SPREAD = 1.1
_MOST_SPREAD = 3.0
"""Limit of the spread. The wider it is, the more newcomers precede running jobs, as in feedback queues."""


class UsualLength:
    """The lengths of recent answers, singly and as one estimate.

    The estimate is centred on their mean, since a server without other knowledge pays the mean on average. Its width
    holds eight in ten of the lengths, up to _MOST_SPREAD either way; until five answers have ended, it is a factor of
    two. An answer costs O(log _RECENT_ANSWERS) and a memmove. The estimate is cached until the next answer ends.
    """

    def __init__(self) -> None:
        self._recent = RecentLengths(_RECENT_ANSWERS)
        self._estimate: LengthEstimate | None = None

    def learn(self, tokens: int) -> None:
        """An answer ended by itself with `tokens`; 0 counts as one."""
        self._recent.add(max(1, tokens))
        self._estimate = None

    @property
    def estimate(self) -> LengthEstimate | None:
        """What to expect of an answer; None before the first has ended."""
        if self._estimate is None and self._recent:
            mean, spread = self._recent.mean, self._spread
            self._estimate = LengthEstimate(mean, mean / spread, mean * spread)
        return self._estimate

    @property
    def _spread(self) -> float:
        """The factor either way beyond which one answer in ten lies."""
        if len(self._recent) < _TELLING_ANSWERS:
            return UNKNOWN_SPREAD
        wide = sqrt(self._recent.at(1 - TAIL) / self._recent.at(TAIL))
        return min(max(_LEAST_SPREAD, wide), _MOST_SPREAD)

    def longer_than(self, produced: int, points: int) -> Sequence[int]:
        """Recent lengths above `produced`, ascending; `points` representative ones if there are more. O(points)."""
        ascending = self._recent.ascending
        start, count = bisect_right(ascending, produced), len(ascending)
        if count - start <= points:
            return ascending[start:]
        apart = (count - start) / points
        return [ascending[start + int((part + 0.5) * apart)] for part in range(points)]


ASSUMED_SHARERS = 8
"""Jobs that share a step, until steps have been seen."""
_SHARERS_KEPT = 1 - 1 / 4096
"""Decay of the maximum number of sharers per step: over minutes, so that short lulls change little."""
ASSUMED_STEP_S = 0.01
"""Seconds of a decode step until the first was measured."""
LEAST_STRIDE_TOKENS = 8
"""Least number of tokens between two estimates of an answer's work."""
_CHANGED = 1.5
"""All estimates are renewed once one of their bases has changed by this factor."""
_SOUNDINGS_TOKENS = (512, 16_384)
"""Prompts whose times stand for all prompts: one with mostly matrix products, one with much attention."""
_RENEWED_A_STEP = 64
"""Jobs estimated anew beside a step once all have to be: one to two milliseconds."""


class RemainingWork:
    """Engine seconds that each live job still needs, cached between estimates.

    Work is the prefill still to compute, by the cost model, and a step's share for each token to come: the median of
    the job's prediction, given its progress, up to its limit. A step is shared by the largest recent number of jobs,
    since a waiting job waits for the engine at its fullest. A job without a prediction, and every job without
    `believes_predictions`, is expected to be as long as recent answers (`UsualLength`): its limit would rank it behind
    all jobs with a prediction. Until the first answer has finished, the limit is used.

    With `memory`, the share of KV memory that a job will hold on average counts too, for as long as it holds it: where
    memory is short, it keeps the engine from others for that time. So does memory held while a connector loads KV; the
    load itself runs beside the steps and is no work.

    An estimate holds until the answer has brought a quarter of what was to come, or half as much as it then had,
    whichever is less. If the answer has outgrown its prediction, the estimate holds until the answer has grown by a
    sixteenth. Either way it holds for 8 tokens. So a job is estimated O(log length) times. With intervals of a factor
    of up to 4 either way, a cached estimate is at most a third more or a tenth less than a new one, plus the worth of 8
    tokens. For an answer that has outgrown its prediction, it is at most twice as much, or as little as was expected up
    to 8 tokens or a quarter of it earlier. For a job in prefill, it also includes the part computed since admission. A
    caller that needs better asks for the `outdated` first.

    Estimates depend on the step times, the sharers of a step and the usual length at the time. Once one of these has
    changed by a factor of 1.5, as when the step-time model becomes ready, all live jobs are estimated anew
    (`next_in_doubt`), 64 a step.
    """

    def __init__(self, cost: CostModel | None = None, *, memory: bool = False) -> None:
        self._cost: CostModel = cost or UnknownCost()
        self._sharers: float = ASSUMED_SHARERS
        self._memory = memory
        self.believes_predictions = True
        self._work_s: dict[Job, float] = {}
        self._total_ns = 0  # whole: the sum hangs on no order
        self._until_tokens: dict[Job, int] = {}
        self._usual = UsualLength()
        self._in_doubt: dict[Job, None] = {}
        self._basis = self._rests_on()

    def estimate(self, job: Job) -> float:
        """Estimate a job's work anew and cache it. A few microseconds."""
        produced = job.num_output_tokens
        expected = self._expected(job)
        to_come = _to_come(job, expected)
        outgrown = expected is not None and produced > expected.tokens
        stride = max(LEAST_STRIDE_TOKENS, min(to_come, 2.0 * produced or to_come) / 4)
        self._until_tokens[job] = produced + ceil(max(stride, produced / 16) if outgrown else stride)
        work_s = self._until_end_s(job, to_come)
        self._total_ns += _ns(work_s) - _ns(self._work_s.get(job, 0.0))
        self._work_s[job] = work_s
        return work_s

    def _until_end_s(self, job: Job, to_come: float) -> float:
        """The work of a job that is expected to bring `to_come` more tokens."""
        return self._each_s(job, (to_come,))[0]

    def _each_s(self, job: Job, to_come: Iterable[float]) -> list[float]:
        """A job's work for each of these numbers of tokens to come."""
        start_s = self._beyond_a_step_s(self.prompt_s(job))
        step_s, grown_s = self._step_s, 0.0
        token_s = step_s / self._sharers
        if self._memory and self._cost.kv_tokens:
            # A step's share of the memory that it holds now, and of half of what it will add.
            held_s = step_s / self._cost.kv_tokens
            token_s, grown_s = token_s + job.num_tokens * held_s, held_s / 2
            start_s += self.load_s(job) * job.num_tokens / self._cost.kv_tokens
        return [start_s + tokens * (token_s + tokens * grown_s) for tokens in to_come]

    @property
    def _step_s(self) -> float:
        return self._cost.prefill_s(1) or ASSUMED_STEP_S

    @property
    def token_s(self) -> float:
        """Seconds of work for a token of an answer: its share of a step."""
        return self._step_s / self._sharers

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of work for `num_tokens` of a prompt, beyond a step that runs anyway."""
        return self._beyond_a_step_s(self._cost.prefill_s(num_tokens)) if num_tokens > 1 else 0.0

    def prompt_s(self, job: Job) -> float:
        """Seconds that the rest of a job's prompt takes alone; 0 for a decode.

        Tokens in the prefix cache or a connector's store are not computed, but attended to.
        """
        tokens = job.num_tokens - job.num_found_tokens
        if tokens <= 1:
            return 0.0
        if not (job.num_cached_tokens or job.num_stored_tokens):
            return self._cost.prefill_s(tokens)
        alone = BatchShape()
        alone.add(tokens, job.num_found_tokens)
        return self._cost.step_s(alone)

    def load_s(self, job: Job) -> float:
        """Seconds that a connector loads KV for a job before the rest of its prompt can be computed."""
        return self._cost.load_s(job.num_loaded_tokens) if job.num_stored_tokens else 0.0

    def _beyond_a_step_s(self, seconds: float) -> float:
        return max(0.0, seconds - self._step_s)

    def expected_tokens(self, job: Job) -> float:
        """Tokens that a job's answer is expected to add: more than none, at most its limit."""
        return _to_come(job, self._expected(job))

    def _expected(self, job: Job) -> LengthEstimate | None:
        return self._prediction(job) or self._usual.estimate

    def _prediction(self, job: Job) -> LengthEstimate | None:
        """The predicted length of a job, if predictions are believed."""
        return job.predicted_length if self.believes_predictions else None

    def of(self, job: Job) -> float:
        """The last estimate of a job's work, in seconds."""
        return self._work_s[job]

    @property
    def total_s(self) -> float:
        """The work of all live jobs as last estimated, in seconds: what the last takes first come, first served."""
        return self._total_ns / 1e9

    def outdated(self, jobs: Iterable[Job], coming_tokens: int = 0) -> list[Job]:
        """The jobs whose estimates are outdated once they have brought `coming_tokens` more.

        A job that is gone never is. O(jobs).
        """
        until = self._until_tokens.get
        return [job for job in jobs if job.num_output_tokens + coming_tokens >= until(job, inf)]

    def doubt(self, job: Job) -> None:
        """Mark a job's estimate as outdated."""
        self._until_tokens[job] = 0

    def doubt_all(self) -> None:
        """Mark all estimates as outdated; jobs already marked keep their turn."""
        self._in_doubt.update(dict.fromkeys(self._work_s))

    def next_in_doubt(self) -> Sequence[Job]:
        """The jobs to estimate anew beside this step, at most 64; unmarks them."""
        jobs = list(islice(self._in_doubt, _RENEWED_A_STEP)) if self._in_doubt else ()
        for job in jobs:
            del self._in_doubt[job]
        return jobs

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how many jobs share a step; mark all estimates if their bases have changed much."""
        self._sharers = max(1, len(outcome.tokens), self._sharers * _SHARERS_KEPT)
        basis = self._rests_on()
        if basis != self._basis and any(map(_differ, basis, self._basis)):
            self._basis = basis
            self.doubt_all()

    def _rests_on(self) -> tuple[float, ...]:
        """Everything that an estimate depends on, except the job itself."""
        usual = self._usual.estimate
        prompts_s = map(self._cost.prefill_s, _SOUNDINGS_TOKENS)
        return (self._step_s, self._sharers, usual.tokens if usual else 0.0, *prompts_s)

    def learn(self, job: Job) -> None:
        """An answer finished: the usual length changes for later estimates."""
        self._usual.learn(job.num_output_tokens)

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is gone."""
        self._total_ns -= _ns(self._work_s.pop(job))
        del self._until_tokens[job]
        self._in_doubt.pop(job, None)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _differ(one: float, other: float) -> bool:
    """Whether one of two non-negative numbers is more than _CHANGED times the other."""
    return one > _CHANGED * other or other > _CHANGED * one


def _to_come(job: Job, expected: LengthEstimate | None) -> float:
    at_most = max(1, job.max_output_tokens - job.num_output_tokens)
    return at_most if expected is None else min(expected.remaining_tokens(job.num_output_tokens), at_most)


POINTS = 16
"""Lengths that stand for all possible lengths of an answer."""


class GittinsWork(RemainingWork):
    """Each job's work by its Gittins index: expected work until the best moment to give up, over the chance that it
    ends.

    An answer may have any length above its current one that its prediction allows, or that recent answers had. Serving
    it until it has n tokens takes some work, less if it ends before, and finishes it with some probability. The job
    counts with the least work per finished answer, over all n. So a job likely to end soon goes first, and moves back
    once it has not ended; if lengths are known, this is the remaining work. Before any answer has ended it equals
    `RemainingWork`.

    On one server this ranking gives the least mean JCT possible without more knowledge (Gittins 1989; Aalto, Ayesta and
    Righter 2009). Here memory counts as work and answers share steps, so it is a heuristic (adr/0023). That an answer
    is not short may be noticed late, by up to a quarter of what was to come. O(POINTS), some 10 us.
    """

    def _until_end_s(self, job: Job, to_come: float) -> float:
        lengths = self._possible_tokens(job)
        if not lengths:
            return super()._until_end_s(job, to_come)
        limit = job.max_output_tokens
        produced = min(limit - 1, job.num_output_tokens)
        left = [(length if length < limit else limit) - produced for length in lengths]
        return work_per_end_s(self._each_s(job, left))

    def _possible_tokens(self, job: Job) -> Sequence[float]:
        """Possible lengths of a job's answer, ascending and equally likely."""
        produced = job.num_output_tokens
        lengths = (self._prediction(job) or self._usual).longer_than(produced, POINTS)
        # One more that fits no distribution: a model that repeats itself never ends.
        return [*lengths, 2.0 * max(produced, lengths[-1])] if lengths else ()


def work_per_end_s(until_s: Sequence[float]) -> float:
    """Least expected work per finished answer, over all moments to give up. `until_s`: work to each equally likely end.

    `until_s` ascends. Served until the i-th of n ends, the job finishes i times in n after the work of that end, and
    otherwise the work was for nothing. O(n).
    """
    count, ends_s, least_s = len(until_s), 0.0, inf
    for ended, moment_s in enumerate(until_s, 1):
        ends_s += moment_s
        per_end_s = (ends_s + (count - ended) * moment_s) / ended
        if per_end_s < least_s:  # `min`, without the call
            least_s = per_end_s
    return least_s
