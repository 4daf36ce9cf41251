"""Chooses the LoRA adapters of a step, and takes turns if there are more adapters than slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter

from headway.core.job import Job, JobState
from headway.core.plan import StepPlan

PATIENCE_S = 5.0
"""Seconds that an adapter waits without a slot before another gives up its own. Shorter turns run smaller batches."""
MOST_KNOWN = 4096
"""Most adapters whose last run is remembered: a reloaded adapter gets a new number."""


class AdapterSlots:
    """The at most `limit` LoRA adapters of a step, with turns if there are more.

    vLLM skips a request whose adapter exceeds the limit as long as requests of the other adapters keep coming. Here the
    next slot goes to the adapter that has waited longest, for PATIENCE_S, with a request in the queue. Among the
    adapters that have had a slot for as long, the one with the fewest running requests closes: it starts none until
    these have ended. Then the oldest request of the waiting adapter starts first. With n adapters a request therefore
    waits for less than n turns, each of PATIENCE_S and the longest running answer. Cost: O(queued jobs) a step while
    all slots are taken, else O(jobs of the step).
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.over: list[Job] = []
        """Residents left out of the step because their adapter exceeds the limit."""
        self._since_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._next: Job | None = None
        self._closed = 0

    def look(self, ran: Iterable[Job], queued: Iterable[Job], now_s: float) -> None:
        """Before planning: note which adapters ran in the last step, and whose turn it is."""
        slots = Counter(job.lora_id for job in ran if job.lora_id and job.state is JobState.RESIDENT)
        self._since_s = {adapter: self._since_s.get(adapter, now_s) for adapter in slots}
        self._last_s.update(dict.fromkeys(slots, now_s))
        if len(self._last_s) > MOST_KNOWN:
            newest = sorted(self._last_s.items(), key=itemgetter(1))[-MOST_KNOWN // 2 :]
            self._last_s = dict(newest)
        was_closed, self._closed = self._closed, 0
        if self._next is not None and (self._next.state is JobState.RESIDENT or self._next.lora_id in slots):
            self._next = None
        if len(slots) < self.limit:
            if self._next is not None and self._next not in queued:
                self._next = None
            return
        self._next = self._longest_without(queued, now_s)
        rested = [adapter for adapter, since_s in self._since_s.items() if now_s - since_s >= PATIENCE_S]
        if self._next is not None and rested:
            self._closed = min(rested, key=lambda adapter: (adapter != was_closed, slots[adapter], adapter))

    def _longest_without(self, queued: Iterable[Job], now_s: float) -> Job | None:
        """The oldest job of the adapter that has waited longest for a slot, if it has waited long enough."""
        first: dict[int, Job] = {}
        for job in queued:
            if job.lora_id and job.lora_id not in self._since_s:
                first.setdefault(job.lora_id, job)
        without_s = {job: max(job.arrival_s, self._last_s.get(job.lora_id, 0.0)) for job in first.values()}
        due = [job for job, since_s in without_s.items() if now_s - since_s >= PATIENCE_S]
        return min(due, key=lambda job: (without_s[job], job.id), default=None)

    def has(self, job: Job) -> bool:
        """Whether a queued job's adapter ran in the last step and continues, or could join those that did.

        No job may be paused or preempted for a job of which this is false.
        """
        if not job.lora_id:
            return True
        if job.lora_id in self._since_s:
            return job.lora_id != self._closed
        free = self.limit - len(self._since_s)
        return free > 1 or (free == 1 and (self._next is None or job.lora_id == self._next.lora_id))

    def within(self, run: Sequence[Job]) -> Sequence[Job]:
        """`run` without the jobs whose adapter exceeds a step's limit (invariant 11).

        vLLM asserts that running requests have at most `limit` adapters; with pauses more may be resident.
        """
        adapters: set[int] = set()
        self.over = []
        for job in run:
            if not job.lora_id or job.lora_id in adapters:
                continue
            if len(adapters) < self.limit:
                adapters.add(job.lora_id)
            else:
                self.over.append(job)
        over = set(self.over)
        return [job for job in run if job not in over] if over else run

    def turns(self, plan: StepPlan, waiting: Iterable[Job]) -> Sequence[Job]:
        """The jobs that a plan admits, beginning with the one whose turn it is.

        A plan names the first jobs of a queue. For each of these without a slot, a later job with one is added, so that
        jobs anywhere in the queue can fill the seats. O(waiting) if some lack a slot.
        """
        if not plan.admit:
            return plan.admit
        ready = [job for job in plan.admit if self.has(job)]
        num_lacking = len(plan.admit) - len(ready)
        admit: Sequence[Job] = plan.admit if self._next is None else ready
        if num_lacking:
            named = {*plan.admit, *plan.leave}
            others = (job for job in waiting if job not in named and self.has(job))
            admit = [*admit, *islice(others, num_lacking)]
        turn = self._next
        if turn is None or turn in plan.leave or not self.has(turn):
            return admit
        return [turn, *(job for job in admit if job is not turn)]
