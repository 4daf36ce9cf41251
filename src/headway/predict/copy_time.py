"""Seconds of a copy of KV blocks in one direction, learned while serving."""

from __future__ import annotations

from headway.predict.transfer import TransferModel

_FORGETTING = 0.96
"""Weight of a copy falls by half in about 17 further ones, so the fit follows a link that others use too."""
_PRIOR_BLOCKS = (1, 256)
"""A prior counts as two copies, a small and a large one, which fade like any others."""
_ONE_SIZE = 1e-6
"""Variance of the sizes seen, relative to their mean square, below which they say nothing of the start."""


class CopyTimeModel:
    """Copy time = a + b blocks, neither below 0; 0 while no copy was seen, so that the first one is tried.

    A caller may count in another unit of KV than blocks, as long as it always counts in the same.

    Relative errors are made small by least squares with forgetting, kept as five sums. Where all copies had
    one size, time is taken as proportional to it. Source: AdaptiveLLM section 1.5 (bytes / bandwidth each
    way), with the start that many small copies have.
    """

    def __init__(self, prior: TransferModel | None = None, *, block_bytes: int = 0) -> None:
        self._weight = self._blocks = self._squares = self._seconds = self._products = 0.0
        self._start_s = self._block_s = 0.0
        if prior is not None:
            for num_blocks in _PRIOR_BLOCKS:
                self.observe(num_blocks, prior.seconds(num_blocks * block_bytes))

    def seconds(self, num_blocks: int) -> float:
        """Predicted seconds of a copy of so many blocks; 0 for none."""
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
