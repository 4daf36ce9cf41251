"""As many on time as can be, then the others by predicted work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from headway.core.batch_shape import shape_of
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality, TrustRule
from headway.core.step_quality import StepTimeQuality
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.latest_start import LatestStart
from headway.policies.order.least_work import DEFAULT_PATIENCE, LeastWork
from headway.policies.order.remaining_work import DEFAULT_DECODES_A_STEP, RemainingWork
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.order.triage import Candidate, given_up

MOST_WEIGHED = 128
"""Jobs on time that are weighed against each other, the first by latest start; who comes behind them is not urgent."""
_COMPARED_EVERY = 4
"""Steps from one comparison of a predicted step time to the next: a comparison sums over the batch."""
_RULE = TrustRule()


class OnTime:
    """Jobs that can still meet their targets by due time, as many as can be; then the rest, by `least-work`.

    Who is late cannot be helped, and who has no target is in no hurry: both wait for those that can be in time,
    least work first, aged, by the usual length while predictions are bad. Where not all who wait for their first
    token can have it in time, those that cost most are given up (`triage`), as if the engine computed prompts
    alone, one after another: whoever is given up had no chance. A job that is between tokens and ahead of its schedule
    ranks by the time until which it could pause.

    Nobody waits for ever: of those that are late, or without a target, the one that came first ranks before all others
    once it is `patience_s` old. So the n-th of them to come is served, at the latest, when the n - 1 before it have
    had the engine's first rank to their end; nobody who comes later can add to that.

    While step times turn out otherwise than predicted, so that no latest start means anything, nobody is taken to be in
    time. Costs: those of `least-work`, an insertion for each job with a target, O(MOST_WEIGHED log) a ranking
    while there are such jobs, and a prediction of a step's time every fourth step.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        patience_s: float = 60.0,
        triage: bool = True,
        patience: float = DEFAULT_PATIENCE,
        decodes_a_step: float = DEFAULT_DECODES_A_STEP,
        least_tau: float = _RULE.least_tau,
        trusted_at_first: bool = _RULE.trusted_at_first,
    ) -> None:
        if not patience_s >= 0:
            raise ConfigError(f"patience_s is {patience_s}; accepted: 0 or more seconds")
        self.patience_s = patience_s
        self.triage = triage
        self.patience = patience
        self.decodes_a_step = decodes_a_step
        self.least_tau = least_tau
        self.trusted_at_first = trusted_at_first
        self.steps = StepTimeQuality()
        self._cost: CostModel = cost or UnknownCost()
        self._rest = LeastWork(
            cost,
            patience=patience,
            decodes_a_step=decodes_a_step,
            least_tau=least_tau,
            trusted_at_first=trusted_at_first,
        )
        self._work = RemainingWork(cost, decodes_a_step)
        self._latest = LatestStart(self._work, cost)
        self._keys: dict[Job, Key] = {}
        self._due: dict[Job, Key] = {}
        self._urgent = SortedIndex()
        self._by_arrival = SortedIndex()
        self._waiting_by_arrival = SortedIndex()
        self._num_observed = 0
        self._predicted_s = 0.0

    # ---- what is known of predictions ---------------------------------------------------------------

    @property
    def trusts_predictions(self) -> bool:
        """Whether predicted lengths rank those that are not on time."""
        return self._rest.trusts_predictions

    @property
    def trusts_step_times(self) -> bool:
        """Whether steps take about what is predicted, so that it means something to be on time."""
        return self.steps.trusted

    @property
    def quality(self) -> PredictionQuality:
        """What has been seen of predicted lengths."""
        return self._rest.quality

    # ---- jobs that come, change and go --------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        self._rest.add(job)
        came = (job.arrival_s, job.id)
        self._waiting_by_arrival.insert(job, came)
        if not self._by_arrival.holds(job, came):
            self._by_arrival.insert(job, came)
        if job.slo:
            self._work.estimate(job)
            self._urgent.insert(job, self._take_key(job))

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        self._rest.remove(job)
        self._waiting_by_arrival.remove(job, (job.arrival_s, job.id))
        if job.slo:
            self._urgent.remove(job, self._keys[job])

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._rest.end(job)
        self._by_arrival.remove(job, (job.arrival_s, job.id))
        self._latest.forget(job)
        if job.slo:
            del self._keys[job], self._due[job]
            self._work.forget(job)

    def finished(self, job: Job) -> None:
        """Learn of an answer that came to its end."""
        self._rest.finished(job)
        self._work.learn(job)

    def touch(self, job: Job) -> None:
        """Take a job's rank anew."""
        self._rest.touch(job)
        if job.slo:
            self._work.estimate(job)
            self._renew(job)

    def _renew(self, job: Job) -> None:
        old = self._keys[job]
        new = self._take_key(job)
        if self._urgent.holds(job, old):
            self._urgent.remove(job, old)
            self._urgent.insert(job, new)

    def _take_key(self, job: Job) -> Key:
        """Note a job's latest start, and when its prompt is due; a job that decodes is due when it has to go on."""
        latest_s = self._latest.of(job)
        prefill_s = 0.0 if job.num_output_tokens else self._latest.prefill_s(job)
        self._due[job] = (latest_s + prefill_s, job.arrival_s, job.id)
        key = self._keys[job] = (latest_s, job.arrival_s, job.id)
        return key

    # ---- who comes first ----------------------------------------------------------------------------

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        if not self._keys or not self.steps.trusted:
            return self._rest.top(k, now_s)
        first = [job for job in self._overdue(now_s) if self._is_waiting(job)]
        first += self._worth_serving(self._waiting_on_time(k, now_s), now_s)
        if len(first) < k:
            named = set(first)
            rest = self._rest.top(k + len(named), now_s)
            first += [job for job in rest if job not in named]
        return first[:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """`jobs` by the same rule."""
        if not self._keys or not self.steps.trusted:
            return self._rest.rank(jobs, now_s)
        overdue = self._overdue(now_s)
        first = [job for job in overdue if job in jobs]
        first += self._worth_serving(self.on_time(jobs, now_s), now_s)
        named = set(first)
        return [*first, *self._rest.rank([job for job in jobs if job not in named], now_s)]

    def latest_start_s(self, job: Job) -> float:
        """Until when a job may be left alone and still meet its targets; inf without any, -inf if one is missed."""
        return self._keys[job][0] if job.slo else inf

    def on_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """Those of `jobs`, all live, that have a target and can still meet all they have. O(jobs), without calls."""
        keys = self._keys if self.steps.trusted else {}
        return [job for job in jobs if job in keys and now_s <= keys[job][0] < inf]

    def _waiting_on_time(self, k: int, now_s: float) -> list[Job]:
        """The first by latest start of those that wait and can be in time."""
        start = self._urgent.position((now_s,))
        stop = min(start + max(k, MOST_WEIGHED), self._urgent.position((inf,)))
        return self._urgent.slice(start, stop)

    def _worth_serving(self, on_time: list[Job], now_s: float) -> list[Job]:
        """Those of `on_time` that are served before the rest, by due time: all but who is given up. Sorts the list."""
        on_time.sort(key=self._due.__getitem__)
        lost = given_up(self._candidates(on_time), now_s) if self.triage else ()
        return [job for job in on_time if job not in lost] if lost else on_time

    def _candidates(self, jobs: Iterable[Job]) -> Iterable[Candidate]:
        """Those that wait for their first token: only prompts hold others up."""
        for job in jobs:
            if not job.num_output_tokens:
                yield Candidate(job, self._due[job][0], self._latest.prefill_s(job), self._work.of(job))

    def _overdue(self, now_s: float) -> list[Job]:
        """The job that came first of those not on time, if it is past patience: one, or none."""
        for job in self._by_arrival.slice(0, MOST_WEIGHED):
            if job.arrival_s > now_s - self.patience_s:
                return []
            if not self.on_time([job], now_s):
                return [job]
        return []

    def _is_waiting(self, job: Job) -> bool:
        return self._waiting_by_arrival.holds(job, (job.arrival_s, job.id))

    # ---- foresight, for those who move KV -----------------------------------------------------------

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Seconds until each is expected to be served next: at once if on time, else as `least-work` says."""
        at_once = set(self.on_time(jobs, now_s))
        others = [job for job in jobs if job not in at_once]
        foreseen = dict(zip(others, self._rest.next_service_s(others, now_s, width), strict=True))
        return [foreseen.get(job, 0.0) for job in jobs]

    def num_at_first(self, levels: int) -> int:
        """What a burst looks like, as `least-work` says."""
        return self._rest.num_at_first(levels)

    def next_change_s(self, view: StepView) -> float:
        """Not known while anybody has a target: answers grow, and time passes."""
        return -inf if self._keys else self._rest.next_change_s(view)

    # ---- what steps teach ---------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        """Follow a step: how long they take, and whose latest start is to be taken anew."""
        self._rest.observe(outcome)
        step_s = self._latest.observe(outcome)
        self._compare(outcome, step_s)
        keys = self._keys
        if not keys:
            return
        targeted = [job for job in outcome.tokens if job in keys]
        outdated = set(self._work.outdated(targeted))
        for job in outdated:
            self._work.estimate(job)
        # A prompt that has begun may start the rest of it later than it had to start the whole.
        for job in targeted:
            if outcome.tokens[job] > 1 or job in outdated:
                self._renew(job)

    def _compare(self, outcome: StepOutcome, step_s: float) -> None:
        """Hold what the step before took against what was predicted of it, every few steps."""
        if self._predicted_s and step_s:
            self.steps.observe(self._predicted_s, step_s)
        self._num_observed += 1
        compared = outcome.tokens and self._num_observed % _COMPARED_EVERY == 0
        self._predicted_s = self._cost.step_s(shape_of(outcome.tokens)) if compared else 0.0
