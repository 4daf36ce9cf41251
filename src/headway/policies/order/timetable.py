"""Latest starts of jobs with targets, and which of these jobs can be in time together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import inf
from operator import itemgetter
from typing import NamedTuple

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState, is_decode
from headway.core.plan import StepOutcome
from headway.policies.order.remaining_work import ASSUMED_STEP_S, RemainingWork
from headway.policies.order.sorted_index import Key, SortedIndex

CAN_WAIT_S = 600.0
"""A job whose latest start is further away waits behind all others: a request of a batch, whose window is hours."""
TOO_LATE = -inf
NO_TARGET = inf
_NEWEST_SHARE = 0.1
"""Weight of the newest step in the running mean of step times."""
_MOST_TIMES = 100.0
"""Most times the mean with which a step counts; longer steps are those of a paused or stalled engine."""


class LatestStart:
    """The moment after which a job, served in every step from then on, misses a target.

    Before the first token: its due time, less the remaining prefill (at least a step), the load of what a connector's
    store holds, and the step that is in flight meanwhile (asynchronous scheduling). After it, with a target between
    tokens: as long as the job can catch up with its pace by the expected end of its answer. With a deadline: the
    deadline, less all remaining work as `RemainingWork` expects it. The earliest counts. TOO_LATE if a target is missed
    already, NO_TARGET without an open one. O(1).
    """

    def __init__(self, work: RemainingWork, cost: CostModel | None = None) -> None:
        self._work = work
        self._cost: CostModel = cost or UnknownCost()
        self._step_s = 0.0
        self._decoded_tokens = 1.0
        self._last_s = 0.0
        self._ran: Collection[Job] = ()

    @property
    def step_s(self) -> float:
        """Recent seconds of a step; before any was seen, those of a single token."""
        return self._step_s or self._cost.prefill_s(1) or ASSUMED_STEP_S

    @property
    def token_s(self) -> float:
        """Recent seconds of an answer's token: a step, or less if drafts are accepted."""
        return self.step_s / self._decoded_tokens

    def of(self, job: Job) -> float:
        """A job's latest start, as of now."""
        slo = job.slo
        if not slo:
            return NO_TARGET
        if _missed_first_token(job):
            return TOO_LATE
        latest_s = NO_TARGET
        prompt_s, load_s = self._work.prompt_s(job), self._work.load_s(job)
        if slo.ttft_s is not None and not job.num_output_tokens:
            # The step in flight ends first: `_step_s` is 0 until steps have been seen.
            begins_s = max(prompt_s, self.step_s) + load_s
            latest_s = job.arrival_s + slo.ttft_s - begins_s - self._step_s
        between_tokens = slo.tbt_s is not None and job.first_token_s is not None
        if slo.deadline_s is None and not between_tokens:
            return latest_s
        to_come = self._work.expected_tokens(job)
        rest_s = prompt_s + load_s + to_come * self.token_s
        if between_tokens:
            assert slo.tbt_s is not None
            assert job.first_token_s is not None
            last_due_s = job.first_token_s + (job.num_output_tokens + to_come - 1) * slo.tbt_s
            latest_s = min(latest_s, last_due_s - rest_s)
        if slo.deadline_s is not None:
            latest_s = min(latest_s, job.arrival_s + slo.deadline_s - rest_s)
        return latest_s

    def observe(self, outcome: StepOutcome) -> float:
        """Learn step times; return the seconds since the step before, 0 if none of its jobs continues."""
        self._decoded_tokens = outcome.decoded_tokens
        began_s, ran = self._last_s, self._ran
        self._last_s, self._ran = outcome.now_s, outcome.tokens
        if not any(job.state is JobState.RESIDENT for job in ran):
            return 0.0  # the engine may have been idle since
        step_s = outcome.now_s - began_s
        if self._step_s:
            newest_s = min(step_s, _MOST_TIMES * self._step_s)
            self._step_s += (newest_s - self._step_s) * _NEWEST_SHARE
        else:
            self._step_s = step_s
        return step_s

    def forget(self, job: Job) -> None:
        """Forget a job that is gone."""
        if job in self._ran:
            self._ran = [one for one in self._ran if one is not job]


