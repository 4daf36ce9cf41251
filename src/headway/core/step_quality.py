"""Whether predicted step times are to be trusted."""

from __future__ import annotations

from collections import deque

from headway.errors import ConfigError

WINDOW_STEPS = 64
LEAST_STEPS = 16
WITHIN_FACTOR = 1.6
LEAST_SHARE = 0.5
MARGIN = 0.15


class StepTimeQuality:
    """Watches what steps took beside what was predicted, over the last WINDOW_STEPS that were compared.

    Trust ends when fewer than LEAST_SHARE of them took between 1 / WITHIN_FACTOR and WITHIN_FACTOR of the prediction,
    and comes back when MARGIN more do. Until LEAST_STEPS have been compared predictions are trusted: they
    are then hardly known, and a model that has seen no step predicts nothing. A pause between two steps counts as
    a long step, so half of them may be wrong before anything is made of it. O(1) a step.
    """

    def __init__(self, within_factor: float = WITHIN_FACTOR) -> None:
        if not within_factor > 1:
            raise ConfigError(f"within_factor is {within_factor}; accepted: more than 1")
        self.within_factor = within_factor
        self.trusted = True
        self._held: deque[bool] = deque()
        self._num_held = 0

    @property
    def share_held(self) -> float | None:
        """The share of steps that took about what was predicted; None before LEAST_STEPS."""
        return self._num_held / len(self._held) if len(self._held) >= LEAST_STEPS else None

    def observe(self, predicted_s: float, actual_s: float) -> None:
        """A step of which `predicted_s` was predicted has taken `actual_s`; not known (0 or less) is not counted."""
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
