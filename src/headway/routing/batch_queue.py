"""The central queue: waiting batches, the rules by which they form and leave, and the running batches."""

from __future__ import annotations

from collections.abc import Collection, Reversible
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

from headway.core.job import Job
from headway.core.length_estimate import TAIL
from headway.routing.batch import Batch, BatchMember, halved


class Joining(Protocol):
    """Decides where a request waits; `batches` are the queued ones that may grow, oldest first."""

    def join(self, member: BatchMember, batches: Reversible[Batch]) -> Batch | None:
        """The batch to join, or None to open a new one."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """The newest batch until it has `size` members: first come, first served, in batches of that size."""

    size: int

    def join(self, member: BatchMember, batches: Reversible[Batch]) -> Batch | None:
        """The newest batch if it has enough seats; no other has a free one. O(1)."""
        newest = next(iter(reversed(batches)), None)
        return newest if newest is not None and newest.seats + member.seats <= self.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWaste:
    """The batch that wastes least with the request in it, if that is less than the limit.

    The limit is `wma_limit`, or `wma_share` of what each seat of the batch reads, if that is more: waste grows with the
    square of lengths, so no one number fits all. A batch that would need more KV tokens than `capacity_tokens`, padded
    and grown to the longest planned answer, is skipped, and so is one with `max_size` members. Each seat takes whole
    blocks of `block_tokens`. Among equals the oldest wins. O(batches) an arrival. Source: Magnus, Algorithm 1 (Phi is
    `wma_limit`, Theta / Delta is `capacity_tokens`).
    """

    capacity_tokens: int
    wma_limit: int
    wma_share: float = 0.0
    block_tokens: int = 1
    max_size: int | None = None
    inclusive: bool = False

    def join(self, member: BatchMember, batches: Reversible[Batch]) -> Batch | None:
        """The batch of least WMA with the member, or None."""
        best, least = None, inf
        for batch in batches:
            if self._fits(batch, member):
                waste = batch.wma_with(member, inclusive=self.inclusive)
                if waste < least:
                    best, least = batch, waste
        if best is None:
            return None
        allowed = max(self.wma_limit, self.wma_share * best.read_with(member))
        return best if least < allowed else None

    def _fits(self, batch: Batch, member: BatchMember) -> bool:
        size = batch.seats + member.seats
        if self.max_size is not None and size > self.max_size:
            return False
        blocks = ceil(batch.seat_tokens_with(member) / self.block_tokens)
        return size * blocks * self.block_tokens <= self.capacity_tokens


_LEAST_S = 1e-9
"""Least time of a batch: an estimate of 0 would make every ratio infinite."""


class BatchTime(Protocol):
    """Predicts how long a padded batch occupies an instance, and learns from served ones."""

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds of `size` members padded to these lengths.

        Called for every waiting batch whenever an instance is idle, so it should take microseconds.
        """
        ...

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A batch whose longest answer had `output_tokens` took `seconds`."""
        ...


class Choosing(Protocol):
    """Picks one batch of several, without side effects."""

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch, one of `batches` (at least one), to serve now."""
        ...


class FirstCome:
    """The batch whose oldest member has waited longest; among equals the one opened first. O(batches)."""

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch with the oldest member."""
        return min(batches, key=lambda batch: (batch.oldest_arrival_s, batch.number))


@dataclass(frozen=True, slots=True)
class HighestRatio:
    """The batch that has waited longest relative to its serving time (HRRN); among equals the one opened first.

    A batch has waited since its oldest member came, or with `mean_wait` as long as its members on average. O(batches)
    estimates. Source: Magnus section on the batch scheduler; classic HRRN's 1 + T_w / T_p gives the same order.
    """

    batch_time: BatchTime
    mean_wait: bool = False

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch with the highest T_w / T_p."""
        return max(batches, key=lambda batch: (self._ratio(batch, now_s), -batch.number))

    def _ratio(self, batch: Batch, now_s: float) -> float:
        since_s = batch.mean_arrival_s if self.mean_wait else batch.oldest_arrival_s
        seconds = self.batch_time.predict(batch.seats, batch.prompt_tokens, batch.output_tokens)
        return (now_s - since_s) / max(seconds, _LEAST_S)


MEMORY_CONFIDENCE = 1 - TAIL
"""The upper end of a predicted length's interval."""


@dataclass(frozen=True, slots=True)
class PlannedLength:
    """A job's planned output tokens: what its answer stays within at a confidence, times a safety factor.

    `confidence` is for waste and times, `memory_confidence` for memory: an answer that outgrows the latter splits its
    batch. Between 1 and the job's limit; the limit itself for a job without a predicted length.
    """

    confidence: float = 0.5
    memory_confidence: float = MEMORY_CONFIDENCE
    safety_factor: float = 1.0

    def member(self, job: Job, seats: int = 1) -> BatchMember:
        """A member for the job, with whole numbers of tokens from 1 to its limit."""
        planned, memory = self._within(job, self.confidence), self._within(job, self.memory_confidence)
        return BatchMember(job, planned, memory, seats)

    def _within(self, job: Job, confidence: float) -> int:
        estimate = job.predicted_length
        if estimate is None:
            return job.max_output_tokens
        tokens = round(self.safety_factor * estimate.at(confidence))
        return min(max(1, tokens), job.max_output_tokens)


