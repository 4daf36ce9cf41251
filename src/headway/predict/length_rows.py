"""The answers a length predictor learns from: a bounded number of rows of numbers."""

from __future__ import annotations

import numpy as np

from headway.predict.length_forest import Rows, Tokens

_FIRST_CAPACITY = 64


class LengthRows:
    """Up to `max_rows` rows of features and the tokens of their answers; when full, a new row replaces any.

    So an old row fades instead of falling off, and the unchosen ones of the start are not gone at once. Chance is
    seeded: the same answers leave the same rows. Memory: 4 bytes a feature and 8 an answer.
    """

    def __init__(self, num_features: int, max_rows: int, seed: int) -> None:
        capacity = min(_FIRST_CAPACITY, max_rows)
        self._features = np.empty((capacity, num_features), dtype=np.float32)
        self._tokens = np.empty(capacity, dtype=np.float64)
        self._max_rows = max_rows
        self._chance = np.random.default_rng(seed)
        self.num_rows = 0

    def add(self, row: Rows, tokens: float) -> None:
        """Keep a row, (features,). O(features), averaged."""
        if self.num_rows == self._max_rows:
            place = int(self._chance.integers(self._max_rows))
        else:
            place = self.num_rows
            self.num_rows += 1
            self._grow()
        self._features[place] = row
        self._tokens[place] = tokens

    def copy(self) -> tuple[Rows, Tokens]:
        """(rows, features) and (rows,), to be read while others are added."""
        return self._features[: self.num_rows].copy(), self._tokens[: self.num_rows].copy()

    def _grow(self) -> None:
        if self.num_rows > len(self._tokens):
            more = min(2 * len(self._tokens), self._max_rows) - len(self._tokens)
            self._features = np.pad(self._features, ((0, more), (0, 0)))
            self._tokens = np.pad(self._tokens, (0, more))
