"""Keeps as many jobs on time as possible; then the others by predicted work, then those that can wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality, StepTimeQuality, TrustRule
from headway.core.view import StepView
from headway.policies.order.compared_steps import ComparedSteps
from headway.policies.order.first_tokens import FirstTokens, most_times
from headway.policies.order.least_work import LeastWork
from headway.policies.order.overdue import Overdue, overdue_share
from headway.policies.order.predicted_remaining import DEFAULT_TAIL
from headway.policies.order.timetable import Candidate, Timetable, given_up

MOST_WEIGHED = 128
"""On-time jobs that are weighed against each other, the first by latest start; later ones are not urgent."""
_LOOKED_STEPS = 8
"""After a plan that ranked all running jobs, outdated ranks are updated beside this many of the next steps. Such
plans come every few steps, and would be delayed by all updates that piled up in between.
"""
_RULE = TrustRule()


class OnTime:
    """As many jobs on time as possible by due time, then all others by `least-work`, then those that can wait.

    On-time jobs come by due time, with jobs that have begun first. A job between tokens may wait as long as it can
    catch up by its expected end. A tenant with more service than another is due that much later among on-time jobs
    (`TenantShares`), costs that much more in triage, and comes after the other among the rest.

    If not all prompts can have their first token in time, `triage` gives up those that cost most, as if the engine
    computed prompts one after another for half of its time. With `prefixes`, cached tokens of a waiting prompt count
    neither as work nor as time to its first token.

    A job whose latest start is over CAN_WAIT_S away comes after all of these, by latest start: it will be in time
    anyway, and runs in what the others leave.

    No job waits for ever. `tail` bounds how long jobs without a target give way to shorter ones (`least-work`). Among
    the jobs that are left out of steps and not in time, the oldest rank before all others once they are `patience_s`
    old, for `overdue_share(tail)` of the engine (`Overdue` proves the bound). That holds without targets too, and while
    step times are distrusted: then no job counts as in time, since latest starts mean nothing.

    Costs: those of `least-work`, an insertion for each job with a target, O(MOST_WEIGHED log) a ranking while there are
    such jobs, O(n) a ranking while n jobs can wait, and the prediction of two step times in every four
    (`ComparedSteps`).
    """

    by_priority = False

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        patience_s: float = 2.0,
        tail: float = DEFAULT_TAIL,
        triage: bool = True,
        least_tau: float = _RULE.least_tau,
        trusted_at_first: bool = _RULE.trusted_at_first,
        prefixes: bool = True,
    ) -> None:
        self._overdue = Overdue(patience_s, overdue_share(tail))
        self.triage = triage
        self.uses_prefixes = prefixes
        self.steps = StepTimeQuality()
        self._compared = ComparedSteps(cost or UnknownCost(), self.steps)
        self._rest = LeastWork(
            cost,
            tail=tail,
            least_tau=least_tau,
            trusted_at_first=trusted_at_first,
        )
        self._times = Timetable(self._rest.work, cost)
        self._first_tokens = FirstTokens(self._rest.work, most_times(tail))
        self._weighed: dict[float, list[Job]] = {}
        self._overdue_now: dict[float, list[Job]] = {}
        self._num_ran = 0
        self._steps_to_look = 0

    # ---- trust in predictions -----------------------------------------------------------------------

    @property
    def trusts_predictions(self) -> bool:
        """Whether predicted lengths are used now."""
        return self._rest.trusts_predictions

    @property
    def trusts_step_times(self) -> bool:
        """Whether steps take about as long as predicted, so that being on time has a meaning."""
        return self.steps.trusted

    @property
    def quality(self) -> PredictionQuality:
        """The observed quality of predicted lengths."""
        return self._rest.quality

    # ---- jobs that come, change and go --------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Index a job that starts to wait."""
        if job not in self._rest:
            self._overdue.add(job)
        self._rest.add(job)
        self._times.add(job)
        self._first_tokens.add(job)
        self._changed()

    def remove(self, job: Job) -> None:
        """Forget a job that no longer waits."""
        self._rest.remove(job)
        self._times.remove(job)
        self._weighed.clear()

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._rest.end(job)
        self._overdue.end(job)
        self._times.end(job)
        self._first_tokens.end(job)
        self._compared.forget(job)
        self._changed()

    def finished(self, job: Job) -> None:
        """Learn from an answer that ended by itself or at its limit."""
        self._changed()
        self._rest.finished(job)

    def touch(self, job: Job) -> None:
        """Update a job's rank: at once if it waits, else when it is asked for."""
        self._rest.touch(job)
        self._changed()
        if self._times.waits(job):
            self._times.renew([job])

    def _changed(self) -> None:
        """Discard results cached for this step."""
        self._weighed.clear()
        self._overdue_now.clear()

    def _ask_of(self, jobs: Sequence[Job]) -> None:
        """Prepare for questions about these jobs: their ranks, or whether they are in time."""
        if len(jobs) >= self._num_ran:
            self._steps_to_look = _LOOKED_STEPS
        self._look_again(jobs)

    def _look_again(self, jobs: Iterable[Job], coming_tokens: int = 0) -> None:
        """Update the outdated ranks among these jobs, including those about to become outdated."""
        self._times.renew(self._rest.renew(jobs, coming_tokens))

    # ---- ranking ------------------------------------------------------------------------------------

    @property
    def _goes_by_targets(self) -> bool:
        """Whether any job has a target, and step times are trusted."""
        return bool(self._times) and self.steps.trusted

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        overdue = self.overdue(now_s)
        first = [job for job in overdue if self._times.waits(job)]
        if self._goes_by_targets:
            first += [job for job in self._waiting_worth_serving(now_s) if job not in overdue]
        if len(first) < k:
            times, named = self._times, set(first)
            can_wait = times.num_waiting_that_can(now_s)
            rest = self._rest.top(k + len(named) + can_wait, now_s)
            if can_wait:
                named.update(times.waiting_that_can(can_wait, now_s))
            first += [job for job in rest if job not in named]
            if can_wait:
                first += [job for job in times.waiting_that_can(k, now_s) if job not in overdue]
        return first[:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by the same rule."""
        self._ask_of(jobs)
        overdue = self.overdue(now_s)
        first = [job for job in overdue if job in jobs]
        last = self._times.that_can_wait(jobs, now_s)
        if self._goes_by_targets:
            in_time = self._times.in_time(jobs, now_s)
            if last:
                in_time = [job for job in in_time if job not in last]
            first += [job for job in self._worth_serving(in_time, now_s) if job not in overdue]
        if not first and not last:
            return self._rest.ranked(jobs)
        named = {*first, *last}
        rest = self._rest.ranked([job for job in jobs if job not in named])
        return [*first, *rest, *(job for job in last if job not in overdue)]

    def latest_start_s(self, job: Job) -> float:
        """How long a job may be left alone and still meet its targets; inf without any, -inf if one is missed."""
        return self._times.latest_start_s(job)

    def on_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The live jobs among these that have a target and can still meet all of their targets. O(jobs)."""
        if not self._goes_by_targets:
            return []
        self._ask_of(jobs)
        return self._times.in_time(jobs, now_s)

    def that_can_wait(self, jobs: Iterable[Job], now_s: float) -> Mapping[Job, float]:
        """The jobs that stay in time even if ignored for the next minutes, by latest start."""
        return self._times.that_can_wait(jobs, now_s)

    def overdue(self, now_s: float) -> list[Job]:
        """The jobs that rank before all others because they have waited too long, resident or not.

        A step asks several times, so the answer is kept until something changes.
        """
        found = self._overdue_now.get(now_s)
        if found is None:
            found = self._overdue.of(now_s, self.on_time)
            self._overdue_now = {now_s: found}
        return found

    def due_first_tokens(self, jobs: Iterable[Job], now_s: float) -> list[Job]:
        """The prompts to compute before all others because their first token is due, if no job has a target.

        None while step times are distrusted, and if priority or the service of several tenants decides.
        """
        if self._times or self._rest.shares.several or self.by_priority or not self.steps.trusted:
            return []
        return self._first_tokens.overdue(jobs, now_s)

    def _waiting_worth_serving(self, now_s: float) -> list[Job]:
        """The first waiting jobs by latest start that can be in time, without those given up. Cached, since a step
        asks twice.
        """
        found = self._weighed.get(now_s)
        if found is None:
            found = self._worth_serving(self._times.waiting_in_time(MOST_WEIGHED, now_s), now_s)
            self._weighed = {now_s: found}
        return found

    def _worth_serving(self, on_time: Iterable[Job], now_s: float) -> list[Job]:
        """The jobs of `on_time` that are served before the rest, in order: all except the jobs given up."""
        kept = self._times.candidates(on_time)
        lead_s = self._leads_s(kept)
        kept.sort()
        if lead_s:
            kept.sort(key=lambda one: one.due_s + lead_s[one.job.tenant])
        lost = given_up(_prompts(kept, lead_s), now_s) if self.triage else ()
        return [one.job for one in kept if one.job not in lost]

    def _leads_s(self, candidates: Iterable[Candidate]) -> Mapping[str, float]:
        """How much more service each tenant of these has had than the least served; empty with a single tenant."""
        shares = self._rest.shares
        return shares.leads_s({one.job.tenant for one in candidates}) if shares.several else {}

    def next_change_s(self, view: StepView) -> float:
        """Unknown while a job has a target, or one of several may become overdue: answers grow, and time passes."""
        return -inf if self._times else self._rest.next_change_s(view)

    # ---- learning from steps ------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        """Follow a step: learn its length, and update the latest starts that it changed."""
        overdue = self.overdue(outcome.now_s)
        self._changed()
        self._rest.observe(outcome)
        step_s = self._times.observe(outcome)
        self._compared.observe(outcome, step_s)
        self._num_ran = len(outcome.tokens)
        if self._steps_to_look:  # otherwise the next plan will hardly ask
            self._steps_to_look -= 1
            self._look_again(outcome.tokens, coming_tokens=1)
        self._overdue.observe(outcome, overdue)
        self._times.renew(self._rest.renewed)
        self._times.renew_after(outcome)


def _prompts(candidates: Iterable[Candidate], lead_s: Mapping[str, float]) -> Sequence[Candidate]:
    """The candidates that delay others; a tenant's extra service counts as extra cost."""
    prompts = [one for one in candidates if one.service_s]
    return (
        [one._replace(cost_s=one.cost_s + lead_s[one.job.tenant]) for one in prompts] if lead_s else prompts
    )
