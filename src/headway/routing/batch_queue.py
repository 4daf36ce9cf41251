"""The central queue: batches that wait for an instance, and those being served."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from headway.core.job import Job
from headway.routing.batch import Batch, Member, halved
from headway.routing.choosing import BatchTime, Choosing
from headway.routing.joining import Joining


@dataclass(frozen=True, slots=True)
class Planned:
    """The output tokens a job is planned with: what its answer stays within at `confidence`, times a safety factor.

    Between 1 and the job's limit; the limit itself for a job whose length nobody predicted.
    """

    confidence: float = 0.5
    safety_factor: float = 1.0

    def output_tokens(self, job: Job) -> int:
        """Whole tokens, 1 to the job's limit."""
        estimate = job.predicted_length
        if estimate is None:
            return job.max_output_tokens
        tokens = round(self.safety_factor * estimate.at(self.confidence))
        return min(max(1, tokens), job.max_output_tokens)


@dataclass(slots=True, kw_only=True)
class BatchQueue:
    """Gathers jobs into batches, hands them whole to idle instances, and takes back those that failed there.

    Each job it was given is in one waiting batch, in one batch being served, or was handed back: finished, or
    by `split`. Batches being served and sealed ones take nobody in. An idle instance never waits while a job
    does. The same sequence of calls gives the same answers: no clock, no chance.
    """

    joining: Joining
    choosing: Choosing
    planned: Planned = field(default_factory=Planned)
    batch_time: BatchTime | None = None
    splits: int = 0
    _open: dict[int, Batch] = field(default_factory=dict)
    _sealed: dict[int, Batch] = field(default_factory=dict)
    _serving: dict[int, Batch] = field(default_factory=dict)
    _opened: int = 0

    @property
    def waiting(self) -> list[Batch]:
        """Batches that wait, in the order they were opened."""
        return sorted((*self._open.values(), *self._sealed.values()), key=lambda batch: batch.number)

    @property
    def serving(self) -> list[Batch]:
        """Batches handed out whose end has not been told."""
        return list(self._serving.values())

    def add(self, job: Job) -> None:
        """A job has come: it joins a waiting batch or opens one."""
        member = Member(job, self.planned.output_tokens(job))
        batch = self.joining.join(member, self._open.values())
        if batch is None:
            self._put(self._open, [member])
        else:
            batch.add(member)

    def next_batch(self, now_s: float) -> Batch | None:
        """The batch that an instance idle now is to serve; None if nobody waits."""
        if not self._open and not self._sealed:
            return None
        batch = self.choosing.choose([*self._open.values(), *self._sealed.values()], now_s)
        del (self._sealed if batch.sealed else self._open)[batch.number]
        self._serving[batch.number] = batch
        return batch

    def finished(self, batch: Batch, *, output_tokens: int, seconds: float) -> None:
        """A batch was served in `seconds`; its longest answer had `output_tokens`."""
        del self._serving[batch.number]
        if self.batch_time is not None:
            self.batch_time.observe(len(batch), batch.prompt_tokens, output_tokens, seconds)

    def dropped(self, batch: Batch) -> None:
        """A batch is over, of which nothing is to be learned."""
        del self._serving[batch.number]

    def split(self, batch: Batch, ended: Collection[Job] = ()) -> list[Job]:
        """A batch ran out of memory, or lost its instance: it waits again as two sealed halves.

        Members that have `ended` all the same are left out; original arrivals count for the halves' waits.
        Returns the job of a batch of one, which cannot be split and is no longer the queue's.
        """
        del self._serving[batch.number]
        left = [member for member in batch.members if member.job not in ended]
        if len(batch) == 1 or not left:
            return [member.job for member in left]
        self.splits += 1
        for half in filter(None, halved(left)):
            self._put(self._sealed, half, sealed=True)
        return []

    def _put(self, place: dict[int, Batch], members: list[Member], *, sealed: bool = False) -> None:
        place[self._opened] = Batch(self._opened, members, sealed)
        self._opened += 1