def _missed_first_token(job: Job) -> bool:
    """Whether a job's first token came after its target; False without a token or a target."""
    slo, first_s = job.slo, job.first_token_s
    return slo.ttft_s is not None and first_s is not None and first_s > job.arrival_s + slo.ttft_s


class Candidate(NamedTuple):
    """A job due at `due_s` that takes `service_s` of the one shared server and costs `cost_s` in all."""

    due_s: float
    arrival_s: float
    id: str
    service_s: float
    cost_s: float
    job: Job


def given_up(candidates: Sequence[Candidate], now_s: float) -> set[Job]:
    """The jobs to give up so that all others, served in turn by due time, are in time.

    `candidates` come by due time. If one would be late, the most expensive among it and those kept before it is given
    up (the last of equals), if that lets it be in time; else it is given up itself. If costs equal services this is the
    rule of Moore and Hodgson, and no rule has more jobs in time; with separate costs it gives up the jobs that free
    most for later ones. O(n log n); O(n) if all can be in time. Source: Moore 1968, An n job, one machine sequencing
    algorithm for minimizing the number of late jobs.
    """
    if _all_in_time(candidates, now_s):
        return set()
    kept: list[tuple[float, int, Candidate]] = []
    lost: set[Job] = set()
    free_s = now_s
    for number, candidate in enumerate(candidates):
        if free_s + candidate.service_s > candidate.due_s:
            if not kept or not _makes_way(kept[0][2], candidate, free_s):
                lost.add(candidate.job)
                continue
            costliest = heappop(kept)[2]
            lost.add(costliest.job)
            free_s -= costliest.service_s
        heappush(kept, (-candidate.cost_s, -number, candidate))
        free_s += candidate.service_s
    return lost


def _all_in_time(candidates: Iterable[Candidate], free_s: float) -> bool:
    for candidate in candidates:
        free_s += candidate.service_s
        if free_s > candidate.due_s:
            return False
    return True


def _makes_way(costliest: Candidate, newcomer: Candidate, free_s: float) -> bool:
    """Whether giving up a more expensive job lets the newcomer be in time."""
    in_time = free_s - costliest.service_s + newcomer.service_s <= newcomer.due_s
    return in_time and costliest.cost_s > newcomer.cost_s


_PROMPT_SHARE = 0.5
"""Share of the engine's time for prompts; the rest is for decodes."""
_RENEWED_A_STEP = 8
"""Waiting jobs with a deadline whose latest start is updated beside a step: some fifty microseconds."""


