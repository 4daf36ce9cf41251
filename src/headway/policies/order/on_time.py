"""As many jobs on time as can be, then the others by predicted work, then those that can wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from headway.core.compared_steps import ComparedSteps
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.prediction_quality import PredictionQuality, StepTimeQuality, TrustRule
from headway.core.view import StepView
from headway.policies.order.first_tokens import FirstTokens, most_times
from headway.policies.order.least_work import LeastWork
from headway.policies.order.overdue import Overdue, overdue_share
from headway.policies.order.predicted_remaining import DEFAULT_TAIL
from headway.policies.order.timetable import Candidate, Timetable, given_up

MOST_WEIGHED = 128
"""Jobs on time that are weighed against each other, the first by latest start; those behind are not urgent."""
_LOOKED_STEPS = 8
"""For so many steps after a plan has asked of all running jobs, outdated ranks are taken anew beside the step: plans
that ask of all come every few steps, and what piles up until then would hold them up."""
_RULE = TrustRule()


class OnTime:
    """Jobs that can still meet their targets, as many as can, then all others by `least-work`, then what can wait.

    On-time jobs come by the time they are due, jobs that have begun above all. A job between tokens may wait as long as
    it can catch up by its expected end. A tenant that has had more service than another comes as much later among
    on-time jobs (`TenantShares`), costs as much more in triage, and comes after it among the rest.

    Where not all prompts can have their first token in time, `triage` gives up those that cost most, as if the engine
    computed prompts one after another for half of its time. With `prefixes`, what the prefix cache holds of a waiting
    prompt is neither work nor time to its first token.

    A job whose latest start is over CAN_WAIT_S away comes after all of these, by latest start: it is in time whatever
    happens to it now, and runs in what the others leave.

    No job waits for ever. `tail` bounds for how long jobs without a target give way to shorter ones (`least-work`). Of
    the jobs that are left out of steps and not in time, the oldest rank before all others once they are `patience_s`
    old, for `overdue_share(tail)` of the engine (`Overdue`, which has the bound). That holds without targets, and while
    step times are distrusted: then no job is taken to be in time, since no latest start means anything.

    Costs: those of `least-work`, an insertion for each job with a target, O(MOST_WEIGHED log) a ranking while there
    are such jobs, O(n) a ranking while n jobs can wait, and the prediction of two steps' times in every four
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

    # ---- what is known of predictions ---------------------------------------------------------------

    @property
    def trusts_predictions(self) -> bool:
        """Whether predicted lengths are gone by."""
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
        if job not in self._rest:
            self._overdue.add(job)
        self._rest.add(job)
        self._times.add(job)
        self._first_tokens.add(job)
        self._changed()

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
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
        """Learn of an answer that came to its end."""
        self._changed()
        self._rest.finished(job)

    def touch(self, job: Job) -> None:
        """Take a job's rank anew: at once if it waits, else when it is asked for."""
        self._rest.touch(job)
        self._changed()
        if self._times.waits(job):
            self._times.renew([job])

    def _changed(self) -> None:
        """What was found for this step is found no longer."""
        self._weighed.clear()
        self._overdue_now.clear()

    def _ask_of(self, jobs: Sequence[Job]) -> None:
        """The ranks of these, or whether they are in time, are asked for."""
        if len(jobs) >= self._num_ran:
            self._steps_to_look = _LOOKED_STEPS
        self._look_again(jobs)

    def _look_again(self, jobs: Iterable[Job], coming_tokens: int = 0) -> None:
        """Take anew what is outdated of these, or will be."""
        self._times.renew(self._rest.renew(jobs, coming_tokens))

    # ---- what comes first ---------------------------------------------------------------------------

    @property
    def _goes_by_targets(self) -> bool:
        """Whether any job has a target, and it means something to be in time."""
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
        """`jobs` by the same rule."""
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
        """Until when a job may be left alone and still meet its targets; inf without any, -inf if one is missed."""
        return self._times.latest_start_s(job)

    def on_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The jobs, all live, that have a target and can still meet all they have. O(jobs)."""
        if not self._goes_by_targets:
            return []
        self._ask_of(jobs)
        return self._times.in_time(jobs, now_s)

    def that_can_wait(self, jobs: Iterable[Job], now_s: float) -> Mapping[Job, float]:
        """The jobs that are in time whatever happens to them in the next minutes, by latest start."""
        return self._times.that_can_wait(jobs, now_s)

    def overdue(self, now_s: float) -> list[Job]:
        """The jobs that rank before all others, since they have waited too long, resident or not.

        A step asks several times: it is looked for once, until a change.
        """
        found = self._overdue_now.get(now_s)
        if found is None:
            found = self._overdue.of(now_s, self.on_time)
            self._overdue_now = {now_s: found}
        return found

    def due_first_tokens(self, jobs: Iterable[Job], now_s: float) -> list[Job]:
        """The prompts whose first token comes before those of all others, by due time, where no job has a target.

        None while step times are distrusted, and where priority or the service of several tenants decides.
        """
        if self._times or self._rest.shares.several or self.by_priority or not self.steps.trusted:
            return []
        return self._first_tokens.overdue(jobs, now_s)

    def _waiting_worth_serving(self, now_s: float) -> list[Job]:
        """Of the first by latest start that wait and can be in time. A step asks twice: once for it until a change."""
        found = self._weighed.get(now_s)
        if found is None:
            found = self._worth_serving(self._times.waiting_in_time(MOST_WEIGHED, now_s), now_s)
            self._weighed = {now_s: found}
        return found

    def _worth_serving(self, on_time: Iterable[Job], now_s: float) -> list[Job]:
        """Returns those of `on_time` that are served before the rest, in turn: all but those given up."""
        kept = self._times.candidates(on_time)
        lead_s = self._leads_s(kept)
        kept.sort()
        if lead_s:
            kept.sort(key=lambda one: one.due_s + lead_s[one.job.tenant])
        lost = given_up(_prompts(kept, lead_s), now_s) if self.triage else ()
        return [one.job for one in kept if one.job not in lost]

    def _leads_s(self, candidates: Iterable[Candidate]) -> Mapping[str, float]:
        """What each tenant of these has had more than the least served of them; empty where there is but one."""
        shares = self._rest.shares
        return shares.leads_s({one.job.tenant for one in candidates}) if shares.several else {}

    def next_change_s(self, view: StepView) -> float:
        """Not known while a job has a target, or of several one may become overdue: answers grow, and time passes."""
        return -inf if self._times else self._rest.next_change_s(view)

    # ---- what steps teach ---------------------------------------------------------------------------

    def observe(self, outcome: StepOutcome) -> None:
        """Follow a step: how long they take, and whose latest start is to be taken anew."""
        overdue = self.overdue(outcome.now_s)
        self._changed()
        self._rest.observe(outcome)
        step_s = self._times.observe(outcome)
        self._compared.observe(outcome, step_s)
        self._num_ran = len(outcome.tokens)
        if self._steps_to_look:  # else the next plan will hardly ask
            self._steps_to_look -= 1
            self._look_again(outcome.tokens, coming_tokens=1)
        self._overdue.observe(outcome, overdue)
        self._times.renew(self._rest.renewed)
        self._times.renew_after(outcome)


def _prompts(candidates: Iterable[Candidate], lead_s: Mapping[str, float]) -> Sequence[Candidate]:
    """The candidates that hold others up; what their tenants have had more counts as if they cost so much more."""
    prompts = [one for one in candidates if one.service_s]
    return (
        [one._replace(cost_s=one.cost_s + lead_s[one.job.tenant]) for one in prompts] if lead_s else prompts
    )