@dataclass(slots=True, kw_only=True)
class BatchQueue:
    """Gathers jobs into batches, gives whole batches to idle instances, and takes back those that failed there.

    Each job is in one waiting batch, in one running batch, or gone: finished, removed, or returned by `split`. Running
    and sealed batches take no newcomers. An idle instance never waits while there is a job that may go there. Equal
    sequences of calls give equal answers: no clock, no randomness.
    """

    joining: Joining
    choosing: Choosing
    planned: PlannedLength = field(default_factory=PlannedLength)
    batch_time: BatchTime | None = None
    splits: int = 0
    _open: dict[int, Batch] = field(default_factory=dict)
    _sealed: dict[int, Batch] = field(default_factory=dict)
    _serving: dict[int, Batch] = field(default_factory=dict)
    _given_back: dict[int, int] = field(default_factory=dict)
    """Running batch -> the waiting batch with those of its members that it could not serve."""
    _opened: int = 0

    @property
    def waiting(self) -> list[Batch]:
        """Waiting batches, in the order in which they were opened."""
        return sorted((*self._open.values(), *self._sealed.values()), key=lambda batch: batch.number)

    @property
    def serving(self) -> list[Batch]:
        """Running batches."""
        return list(self._serving.values())

    def add(self, job: Job, seats: int = 1) -> None:
        """A job arrived: it joins a waiting batch or opens one."""
        member = self.planned.member(job, seats)
        batch = self.joining.join(member, self._open.values())
        if batch is None:
            self._put(self._open, [member])
        else:
            batch.add(member)

    def remove(self, job: Job) -> None:
        """A waiting job is no longer wanted. O(waiting jobs)."""
        place, batch = next(
            (place, batch)
            for place in (self._open, self._sealed)
            for batch in place.values()
            if any(member.job is job for member in batch.members)
        )
        left = [member for member in batch.members if member.job is not job]
        if left:
            place[batch.number] = Batch(batch.number, left, batch.sealed)
        else:
            del place[batch.number]

    def next_batch(self, now_s: float, without: Collection[Job] = ()) -> Batch | None:
        """The batch for an idle instance, without any job of `without`; None if there is none."""
        batches = [*self._open.values(), *self._sealed.values()]
        if without:
            batches = [batch for batch in batches if not any(job in without for job in batch.jobs)]
        if not batches:
            return None
        batch = self.choosing.choose(batches, now_s)
        del (self._sealed if batch.sealed else self._open)[batch.number]
        self._serving[batch.number] = batch
        return batch

    def finished(self, batch: Batch, *, output_tokens: int, seconds: float) -> None:
        """A batch took `seconds`; its longest answer had `output_tokens`."""
        self._over(batch)
        if self.batch_time is not None:
            self.batch_time.observe(batch.seats, batch.prompt_tokens, output_tokens, seconds)

    def dropped(self, batch: Batch) -> None:
        """A batch ended without anything to learn from."""
        self._over(batch)

    def give_back(self, batch: Batch, job: Job) -> None:
        """A running batch lost one member: it waits again, in a sealed batch with those given back before it.

        Once all members have come back they wait in two halves. O(members).
        """
        number = self._given_back.get(batch.number)
        before = None if number is None else self._sealed.pop(number, None)
        if before is None:
            self.splits += 1
        lost = next(member for member in batch.members if member.job is job)
        members = [lost] if before is None else [*before.members, lost]
        if len(members) == len(batch) > 1:
            for half in halved(members):
                self._put(self._sealed, half, sealed=True)
            return
        self._given_back[batch.number] = self._opened
        self._put(self._sealed, members, sealed=True)

    def split(self, batch: Batch, ended: Collection[Job] = ()) -> list[Job]:
        """A batch ran out of memory, or lost its instance: it waits again as two sealed halves.

        Members that have `ended` are left out; the halves keep original arrivals. Returns the job of a batch of one,
        which cannot be split and leaves the queue.
        """
        self._over(batch)
        left = [member for member in batch.members if member.job not in ended]
        if len(batch) == 1 or not left:
            return [member.job for member in left]
        self.splits += 1
        for half in filter(None, halved(left)):
            self._put(self._sealed, half, sealed=True)
        return []

    def _over(self, batch: Batch) -> None:
        del self._serving[batch.number]
        self._given_back.pop(batch.number, None)

    def _put(self, place: dict[int, Batch], members: list[BatchMember], *, sealed: bool = False) -> None:
        place[self._opened] = Batch(self._opened, members, sealed)
        self._opened += 1
