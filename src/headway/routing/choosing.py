"""Which queued batch an idle instance serves. One rule a class."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from headway.routing.batch import Batch

_LEAST_S = 1e-9
"""No batch takes less: an estimate of nothing would make every ratio infinite."""


class BatchTime(Protocol):
    """Guesses how long a padded batch occupies an instance, and learns from those that have been served."""

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds that `size` members take when padded to these lengths.

        Asked for every waiting batch whenever an instance is idle, so it should take microseconds.
        """
        ...

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A batch whose longest answer had `output_tokens` was served in `seconds`."""
        ...


class Choosing(Protocol):
    """Picks one batch of several; changes nothing."""

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch, one of `batches` (at least one), to serve now."""
        ...


class FirstCome:
    """The batch whose oldest member has waited longest; of equals the one opened first. O(batches)."""

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch with the oldest member."""
        return min(batches, key=lambda batch: (batch.oldest_arrival_s, batch.number))


@dataclass(frozen=True, slots=True)
class HighestRatio:
    """The batch that has waited longest for its serving time (HRRN); of equals the one opened first.

    A batch has waited since its oldest member came, or with `mean_wait` as long as its members on average.
    O(batches) estimates. Source: Magnus section on the batch scheduler; classic HRRN's 1 + T_w / T_p orders alike.
    """

    batch_time: BatchTime
    mean_wait: bool = False

    def choose(self, batches: Collection[Batch], now_s: float) -> Batch:
        """The batch with the highest T_w / T_p."""
        return max(batches, key=lambda batch: (self._ratio(batch, now_s), -batch.number))

    def _ratio(self, batch: Batch, now_s: float) -> float:
        since_s = batch.mean_arrival_s if self.mean_wait else batch.oldest_arrival_s
        seconds = self.batch_time.predict(len(batch), batch.prompt_tokens, batch.output_tokens)
        return (now_s - since_s) / max(seconds, _LEAST_S)