class Timetable:
    """Latest starts (`LatestStart`) of live jobs with a target, as last computed, and which of them can be in time.

    A job between tokens may catch up with its pace until its latest start. Each token since the last computation leaves
    one less to come, so the job may continue a step later. Truthy while any job has a target. Costs: an insertion for
    each waiting job with a target, whenever its latest start is computed.
    """

    def __init__(self, work: RemainingWork, cost: CostModel | None) -> None:
        self._work = work
        self._latest = LatestStart(work, cost)
        self._latest_s: dict[Job, float] = {}
        self._tokens_then: dict[Job, int] = {}
        self._candidates: dict[Job, Candidate] = {}
        self._queue = SortedIndex()
        self._waiting: set[Job] = set()
        self._deadlines: dict[Job, None] = {}
        self._patient: set[Job] = set()

    def __bool__(self) -> bool:
        return bool(self._latest_s)

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        self._waiting.add(job)
        if job.slo:
            self._time(job)
            self._queue.insert(job, self._key(job))
        if job.slo.deadline_s is not None:
            self._deadlines[job] = None
        if max(job.slo.deadline_s or 0.0, job.slo.ttft_s or 0.0) > CAN_WAIT_S:
            self._patient.add(job)

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        self._waiting.remove(job)
        self._deadlines.pop(job, None)
        if job.slo:
            self._queue.remove(job, self._key(job))

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._latest.forget(job)
        self._patient.discard(job)
        if job.slo:
            del self._latest_s[job], self._tokens_then[job], self._candidates[job]

    def renew(self, jobs: Iterable[Job]) -> None:
        """Recompute the latest starts of those of these jobs that have a target."""
        for job in jobs:
            if job not in self._latest_s:
                continue
            if job in self._waiting:
                self._queue.remove(job, self._key(job))
                self._time(job)
                self._queue.insert(job, self._key(job))
            else:
                self._time(job)

    def _time(self, job: Job) -> None:
        """Note a job's latest start, and when its prompt is due; a decode is due when it has to continue."""
        self._latest_s[job] = latest_s = self._latest.of(job)
        self._tokens_then[job] = job.num_output_tokens
        prefill_s = 0.0 if job.num_output_tokens else self._work.prompt_s(job)
        # A load runs beside the steps: it takes no engine time from others.
        load_s = 0.0 if job.num_output_tokens else self._work.load_s(job)
        due_s = latest_s + prefill_s + load_s
        service_s = prefill_s / _PROMPT_SHARE
        self._candidates[job] = Candidate(due_s, job.arrival_s, job.id, service_s, self._work.of(job), job)

    def _key(self, job: Job) -> Key:
        return (self._latest_s[job], job.arrival_s, job.id)

    def observe(self, outcome: StepOutcome) -> float:
        """Learn step times; return the seconds of the step, 0 if unknown."""
        return self._latest.observe(outcome)

    def renew_after(self, outcome: StepOutcome) -> None:
        """Recompute the latest starts that a step changed.

        A prompt in progress may start its rest later than it had to start as a whole. For waiting jobs with a deadline
        the need changes with steps and lengths, so eight of them are updated in turn; the need of a first token changes
        by a step's time alone.
        """
        if not self._latest_s:
            return
        if outcome.num_tokens > len(outcome.tokens):  # otherwise each job has only the token of a decode
            granted = outcome.tokens.items()
            self.renew([job for job, tokens in granted if tokens > 1 and not is_decode(job, tokens)])
        if self._deadlines:
            self.renew(self._longest_unrenewed())

    def _longest_unrenewed(self) -> Sequence[Job]:
        turn = list(islice(self._deadlines, _RENEWED_A_STEP))
        for job in turn:
            self._deadlines[job] = self._deadlines.pop(job)
        return turn

    def waits(self, job: Job) -> bool:
        """Whether a job waits, with a target or without."""
        return job in self._waiting

    def latest_start_s(self, job: Job) -> float:
        """How long a job may be left alone, a resident as of now; inf without any target, -inf if one is missed."""
        if job in self._waiting:
            return self._latest_s.get(job, inf)
        return self._latest.of(job)

    def candidates(self, jobs: Iterable[Job]) -> list[Candidate]:
        """These jobs with the facts to weigh them against each other, as last computed; each has a target."""
        return [self._candidates[job] for job in jobs]

    def in_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The jobs that have a target and can still meet all of their targets. O(jobs), without calls."""
        latest_s, tokens_then, token_s = self._latest_s.get, self._tokens_then, self._latest.token_s
        # Most residents of some loads have met all of their targets already: inf, as without a target.
        return [
            job
            for job in jobs
            if (last_s := latest_s(job, inf)) < inf
            and now_s <= last_s + (job.num_output_tokens - tokens_then[job]) * token_s
        ]

    def that_can_wait(self, jobs: Iterable[Job], now_s: float) -> dict[Job, float]:
        """The jobs that may be left alone for CAN_WAIT_S, by latest start as last computed. O(1) if there can be
        none.
        """
        if not self._patient:
            return {}
        latest_s, from_s = self._latest_s, now_s + CAN_WAIT_S
        patient = [job for job in jobs if job in self._patient]
        found = [(latest_s[job], job.id, job) for job in patient if from_s <= latest_s[job] < inf]
        return {job: start_s for start_s, _, job in sorted(found, key=itemgetter(0, 1))}

    def waiting_in_time(self, most: int, now_s: float) -> list[Job]:
        """The first waiting jobs by latest start that can be in time and cannot wait long, at most `most`."""
        return self._queue.between((now_s,), (now_s + CAN_WAIT_S,), most)

    def num_waiting_that_can(self, now_s: float) -> int:
        """How many waiting jobs have a latest start CAN_WAIT_S away. O(log n)."""
        return (
            self._queue.position((inf,)) - self._queue.position((now_s + CAN_WAIT_S,)) if self._patient else 0
        )

    def waiting_that_can(self, most: int, now_s: float) -> list[Job]:
        """The first waiting jobs by latest start that can wait, at most `most`."""
        return self._queue.between((now_s + CAN_WAIT_S,), (inf,), most)
