"""Estimates of the work that a job still is."""

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
"""Finished answers that say what is usual, so that it follows the traffic."""
_TELLING_ANSWERS = 5
"""Finished answers before which they say nothing of how unlike they are."""
_LEAST_SPREAD = 1.1
_MOST_SPREAD = 3.0
"""The wider the interval, the sooner newcomers go before those that run, as in feedback queues."""


class UsualLength:
    """The length of answers of late: one by one, and as one estimate.

    The estimate lies around their mean, since that is what a server that knows nothing else pays on average, and is as
    wide as eight in ten of them lie apart, up to _MOST_SPREAD either way. Until five have ended the interval is a
    factor of two. An answer costs O(log _RECENT_ANSWERS) and a memmove; asked often between two ends, it remembers.
    """

    def __init__(self) -> None:
        self._recent = RecentLengths(_RECENT_ANSWERS)
        self._estimate: LengthEstimate | None = None

    def learn(self, tokens: int) -> None:
        """An answer came to its end with so many tokens; none counts as one."""
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
        """The factor either way beyond which one in ten lies."""
        if len(self._recent) < _TELLING_ANSWERS:
            return UNKNOWN_SPREAD
        wide = sqrt(self._recent.at(1 - TAIL) / self._recent.at(TAIL))
        return min(max(_LEAST_SPREAD, wide), _MOST_SPREAD)

    def longer_than(self, produced: int, points: int) -> Sequence[int]:
        """Lengths of late that are longer, ascending; `points` that stand for them if there are more. O(points)."""
        ascending = self._recent.ascending
        start, count = bisect_right(ascending, produced), len(ascending)
        if count - start <= points:
            return ascending[start:]
        apart = (count - start) / points
        return [ascending[start + int((part + 0.5) * apart)] for part in range(points)]


ASSUMED_SHARERS = 8
"""Jobs that share a step, until steps have been seen."""
_SHARERS_KEPT = 1 - 1 / 4096
"""Of the most jobs that shared a step, as much counts after another step: minutes, so that lulls change little."""
ASSUMED_STEP_S = 0.01
"""A decode step until the first have been measured."""
LEAST_STRIDE_TOKENS = 8
"""Tokens an answer brings before its work is estimated anew, at least."""
_CHANGED = 1.5
"""All estimates are made anew once something that they rest on is so many times what it was, or as little."""
_SOUNDINGS_TOKENS = (512, 16_384)
"""Prompts whose time stands for that of all: one that is mostly matrix products, one with much attention."""
_RENEWED_A_STEP = 64
"""Jobs that are estimated anew beside a step once all have to be: one to two milliseconds."""


