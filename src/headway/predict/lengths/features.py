"""The numbers that describe a request to a length predictor: Magnus's, from its text, or its tenant's history."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import log, log1p

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.lengths.encoders import TextEncoder
from headway.predict.lengths.facts import RequestFacts, middle_cut, num_pieces

USER_GROUPS = 16
APP_GROUPS = 4
_COUNTED_CHARS = 1 << 13
"""Of a longer text the first and the last half of so many characters are counted, the rest in proportion."""
_REMEMBERED_INSTRUCTIONS = 256


def compressed(vectors: npt.NDArray[np.float32], groups: int) -> npt.NDArray[np.float32]:
    """Each row's dimensions in `groups` equal groups, every group its sum over the square root of its size.

    (rows, dimensions) to (rows, groups). Where the dimensions do not divide evenly, the first groups have one
    more than the others. Source: Magnus, compression module (spec 2.3).
    """
    dimensions = vectors.shape[1]
    if not 1 <= groups <= dimensions:
        raise ConfigError(f"{groups} groups of {dimensions} dimensions; accepted: 1 to {dimensions} groups")
    small, larger = divmod(dimensions, groups)
    sizes = np.array([small + (group < larger) for group in range(groups)])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    sums: npt.NDArray[np.float32] = np.add.reduceat(vectors, starts, axis=1)
    sums /= np.sqrt(sizes)
    return sums


def user_input_tokens(facts: RequestFacts) -> float:
    """UIL: the prompt's tokens in the proportion that the input's words, CJK characters and marks have of all.

    All of them where there are no texts to divide by.
    """
    instruction, user_input = _count(facts.instruction), _count(facts.user_input)
    if not instruction + user_input:
        return float(facts.num_prompt_tokens)
    return facts.num_prompt_tokens * user_input / (instruction + user_input)


def _count(text: str) -> float:
    cut = middle_cut(text, _COUNTED_CHARS)
    return num_pieces(cut) * len(text) / len(cut) if cut else 0.0


class MagnusFeatures:
    """16 dimensions of the user's input, 4 of the instruction, and UIL: 21 features a request.

    An instruction is encoded once and remembered, among the last 256: it is what many requests share.
    Source: Magnus (arXiv 2406.04785), generation length predictor (spec 2.3).
    """

    def __init__(
        self, encoder: TextEncoder, *, user_groups: int = USER_GROUPS, app_groups: int = APP_GROUPS
    ) -> None:
        for groups in (user_groups, app_groups):
            compressed(np.zeros((1, encoder.dimensions), dtype=np.float32), groups)
        self.name = f"{encoder.name}/{encoder.dimensions}/{user_groups}+{app_groups}"
        self.num_features = user_groups + app_groups + 1
        self._encoder = encoder
        self._user_groups = user_groups
        self._app_groups = app_groups
        self._instructions: dict[str, npt.NDArray[np.float32]] = {}

    def rows(self, requests: Sequence[RequestFacts]) -> npt.NDArray[np.float32]:
        """One row a request, (requests, features)."""
        found = np.empty((len(requests), self.num_features), dtype=np.float32)
        if requests:
            inputs = self._encoder.encode([facts.user_input for facts in requests])
            found[:, : self._user_groups] = compressed(inputs, self._user_groups)
        for row, facts in zip(found, requests, strict=True):
            row[self._user_groups : -1] = self._instruction(facts.instruction)
            row[-1] = user_input_tokens(facts)
        return found

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """Texts say the same whatever has ended."""

    def _instruction(self, text: str) -> npt.NDArray[np.float32]:
        known = self._instructions.pop(text, None)
        if known is None:
            known = compressed(self._encoder.encode([text]), self._app_groups)[0]
            if len(self._instructions) >= _REMEMBERED_INSTRUCTIONS:
                del self._instructions[next(iter(self._instructions))]
        self._instructions[text] = known
        return known


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
