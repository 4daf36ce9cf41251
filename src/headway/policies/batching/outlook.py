"""Runs the top jobs with memory set aside: for the longest answers, or for the expected peak of the residents."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Sequence

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.reserved import reservable
from headway.policies.batching.top_jobs import Takes, TopJobs
from headway.policies.protocols import Order, predicts


class ExpectedTokens:
    """A length that an answer stays within with probability `confidence`, by its prediction; at most its limit.

    An answer that has outgrown this length, or was never predicted, is expected to add an eighth of its tokens, at
    least one block, so its reserve grows ahead of it. The quantile is computed once for a job that becomes resident,
    and at each call for a waiting one.
    """

    def __init__(self, confidence: float) -> None:
        if not 0 < confidence < 1:
            raise ConfigError.of("reserve_confidence", confidence, "a probability between 0 and 1")
        self.confidence = confidence
        self._within: dict[Job, float] = {}

    def to_come(self, view: StepView, jobs: Iterable[Job]) -> list[float]:
        """Output tokens that each of `jobs` is expected to add. O(jobs), without calls for residents."""
        found = []
        known = self._within
        for job in jobs:
            produced = job.num_output_tokens
            within = known.get(job)
            if within is None:
                within = self._quantile(job)
            if within <= produced:
                within = min(job.max_output_tokens, produced + max(view.block_size, produced >> 3))
            found.append(within - produced)
        return found

    def _quantile(self, job: Job) -> float:
        estimate = job.predicted_length
        return 0.0 if estimate is None else min(job.max_output_tokens, estimate.at(self.confidence))

    def observe(self, outcome: StepOutcome) -> None:
        """Follow which jobs are resident. O(residents)."""
        for job in [job for job in self._within if job.state is not JobState.RESIDENT]:
            del self._within[job]
        for job in outcome.admitted:
            self._within[job] = self._quantile(job)


class Outlook:
    """Decides whether a newcomer has room until its end, beside the jobs that rank before it and what others hold now.

    It must be asked about newcomers in rank order, with the residents passed on the way. Jobs that rank before a
    newcomer take memory first: each grows by a token a step until its expected end, and then frees its memory. While
    the newcomer lives, memory peaks when it or an earlier job ends. At such a moment every job that ends no earlier
    holds its current tokens and as many more as the ending job was expected to add. The errors of many answers cancel,
    so a confidence of a half goes far. Residents that rank lower count only with what they hold, since they may have to
    make way. Half a block is added for each job, for the block it has begun. O(residents) to make, and O(residents log
    residents) for a newcomer where memory may be short. Source: the peak of LightLLM's Past-Future scheduler (Gong et
    al., ASPLOS 2025), with predictions in place of its history, and with ranks.
    """

    def __init__(self, view: StepView, expected: ExpectedTokens) -> None:
        self._view = view
        self._expected = expected
        self._begun = view.block_size / 2
        held = sum([job.num_prompt_tokens + job.num_output_tokens for job in view.residents])
        self._room = view.total_blocks * view.block_size - held - self._begun * len(view.residents)
        self._num_passed = 0
        self._ends: list[tuple[float, float]] = []
        self._all_tokens = 0.0

    def is_enough_for(self, newcomers: Sequence[Job]) -> bool:
        """Whether residents and these newcomers have room to their ends, in whatever order they end. O(residents +
        newcomers).
        """
        room = self._room - sum(self._expected.to_come(self._view, self._view.residents))
        for job in newcomers:
            if room < 0:  # a quantile costs microseconds, and many jobs may wait
                break
            room -= self._held(job) + sum(self._expected.to_come(self._view, [job]))
        return room >= 0

    def _held(self, job: Job) -> float:
        return job.num_prompt_tokens + job.num_output_tokens + self._begun

    def takes(self, job: Job, before: Sequence[Job]) -> bool:
        """Whether a newcomer has room; if so, it counts from now on. A newcomer alone always has room.

        `before`: the residents that rank before it, starting with those of the previous newcomer.
        """
        if len(before) > self._num_passed:
            self._count(before[self._num_passed :])
            self._num_passed = len(before)
        [end] = self._endings([job])
        minus_to_come, held = end
        insort(self._ends, end)
        alone = len(self._ends) == 1 and not self._view.residents
        # Shortcut: enough memory for all that they will ever hold.
        all_tokens = self._all_tokens + held - minus_to_come
        if all_tokens > self._room and not alone and self._most_while(minus_to_come) > self._room:
            self._ends.remove(end)
            return False
        self._all_tokens = all_tokens
        return True

    def _count(self, residents: Sequence[Job]) -> None:
        endings = self._endings(residents)
        for minus_to_come, held in endings:
            self._room += held
            self._all_tokens += held - minus_to_come
        self._ends += endings
        self._ends.sort()

    def _endings(self, jobs: Sequence[Job]) -> list[tuple[float, float]]:
        """(minus the tokens to come, tokens held now) of each job: the last to end sorts first."""
        to_come = self._expected.to_come(self._view, jobs)
        return [(-tokens, self._held(job)) for job, tokens in zip(jobs, to_come, strict=True)]

    def _most_while(self, minus_to_come: float) -> float:
        """Peak of tokens held until a job ends that is expected to add this many."""
        held = most = 0.0
        for number, (minus_its_own, tokens) in enumerate(self._ends, 1):
            held += tokens
            if minus_its_own >= minus_to_come:
                most = max(most, held - number * minus_its_own)
        return most


class ReservingTopJobs(TopJobs):
    """The highest-ranked jobs run, resident or waiting; with a reserve a job starts only if it has room to its end.

    With `reserve`, blocks for its longest possible answer are set aside: no KV is evicted for want of memory. With
    `reserve_confidence`, memory must last to the job's end beside those that rank before it, by lengths that answers
    stay within with that probability (`Outlook`), so KV is seldom evicted. Nothing is set aside while the order does
    not trust predictions. Costs: as `TopJobs`, and with a reserve a memory check for each of the top, unless memory
    suffices for all.
    """

    def __init__(self, *, reserve: bool = False, reserve_confidence: float | None = None) -> None:
        if reserve and reserve_confidence is not None:
            raise ConfigError("reserve and reserve_confidence are both given; accepted: one of them")
        self.reserve = reserve
        self.reserve_confidence = reserve_confidence
        self._expected = None if reserve_confidence is None else ExpectedTokens(reserve_confidence)

    @property
    def uses_predictions(self) -> bool:
        """Whether predicted lengths change its decisions."""
        return self.reserve_confidence is not None

    def _queued(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        first = super()._queued(view, order, leaving)
        return reservable(view, first) if first and self.reserve else first

    def _takes(self, view: StepView, order: Order, queued: Sequence[Job]) -> Takes | None:
        if self._expected is None or (predicts(order) and not order.trusts_predictions):
            return None
        outlook = Outlook(view, self._expected)
        return None if outlook.is_enough_for(queued) else outlook.takes

    def observe(self, outcome: StepOutcome) -> None:
        """Follow the residents for which room is set aside."""
        if self._expected is not None:
            self._expected.observe(outcome)