class RemainingWork:
    """Seconds of the engine that each live job still needs, kept between estimates.

    Work is the prefill still to compute, by the cost model, and a step's share for each token to come: the median of
    the job's prediction, given what it has produced, up to its limit. A step is shared by the most jobs that shared
    one of late, since a waiting job waits for the engine at its fullest. A job without a prediction, and every job
    without `believes_predictions`, is expected to be as long as answers of late (`UsualLength`): its limit would put
    it behind all with a prediction. Until the first answer has finished, the limit stands for it.

    With `memory` the share of the KV memory that a job will hold on average counts too, for as long as it holds it:
    where memory is short, for that time it keeps the engine from others. So does the memory that a load from a
    connector's store holds while it lasts; the load itself runs beside the steps and is no work.

    An estimate holds until the answer has brought a quarter of what was to come, or half as much as it then had,
    whichever is less. If the answer has outgrown its prediction, the estimate holds until it has grown by a sixteenth.
    Either way it holds for 8 tokens. So a job is estimated O(log length) times in its life. Where intervals are a
    factor of up to 4 either way, a kept estimate is at most a third more or a tenth less than a new one, and the worth
    of 8 tokens; of an answer that has outgrown its prediction, at most twice as much, or as little as was expected up
    to 8 tokens or a quarter of it earlier; of a job in prefill, also the part computed since it was admitted. A caller
    that needs better asks for the `outdated` first.

    Estimates rest on the step times, the sharers of a step and the usual length known when they were made. Once one of
    these is 1.5 times as much or as little, as when the step-time model has become ready, all live jobs are estimated
    anew (`next_in_doubt`), 64 a step.
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
        """Estimate a job's work anew and keep it. A few microseconds."""
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
        """The work of a job that is expected to bring `to_come` tokens yet."""
        return self._each_s(job, (to_come,))[0]

    def _each_s(self, job: Job, to_come: Iterable[float]) -> list[float]:
        """A job's work by each of these numbers of tokens that it may bring yet."""
        start_s = self._beyond_a_step_s(self.prompt_s(job))
        step_s, grown_s = self._step_s, 0.0
        token_s = step_s / self._sharers
        if self._memory and self._cost.kv_tokens:
            # A step's share of the memory for what it holds now, and for half of what it is to bring.
            held_s = step_s / self._cost.kv_tokens
            token_s, grown_s = token_s + job.num_tokens * held_s, held_s / 2
            start_s += self.load_s(job) * job.num_tokens / self._cost.kv_tokens
        return [start_s + tokens * (token_s + tokens * grown_s) for tokens in to_come]

    @property
    def _step_s(self) -> float:
        return self._cost.prefill_s(1) or ASSUMED_STEP_S

    @property
    def token_s(self) -> float:
        """Seconds of work that a token of an answer takes: its share of a step."""
        return self._step_s / self._sharers

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of work that so many tokens of a prompt are, beyond a step that runs anyway."""
        return self._beyond_a_step_s(self._cost.prefill_s(num_tokens)) if num_tokens > 1 else 0.0

    def prompt_s(self, job: Job) -> float:
        """Seconds that what is left of a job's prompt takes alone; 0 for one that decodes.

        What the prefix cache or a connector's store holds of it need not be computed, but is attended to.
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
        """Seconds that a connector loads KV for a job before what is left of its prompt can be computed."""
        return self._cost.load_s(job.num_loaded_tokens) if job.num_stored_tokens else 0.0

    def _beyond_a_step_s(self, seconds: float) -> float:
        return max(0.0, seconds - self._step_s)

    def expected_tokens(self, job: Job) -> float:
        """Tokens that a job's answer is expected to bring yet: more than none, at most its limit."""
        return _to_come(job, self._expected(job))

    def _expected(self, job: Job) -> LengthEstimate | None:
        return self._prediction(job) or self._usual.estimate

    def _prediction(self, job: Job) -> LengthEstimate | None:
        """The length predicted of a job, as long as predictions are believed."""
        return job.predicted_length if self.believes_predictions else None

    def of(self, job: Job) -> float:
        """The work that was last estimated, in seconds."""
        return self._work_s[job]

    @property
    def total_s(self) -> float:
        """The work of all live jobs as last estimated, in seconds: what the last takes first come, first served."""
        return self._total_ns / 1e9

    def outdated(self, jobs: Iterable[Job], coming_tokens: int = 0) -> list[Job]:
        """Returns those of `jobs` that are to be estimated anew once they have brought so many tokens more.

        O(jobs), without calls.
        """
        until = self._until_tokens
        return [job for job in jobs if job.num_output_tokens + coming_tokens >= until[job]]

    def doubt(self, job: Job) -> None:
        """What was estimated of a job holds no longer."""
        self._until_tokens[job] = 0

    def doubt_all(self) -> None:
        """No estimate holds any longer; those in doubt already keep their turn."""
        self._in_doubt.update(dict.fromkeys(self._work_s))

    def next_in_doubt(self) -> Sequence[Job]:
        """The jobs that are to be estimated anew beside this step, at most 64; they are in doubt no longer."""
        jobs = list(islice(self._in_doubt, _RENEWED_A_STEP)) if self._in_doubt else ()
        for job in jobs:
            del self._in_doubt[job]
        return jobs

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how many share a step; doubt all estimates if what they rest on has changed much."""
        self._sharers = max(1, len(outcome.tokens), self._sharers * _SHARERS_KEPT)
        basis = self._rests_on()
        if basis != self._basis and any(map(_differ, basis, self._basis)):
            self._basis = basis
            self.doubt_all()

    def _rests_on(self) -> tuple[float, ...]:
        """Everything but the job itself that its estimate rests on."""
        usual = self._usual.estimate
        prompts_s = map(self._cost.prefill_s, _SOUNDINGS_TOKENS)
        return (self._step_s, self._sharers, usual.tokens if usual else 0.0, *prompts_s)

    def learn(self, job: Job) -> None:
        """An answer finished: what is usual changes for those estimated from now on."""
        self._usual.learn(job.num_output_tokens)

    def forget(self, job: Job) -> None:
        """Keep nothing of a job that is gone."""
        self._total_ns -= _ns(self._work_s.pop(job))
        del self._until_tokens[job]
        self._in_doubt.pop(job, None)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def _differ(one: float, other: float) -> bool:
    """Whether one of two numbers, which are not negative, is more than _CHANGED times the other."""
    return one > _CHANGED * other or other > _CHANGED * one


def _to_come(job: Job, expected: LengthEstimate | None) -> float:
    at_most = max(1, job.max_output_tokens - job.num_output_tokens)
    return at_most if expected is None else min(expected.remaining_tokens(job.num_output_tokens), at_most)


POINTS = 16
"""Lengths that stand for all that an answer may have."""


class GittinsWork(RemainingWork):
    """Each job's work by the best moment to give up on it: its expected work until then, over the chance that it ends.

    An answer may have any length that its prediction leaves open, or that answers had of late, longer than it is. To
    serve it until it has n tokens takes some work, less where it ends before, and finishes it with some probability;
    the least work for each that finishes, over all n, is what the job counts for. So a job of which many like it end
    soon goes first, and goes back once it has not been one of them; where lengths are known it is the remaining work.
    Before any answer has ended it is `RemainingWork`.

    Ranked by it, mean JCT on one server is the least that can be had without knowing more (Gittins 1989; Aalto, Ayesta
    and Righter 2009). Here memory counts as work and answers share steps, so it is a rule of thumb (adr/0023). That an
    answer is none of the short may be seen late, by up to a quarter of what was to come. O(POINTS), some 10 us.
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
        """Lengths that its answer may have, ascending, each as likely as the next."""
        produced = job.num_output_tokens
        lengths = (self._prediction(job) or self._usual).longer_than(produced, POINTS)
        # One more, that follows none: a model that repeats itself never ends.
        return [*lengths, 2.0 * max(produced, lengths[-1])] if lengths else ()


def work_per_end_s(until_s: Sequence[float]) -> float:
    """The least expected work for each end, over all moments to give up; `until_s`: work to an end, each as likely.

    `until_s` ascends. Served for as long as the i-th of n takes, it ends i of n times, after as much as each of those
    takes, and the other times that much work was for nothing. O(n).
    """
    count, ends_s, least_s = len(until_s), 0.0, inf
    for ended, moment_s in enumerate(until_s, 1):
        ends_s += moment_s
        per_end_s = (ends_s + (count - ended) * moment_s) / ended
        if per_end_s < least_s:  # `min`, without the call
            least_s = per_end_s
    return least_s
