"""Until when each job may be left alone, and those that wait by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf

from headway.core.cost import CostModel
from headway.core.job import Job, is_decode
from headway.core.plan import StepOutcome
from headway.policies.order.latest_start import LatestStart
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.order.sorted_index import Key, SortedIndex
from headway.policies.order.triage import Candidate

_STREAM_WORK = 16.0
"""A second of a stream's work puts off its turn by so many: who has less to do gives its memory back sooner."""
_BACK_STEPS = 512
"""A stream without memory is in a hurry once it may do without so many steps: in that time there is room for it."""
_RENEWED_A_STEP = 8
"""Jobs that wait with a deadline whose latest start is taken anew beside a step: some fifty microseconds."""


class Timetable:
    """Latest starts (`LatestStart`) of live jobs that have a target, as last taken, and who of them can be in time.

    A job that waits is late from its latest start on. One that holds memory may still catch up with its pace, until its
    last chance (`LatestStart.last_chance_s`): each token that it has brought since that was taken leaves one less to
    come, so it may go on a step later. A prompt is computed for `prompt_share` of the time; what is decoded, in steps
    as they are of late. True while anybody has a target. Costs: an insertion for each job that waits and has a target,
    whenever its latest start is taken anew.
    """

    def __init__(
        self, work: RemainingWork, cost: CostModel | None, prompt_share: float, *, by_tokens: bool = True
    ) -> None:
        self._work = work
        self._latest = LatestStart(work, cost, by_tokens=by_tokens)
        self._prompt_share = prompt_share
        self._latest_s: dict[Job, float] = {}
        self._late_s: dict[Job, float] = {}
        self._tokens_then: dict[Job, int] = {}
        self._candidates: dict[Job, Candidate] = {}
        self._queue = SortedIndex()
        self._waiting: set[Job] = set()
        self._deadlines: dict[Job, None] = {}

    def __bool__(self) -> bool:
        return bool(self._latest_s)

    # ---- jobs that come, change and go --------------------------------------------------------------

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        self._waiting.add(job)
        if job.slo:
            self._time(job)
            self._queue.insert(job, self._key(job))
        if job.slo.deadline_s is not None:
            self._deadlines[job] = None

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        self._waiting.remove(job)
        self._deadlines.pop(job, None)
        if job.slo:
            self._queue.remove(job, self._key(job))
            self._late_s[job] = self._latest.last_chance_s(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._latest.forget(job)
        if job.slo:
            del self._latest_s[job], self._late_s[job], self._tokens_then[job], self._candidates[job]

    def renew(self, jobs: Iterable[Job]) -> None:
        """Take latest starts anew, of those of these jobs that have a target."""
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
        """Note a job's latest start, and when its prompt is due; a job that decodes is due when it has to go on."""
        latest_s, last_chance_s = self._latest.with_last_chance(job)
        self._latest_s[job] = latest_s
        self._late_s[job] = latest_s if job in self._waiting else last_chance_s
        self._tokens_then[job] = job.num_output_tokens
        prefill_s = 0.0 if job.num_output_tokens else self._work.prompt_s(job)
        # A load goes beside the steps: it is no service of the engine, which others would wait for.
        load_s = 0.0 if job.num_output_tokens else self._work.load_s(job)
        due_s, service_s = latest_s + prefill_s + load_s, prefill_s / self._prompt_share
        cost_s = self._work.of(job)
        turn_s = latest_s + (_STREAM_WORK * cost_s if job.num_output_tokens else cost_s - prefill_s)
        self._candidates[job] = Candidate(due_s, job.arrival_s, job.id, service_s, cost_s, turn_s, job)

    def _key(self, job: Job) -> Key:
        return (self._latest_s[job], job.arrival_s, job.id)

    def observe(self, outcome: StepOutcome) -> float:
        """Learn from a step how long they take; returns the seconds, 0 if nobody knows."""
        return self._latest.observe(outcome)

    def renew_after(self, outcome: StepOutcome) -> None:
        """Take anew what a step changed.

        A prompt that has begun may start its rest later than it had to start all of it. Of those that wait with a
        deadline, what they need changes with steps and lengths, so the next eight are taken in turn; what a first token
        needs changes by a step's time alone.
        """
        if not self._latest_s:
            return
        if outcome.num_tokens > len(outcome.tokens):  # else nobody has more than the token of a decode
            granted = outcome.tokens.items()
            self.renew([job for job, tokens in granted if tokens > 1 and not is_decode(job, tokens)])
        if self._deadlines:
            self.renew(self._longest_unrenewed())

    def _longest_unrenewed(self) -> Sequence[Job]:
        turn = list(islice(self._deadlines, _RENEWED_A_STEP))
        for job in turn:
            self._deadlines[job] = self._deadlines.pop(job)
        return turn

    # ---- what it says -------------------------------------------------------------------------------

    def waits(self, job: Job) -> bool:
        """Whether a job waits, with a target or without."""
        return job in self._waiting

    def latest_start_s(self, job: Job) -> float:
        """Until when a job may be left alone, a resident as of now; inf without any target, -inf if one is missed."""
        if job in self._waiting:
            return self._latest_s.get(job, inf)
        return self._latest.of(job)

    def candidates(self, jobs: Iterable[Job]) -> list[Candidate]:
        """What has to be known of these to weigh them against each other, as last taken; each has a target."""
        return [self._candidates[job] for job in jobs]

    def hurried(self, jobs: Iterable[Job], now_s: float) -> list[Candidate]:
        """The same, without streams that wait for memory and are in no hurry. O(jobs)."""
        back_s = now_s + _BACK_STEPS * self._latest.step_s
        waiting = self._waiting
        return [
            one
            for one in map(self._candidates.__getitem__, jobs)
            if one.service_s or one.due_s <= back_s or one.job not in waiting
        ]

    def in_time(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """Those of `jobs` that have a target and can still meet all they have. O(jobs), without calls."""
        late_s, tokens_then, token_s = self._late_s.get, self._tokens_then, self._latest.token_s
        # Most residents of some loads have met all they had to: inf, as without a target.
        return [
            job
            for job in jobs
            if (last_s := late_s(job, inf)) < inf
            and now_s <= last_s + (job.num_output_tokens - tokens_then[job]) * token_s
        ]

    def waiting_in_time(self, most: int, now_s: float) -> list[Job]:
        """The first by latest start of those that wait and can be in time, at most so many."""
        return self._queue.between((now_s,), (inf,), most)
