"""Seconds of a KV copy between device and host: fitted to measurements, or learned while serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from headway.errors import ConfigError
from headway.predict.steps.fitting import nnls


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferModel:
    """An affine law for one direction: a fixed start, then bytes at a steady bandwidth."""

    start_s: Annotated[float, msgspec.Meta(ge=0)]
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0)]

    def seconds(self, num_bytes: int) -> float:
        """Seconds of a copy of `num_bytes`; 0 for nothing."""
        return self.start_s + num_bytes / self.bytes_per_s if num_bytes else 0.0


def fit_transfer(rows: Sequence[tuple[int, float]]) -> TransferModel:
    """Fit measured copies, pairs of bytes and seconds, with small relative errors.

    Raises ConfigError for fewer than two different sizes, or if larger copies do not take longer.
    """
    if len({num_bytes for num_bytes, _ in rows}) < 2 or any(not seconds > 0 for _, seconds in rows):
        raise ConfigError(
            f"{len(rows)} copies cannot be fitted; at least two sizes that took time are needed"
        )
    seconds = np.array([taken_s for _, taken_s in rows])
    sizes = np.array([float(num_bytes) for num_bytes, _ in rows])
    weighted = np.column_stack([np.ones_like(sizes), sizes]) / seconds[:, None]
    start_s, s_per_byte = nnls(weighted, np.ones_like(seconds))
    if not s_per_byte > 0:
        raise ConfigError("larger copies did not take longer; measure again on a quieter machine")
    return TransferModel(start_s=float(start_s), bytes_per_s=1 / float(s_per_byte))


_FORGETTING = 0.96
"""Weight of a copy falls by half in about 17 further ones, so the fit follows a link that others use too."""
_PRIOR_BLOCKS = (1, 256)
"""A prior counts as two copies, a small and a large one, which fade like any others."""
_ONE_SIZE = 1e-6
"""Relative variance of the sizes below which they say nothing about the start."""


class CopyTimeModel:
    """Copy time = a + b blocks, neither negative; 0 until a copy was seen, so that the first one is tried.

    A caller may count in another unit of KV than blocks, consistently.

    Uses least squares on relative errors with forgetting, kept as five sums. If all copies had one size, time is
    proportional to it. Source: AdaptiveLLM section 1.5 (bytes / bandwidth each way), plus the fixed start, which
    matters for many small copies.
    """

    def __init__(self, prior: TransferModel | None = None, *, block_bytes: int = 0) -> None:
        self._weight = self._blocks = self._squares = self._seconds = self._products = 0.0
        self._start_s = self._block_s = 0.0
        if prior is not None:
            for num_blocks in _PRIOR_BLOCKS:
                self.observe(num_blocks, prior.seconds(num_blocks * block_bytes))

    def seconds(self, num_blocks: int) -> float:
        """Predicted seconds of a copy of this many blocks; 0 for none."""
        return self._start_s + self._block_s * num_blocks if num_blocks else 0.0

    def observe(self, num_blocks: int, seconds: float) -> None:
        """Learn from a finished copy. About 1 us."""
        if num_blocks < 1 or not seconds > 0:
            return
        trust = 1 / (seconds * seconds)
        self._weight = _FORGETTING * self._weight + trust
        self._blocks = _FORGETTING * self._blocks + trust * num_blocks
        self._squares = _FORGETTING * self._squares + trust * num_blocks * num_blocks
        self._seconds = _FORGETTING * self._seconds + trust * seconds
        self._products = _FORGETTING * self._products + trust * num_blocks * seconds
        self._solve()

    def _solve(self) -> None:
        spread = self._weight * self._squares - self._blocks * self._blocks
        if spread <= _ONE_SIZE * self._weight * self._squares:
            self._start_s, self._block_s = 0.0, self._products / self._squares
            return
        self._block_s = (self._weight * self._products - self._blocks * self._seconds) / spread
        self._start_s = (self._squares * self._seconds - self._blocks * self._products) / spread
        if self._start_s < 0:
            self._start_s, self._block_s = 0.0, self._products / self._squares
        elif self._block_s < 0:
            self._start_s, self._block_s = self._seconds / self._weight, 0.0
