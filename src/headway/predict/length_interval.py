"""The interval of a predicted length, set by how far answers really were from it."""

from __future__ import annotations

from collections import deque

import numpy as np

from headway.core.length_estimate import TAIL, LengthEstimate
from headway.predict.length_forest import Tokens

_ANSWERS = 500
_ENOUGH = 100
"""Answers predicted while serving that outweigh those held out of a fit."""
_REFRESH_ANSWERS = 50


class LengthInterval:
    """Moves each end of a forest's interval by the factor that leaves one answer in ten beyond it.

    Learned from answers that the forest had not seen: those held out of its fit at first, then the last 500 that
    were predicted while serving. Only these are what requests look like: the rows of continuous learning are
    chosen for their errors. It holds on average over all requests, not within each kind of them.
    Source: Romano et al. 2019, Conformalized quantile regression (arXiv 1905.03222), with ratios for differences.
    """

    def __init__(self) -> None:
        self._low = self._high = 0.0
        self._lived: deque[tuple[float, float]] = deque(maxlen=_ANSWERS)
        self._new = 0

    @property
    def settled(self) -> bool:
        """Whether enough answers were predicted while serving, so that held-out ones no longer count."""
        return len(self._lived) >= _ENOUGH

    def held_out(self, raw: Tokens, tokens: Tokens) -> None:
        """Answers left out of a fit, (rows, 3) and (rows,)."""
        if not self.settled:
            self._set(np.log(tokens / raw[:, 0]), np.log(tokens / raw[:, 2]))

    def ended(self, raw: Tokens, tokens: int) -> None:
        """An answer that was predicted as `raw`, (3,), has ended. 2 us, averaged."""
        self._lived.append((float(np.log(tokens / raw[0])), float(np.log(tokens / raw[2]))))
        self._new += 1
        if self.settled and self._new >= _REFRESH_ANSWERS:
            self._new = 0
            lows, highs = np.array(self._lived).T
            self._set(lows, highs)

    def estimate(self, raw: Tokens, limit: int) -> LengthEstimate:
        """The estimate of a request of this limit, from (3,): a whole number, within an interval that holds it.

        All within 1 and the limit.
        """
        low, middle, high = raw.tolist()
        most = float(max(1, limit))
        tokens = min(max(1.0, float(round(middle))), most)
        return LengthEstimate(
            tokens,
            low_tokens=min(max(1.0, low * float(np.exp(self._low))), tokens),
            high_tokens=max(min(high * float(np.exp(self._high)), most), tokens),
        )

    def state(self) -> Tokens:
        """What a file needs to keep, (1 + answers, 2): the factors' logarithms, then the ratios they come from."""
        return np.array([(self._low, self._high), *self._lived])

    def restore(self, state: Tokens) -> None:
        """Take over what `state` returned."""
        self._low, self._high = map(float, state[0])
        self._lived.clear()
        self._lived.extend((float(low), float(high)) for low, high in state[1:])

    def _set(self, lows: Tokens, highs: Tokens) -> None:
        self._low = float(np.quantile(lows, TAIL))
        self._high = float(np.quantile(highs, 1 - TAIL))
