"""Assigns batches of a central queue to instances, and tracks their ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headway.core.job import Job
from headway.routing.batch import Batch
from headway.routing.batch_queue import BatchQueue


@dataclass(slots=True)
class BatchCounts:
    """Batches `sent` to instances, their `members`, batches `split` as members came back, and batches `waiting` now."""

    sent: int = 0
    members: int = 0
    split: int = 0
    waiting: int = 0


@dataclass(slots=True, eq=False)
class _Served:
    """A batch at an instance. `left` are the members that have neither ended nor come back."""

    batch: Batch
    instance: str
    sent_s: float
    left: set[Job]
    longest: int = 0
    whole: bool = True


class BatchService:
    """Gives each instance a batch, and the next once every member has ended or was given back.

    Passive: it is told what arrives, which instance is idle, and how each member ends. A job is known from `add` to its
    only `ended`.
    """

    def __init__(self, queue: BatchQueue) -> None:
        self._counts = BatchCounts()
        self._queue = queue
        self._of: dict[Job, _Served | None] = {}
        self._at: dict[str, _Served] = {}
        self._avoided: dict[Job, frozenset[str]] = {}

    def __contains__(self, job: Job) -> bool:
        """Whether the job has arrived and not ended."""
        return job in self._of

    @property
    def counts(self) -> BatchCounts:
        """Counts of batches so far. O(waiting batches)."""
        return replace(self._counts, waiting=len(self._queue.waiting))

    def add(self, job: Job, seats: int) -> None:
        """A job arrived, with this many answers."""
        self._of[job] = None
        self._queue.add(job, seats)

    def hand_out(self, instances: Sequence[str], now_s: float) -> list[tuple[str, Batch]]:
        """Batches for the instances that serve none, in their order.

        A batch goes to an instance that a member avoids only if that member avoids all of them.
        """
        found: list[tuple[str, Batch]] = []
        for instance in instances:
            if instance in self._at:
                continue
            batch = self._queue.next_batch(now_s, self._avoiding(instance, instances))
            if batch is None:
                continue
            served = _Served(batch, instance, now_s, set(batch.jobs))
            self._at[instance] = served
            self._of |= dict.fromkeys(batch.jobs, served)
            self._counts.sent += 1
            self._counts.members += len(batch)
            found.append((instance, batch))
        return found

    def ended(self, job: Job, now_s: float, output_tokens: int | None) -> None:
        """A job ended, wherever it was; `output_tokens` None: without a whole answer."""
        served = self._of.pop(job)
        self._avoided.pop(job, None)
        if served is None:
            self._queue.remove(job)
            return
        served.whole = served.whole and output_tokens is not None
        served.longest = max(served.longest, output_tokens or 0)
        self._leave(served, job, now_s)

    def given_back(self, job: Job, now_s: float, avoided: Collection[str] = ()) -> None:
        """An instance did not serve a member to its end: the job waits again, preferably not for those `avoided`."""
        served = self._of[job]
        assert served is not None, "a job that waits is at no instance"
        self._of[job] = None
        if avoided:
            self._avoided[job] = frozenset(avoided)
        self._counts.split += served.whole
        served.whole = False
        self._queue.give_back(served.batch, job)
        self._leave(served, job, now_s)

    def _avoiding(self, instance: str, instances: Collection[str]) -> set[Job]:
        """The jobs that avoid this instance, since there is another for them."""
        return {
            job
            for job, avoided in self._avoided.items()
            if instance in avoided and not avoided >= set(instances)
        }

    def _leave(self, served: _Served, job: Job, now_s: float) -> None:
        served.left.discard(job)
        if served.left:
            return
        del self._at[served.instance]
        if served.whole:
            self._queue.finished(served.batch, output_tokens=served.longest, seconds=now_s - served.sent_s)
        else:
            self._queue.dropped(served.batch)
