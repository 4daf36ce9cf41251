"""What a server knows of a request without its text: its sizes, and what its tenant's last answers were."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import log, log1p

import numpy as np
import numpy.typing as npt

from headway.predict.length import RequestFacts

_ANSWERS = 100
_MAX_TENANTS = 1024
_SHARES = (0.1, 0.5, 0.9)
_NOTHING = float("nan")
"""What a forest is told where no answer has ended: LightGBM sends it down a branch of its own."""


class LastAnswers:
    """Quantiles, mean and number of the last 100 answers of one kind. Adding costs a few us."""

    __slots__ = ("_order", "_sorted", "_sum")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []
        self._sum = 0

    def add(self, tokens: int) -> None:
        """One more; of 100 the oldest goes."""
        if len(self._order) == _ANSWERS:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
            self._sum -= oldest
        self._order.append(tokens)
        insort(self._sorted, tokens)
        self._sum += tokens

    def features(self) -> tuple[float, ...]:
        """The 0.1, 0.5 and 0.9 quantiles, the mean, the last one, and how many there are, as logarithms."""
        known = len(self._sorted)
        if not known:
            return (_NOTHING,) * 5 + (0.0,)
        quantiles = (self._sorted[min(int(share * known), known - 1)] for share in _SHARES)
        shown = (*quantiles, self._sum / known, self._order[-1])
        return (*(log1p(tokens) for tokens in shown), log(1 + known))


_OF_REQUEST = 2
_OF_ANSWERS = 6


class HistoryFeatures:
    """Prompt tokens, the limit, and the last answers of the tenant and of all: 14 features, no text.

    They say what had ended when the request came, so they follow a change at once, before any forest does.
    Memory: 100 answers of each of the 1,024 tenants who sent last.
    """

    name = "history"
    num_features = _OF_REQUEST + 2 * _OF_ANSWERS

    def __init__(self) -> None:
        self._all = LastAnswers()
        self._tenants: dict[str, LastAnswers] = {}

    def rows(self, requests: Sequence[RequestFacts]) -> npt.NDArray[np.float32]:
        """One row a request, (requests, features)."""
        everyone, unknown = self._all.features(), LastAnswers()
        found = [
            (
                log1p(facts.num_prompt_tokens),
                log1p(facts.max_output_tokens),
                *self._tenants.get(facts.tenant, unknown).features(),
                *everyone,
            )
            for facts in requests
        ]
        return np.array(found, dtype=np.float32).reshape(len(requests), self.num_features)

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """An answer has ended."""
        self._all.add(output_tokens)
        own = self._tenants.pop(facts.tenant, None)
        if own is None:
            own = LastAnswers()
            if len(self._tenants) >= _MAX_TENANTS:
                del self._tenants[next(iter(self._tenants))]
        self._tenants[facts.tenant] = own
        own.add(output_tokens)
