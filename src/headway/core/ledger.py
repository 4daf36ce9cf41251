"""The job table of one engine: each live job has one state, each ended job one record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headway.core.job import Job, JobState
from headway.core.plan import Departure, Fate, StepOutcome
from headway.core.record import Outcome, Record, record_of

LEFT_AS = {
    Departure.SHED: Outcome.SHED,
    Departure.EXPIRED: Outcome.EXPIRED,
    Departure.HAND_OFF: Outcome.HANDED_OFF,
}
"""The outcome recorded for a job that leaves the queue."""


class Ledger:
    """Follows every job from arrival to its only end, in the engine and in the simulator alike.

    `residents` is in the engine's order; a job that joins or ends makes a new list, since plans hold the old one.
    `swapped` jobs have their KV on the host or on its way there. Costs: arrive, sampled O(1); end O(1), of a resident
    O(residents) pointer compares; apply O(jobs that got tokens), with admissions O(residents).
    """

    def __init__(self) -> None:
        self.waiting: dict[str, Job] = {}
        self.swapped: dict[str, Job] = {}
        self.residents: list[Job] = []
        self.arrived = 0
        self.ended: Counter[Outcome] = Counter()

    @property
    def live(self) -> int:
        """Number of jobs that have arrived and not ended."""
        return len(self.waiting) + len(self.swapped) + len(self.residents)

    def arrive(self, job: Job) -> None:
        """Take in a new job, waiting."""
        self.arrived += 1
        self.waiting[job.id] = job

    def apply(self, outcome: StepOutcome) -> None:
        """Move jobs as a filled step moved them; departures are ended separately, by `end`."""
        self.residents = self._in_step_order(outcome.plan.run)
        if outcome.preempted:
            self.residents = [job for job in self.residents if job not in outcome.preempted]
            for job, fate in outcome.preempted.items():
                self._preempt(job, fate)
        if outcome.admitted:
            self.residents = self.residents.copy()
        for job in outcome.admitted:
            self._admit(job, outcome.cached_tokens.get(job, 0), outcome.now_s)
        for job, tokens in outcome.tokens.items():
            job.num_computed_tokens += tokens

    def _in_step_order(self, run: Sequence[Job]) -> list[Job]:
        """Residents as the step served them: `run`, then the paused."""
        if run is self.residents:
            return self.residents
        if len(run) == len(self.residents):
            return list(run)
        running = set(run)
        return [*run, *(job for job in self.residents if job not in running)]

    def _preempt(self, job: Job, fate: Fate) -> None:
        job.num_preemptions += 1
        job.num_output_placeholders = 0
        if fate is Fate.SWAP:
            job.state = JobState.SWAPPED
            self.swapped[job.id] = job
            return
        self._drop(job)

    def _drop(self, job: Job) -> None:
        job.recomputed_tokens += job.num_computed_tokens
        job.num_computed_tokens = 0
        job.state = JobState.WAITING
        self.waiting[job.id] = job

    def _admit(self, job: Job, cached_tokens: int, now_s: float) -> None:
        self.residents.append(job)
        if self.swapped.pop(job.id, None) is None:
            del self.waiting[job.id]
            # What a dropped job finds in the prefix cache it does not compute again.
            job.recomputed_tokens -= min(cached_tokens, job.recomputed_tokens)
        job.state = JobState.RESIDENT
        # A waiting job has computed nothing; a swapped one has what its KV on the host covers.
        job.num_computed_tokens = max(cached_tokens, job.num_computed_tokens)
        if job.first_scheduled_s is None:
            job.first_scheduled_s = now_s

    def sampled(self, job: Job, num_tokens: int, now_s: float) -> bool:
        """Count sampled tokens; True if the first output token is among them."""
        is_first = job.first_token_s is None
        if is_first:
            job.first_token_s = now_s
        job.num_output_tokens += num_tokens
        return is_first

    def lose(self, job: Job) -> None:
        """A swapped job's KV on the host is lost: it waits to be computed again."""
        del self.swapped[job.id]
        self._drop(job)

    def end(self, job: Job, outcome: Outcome, now_s: float) -> Record:
        """Remove a job and return its record. Raises ValueError for a job that is not live."""
        queued = self.waiting.pop(job.id, None) or self.swapped.pop(job.id, None)
        if queued is None:
            residents = self.residents.copy()
            residents.remove(job)
            self.residents = residents
        job.state = JobState.ENDED
        self.ended[outcome] += 1
        return record_of(job, outcome, now_s)

    def check(self) -> None:
        """Assert that no job is lost, doubled or in the wrong place (invariants 1 and 6); O(live)."""
        assert self.arrived == self.ended.total() + self.live
        places = [*self.waiting.values(), *self.swapped.values(), *self.residents]
        assert len(set(places)) == len(places)
        assert all(job.state is JobState.WAITING for job in self.waiting.values())
        assert all(job.state is JobState.SWAPPED for job in self.swapped.values())
        assert all(job.state is JobState.RESIDENT for job in self.residents)
