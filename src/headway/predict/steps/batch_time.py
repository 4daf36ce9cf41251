"""Predicts how long a padded batch occupies an instance, from the nearest batches that were served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError

NEIGHBOURS = 5
PERIOD_S = 120.0
_LEAST_ERROR_S = 2.0
_LEAST_ERROR_SHARE = 0.2
_MAX_ROWS = 4096
_MAX_PENDING = 4096
_NEAR = 1e-9
"""Added to each squared standardised distance: a batch seen before decides alone, without a division by 0."""

BatchRow = tuple[int, int, int, float]
"""Members, prompt tokens, output tokens, seconds."""


class BatchTimeModel:
    """The mean seconds of the 5 nearest batches by (members, L, G), weighted by nearness.

    Each of the three is divided by its standard deviation over the rows. The model starts from a grid. Served batches
    wait until `refit`, every 2 minutes: there each batch is estimated again from its real length, and those off by more
    than 2 s and 20 % become rows. Beyond 4,096 rows the oldest served one is dropped; the grid stays, since only the
    grid covers rare batches. Source: Magnus, serving time estimator (spec 2.6); k and the weights are ours.
    """

    def __init__(
        self,
        grid: Iterable[BatchRow],
        *,
        neighbours: int = NEIGHBOURS,
        weighted: bool = True,
        period_s: float = PERIOD_S,
    ) -> None:
        """Raises ConfigError for an empty grid, one of more than 4,095 rows, or fewer than one neighbour."""
        self._grid = list(grid)
        if not 0 < len(self._grid) < _MAX_ROWS:
            raise ConfigError(f"a grid of {len(self._grid)} batches; accepted: 1 to {_MAX_ROWS - 1}")
        if neighbours < 1:
            raise ConfigError.of("neighbours", neighbours, "1 or more")
        self._neighbours = neighbours
        self._weighted = weighted
        self._period_s = period_s
        self._refitted_s = 0.0
        self._learned: deque[BatchRow] = deque(maxlen=_MAX_ROWS - len(self._grid))
        self._pending: deque[BatchRow] = deque(maxlen=_MAX_PENDING)
        self._settle()

    @property
    def num_rows(self) -> int:
        """Number of known batches."""
        return len(self._seconds)

    @property
    def rows(self) -> list[BatchRow]:
        """All batches, with those not learned from yet at the end."""
        return [*self._grid, *self._learned, *self._pending]

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds of `size` members padded to these lengths. One product of a matrix and a vector: 20 us at 4,096."""
        point = np.array((size, prompt_tokens, output_tokens)) * self._scales
        distances = self._norms - 2.0 * (self._points @ point) + point @ point
        count = min(self._neighbours, len(distances))
        near = np.argpartition(distances, count - 1)[:count]
        if not self._weighted:
            return float(self._seconds[near].mean())
        weights = 1.0 / np.sqrt(np.maximum(distances[near], 0.0) + _NEAR)
        return float(weights @ self._seconds[near] / weights.sum())

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A batch whose longest answer had `output_tokens` took `seconds`; learned from at `refit`."""
        if seconds > 0:
            self._pending.append((size, prompt_tokens, output_tokens, seconds))

    def due(self, now_s: float) -> bool:
        """Whether batches wait to be learned from and the period is over."""
        return bool(self._pending) and now_s - self._refitted_s >= self._period_s

    def refit(self, now_s: float | None = None) -> None:
        """Learn from the batches that were badly estimated. 20 us a batch served since the last time."""
        if now_s is not None:
            self._refitted_s = now_s
        wrong = [row for row in self._pending if self._is_wrong(row)]
        self._pending.clear()
        if wrong:
            self._learned.extend(wrong)
            self._settle()

    def _is_wrong(self, row: BatchRow) -> bool:
        size, prompt_tokens, output_tokens, seconds = row
        error_s = abs(self.predict(size, prompt_tokens, output_tokens) - seconds)
        return error_s > _LEAST_ERROR_S and error_s > _LEAST_ERROR_SHARE * seconds

    def _settle(self) -> None:
        table: npt.NDArray[np.float64] = np.array([*self._grid, *self._learned], dtype=np.float64)
        spreads = table[:, :3].std(axis=0)
        self._scales = 1.0 / np.where(spreads > 0, spreads, 1.0)
        self._points = np.ascontiguousarray(table[:, :3] * self._scales)
        self._norms = np.einsum("ij,ij->i", self._points, self._points)
        self._seconds = table[:, 3]
