"""Decides whether predictions of lengths and of step times are to be trusted."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRule:
    """When length predictions count as trustworthy, over the last `window` answers.

    Trust ends when Kendall's tau falls below `least_tau`, or the share of answers within their interval below
    `least_coverage` (the interval aims at 0.8). It returns when both are `margin` above: twice the sampling deviation
    of tau, and three times that of the share, over 200 answers, so that chance does not flip it. Before `min_answers`
    the answer is `trusted_at_first`: False, since an order without lengths is safe while nothing is known, and a wrong
    one is not. With a minimum of 1 trust never begins, since nothing is a margin above it.
    """

    window: int = 200
    min_answers: int = 30
    least_tau: float = 0.4
    least_coverage: float = 0.5
    margin: float = 0.1
    trusted_at_first: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.min_answers <= self.window:
            raise ConfigError(
                f"min_answers is {self.min_answers}; accepted: 2 to the window, which is {self.window}"
            )
        for name in ("least_tau", "least_coverage", "margin"):
            least = getattr(self, name)
            if not 0 <= least <= 1:
                raise ConfigError.of(name, least, "0 to 1")


_DEFAULT = TrustRule()
_REFRESH_ANSWERS = 10
"""Answers between two evaluations of the window: one over 200 answers takes about 100 us, so 10 us an answer."""


class PredictionQuality:
    """Compares finished answers with their predictions, and decides whether predictions hold.

    `tau` and `coverage` are from the last evaluation, every 10 answers; None before `min_answers`. Report only answers
    that ended by themselves or at their limit. The first to end are the short ones, so after a change of the workload
    it errs towards distrust until long ones have ended too. Memory: `window` pairs.
    """

    def __init__(self, rule: TrustRule = _DEFAULT) -> None:
        self.rule = rule
        self.trusted = rule.trusted_at_first
        self.tau: float | None = None
        self.coverage: float | None = None
        self.num_answers = 0
        self._pairs: deque[tuple[float, int]] = deque()
        self._held: deque[bool] = deque()
        self._num_held = 0

    def observe(self, estimate: LengthEstimate, output_tokens: int) -> None:
        """An answer with this `estimate` ended. O(window log window) every 10 answers."""
        if len(self._pairs) == self.rule.window:
            self._pairs.popleft()
            self._num_held -= self._held.popleft()
        held = estimate.low_tokens <= output_tokens <= estimate.high_tokens
        self._pairs.append((estimate.tokens, output_tokens))
        self._held.append(held)
        self._num_held += held
        self.num_answers += 1
        since_enough = self.num_answers - self.rule.min_answers
        if since_enough >= 0 and since_enough % _REFRESH_ANSWERS == 0:
            self._look()

    def _look(self) -> None:
        rule = self.rule
        tau = self.tau = kendall_tau(self._pairs)
        coverage = self.coverage = self._num_held / len(self._pairs)
        margin = 0.0 if self.trusted else rule.margin
        # Exact up to rounding: 0.7 + 0.1 is slightly below 0.8.
        self.trusted = (
            tau >= rule.least_tau + margin - _ROUNDING
            and coverage >= rule.least_coverage + margin - _ROUNDING
        )


_ROUNDING = 1e-9


def kendall_tau(pairs: Iterable[tuple[float, float]]) -> float:
    """Similarity of two rankings, -1 to 1 (tau-b, which allows for ties); 0 if one side is constant. O(n log n).

    For n in the hundreds: the sorted half is a list, which moves n / 4 entries an insertion. Source: Knight 1966, A
    computer method for calculating Kendall's tau with ungrouped data.
    """
    ranked = sorted(pairs)
    total = _num_pairs(len(ranked))
    tied_left = _num_tied([left for left, _ in ranked])
    tied_right = _num_tied([right for _, right in ranked])
    tied_both = _num_tied(ranked)
    if total in (tied_left, tied_right):
        return 0.0
    discordant = 0
    seen: list[float] = []
    for _, right in ranked:
        place = bisect_right(seen, right)
        discordant += len(seen) - place
        seen.insert(place, right)
    difference = total - tied_left - tied_right + tied_both - 2 * discordant
    return difference / sqrt((total - tied_left) * (total - tied_right))


def _num_tied(values: Sequence[object]) -> int:
    """Pairs of equal values."""
    return sum(_num_pairs(count) for count in Counter(values).values())


def _num_pairs(count: int) -> int:
    return count * (count - 1) // 2


WINDOW_STEPS = 64
LEAST_STEPS = 16
WITHIN_FACTOR = 1.6
LEAST_SHARE = 0.5
MARGIN = 0.15


class StepTimeQuality:
    """Compares step times with their predictions, over the last WINDOW_STEPS compared steps.

    Trust ends when fewer than LEAST_SHARE of them took between 1 / WITHIN_FACTOR and WITHIN_FACTOR of the prediction,
    and returns when MARGIN more do. Until LEAST_STEPS have been compared, predictions are trusted: too little is known
    about them, and a model without steps predicts nothing. A pause between two steps counts as a long step, so half of
    them may be wrong before trust ends. O(1) a step.
    """

    def __init__(self, within_factor: float = WITHIN_FACTOR) -> None:
        if not within_factor > 1:
            raise ConfigError.of("within_factor", within_factor, "more than 1")
        self.within_factor = within_factor
        self.trusted = True
        self._held: deque[bool] = deque()
        self._num_held = 0

    @property
    def share_held(self) -> float | None:
        """The share of steps that took about as long as predicted; None before LEAST_STEPS."""
        return self._num_held / len(self._held) if len(self._held) >= LEAST_STEPS else None

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """A step with prediction `predicted_s` took `actual_s`; unknown values (0 or less) are not counted."""
        if predicted_s <= 0 or actual_s <= 0:
            return
        if len(self._held) == WINDOW_STEPS:
            self._num_held -= self._held.popleft()
        held = predicted_s <= actual_s * self.within_factor and actual_s <= predicted_s * self.within_factor
        self._held.append(held)
        self._num_held += held
        share = self.share_held
        if share is not None:
            self.trusted = share >= LEAST_SHARE + (0.0 if self.trusted else MARGIN)
