"""Seconds of a step, learned while serving."""

from __future__ import annotations

_FORGETTING = 0.998
"""Weight of a step falls by half in about 350 learned ones, so the fit follows a changing load."""
_PRIOR_VARIANCE = 1e6
_READY_STEPS = 20
_THINNING = 4
"""Once ready, one step in 4 is learned from: the fit hardly gains from more, and it runs beside the scheduler."""


class OnlineStepTime:
    """Step time = a + b x jobs + c x prefill tokens, by recursive least squares with forgetting.

    Pure Python and O(1) a step: it runs beside the scheduler. Until 20 steps were seen it predicts 0, so
    nothing is decided by a guess. Attention over long contexts is left to the full model.
    """

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0]
        self._covariance = [[_PRIOR_VARIANCE if row == col else 0.0 for col in range(3)] for row in range(3)]
        self.observed_steps = 0

    def predict_s(self, num_jobs: int, num_prefill_tokens: int) -> float:
        """Predicted seconds of a step, never negative."""
        if self.observed_steps < _READY_STEPS:
            return 0.0
        base, per_job, per_token = self._weights
        return max(0.0, base + per_job * num_jobs + per_token * num_prefill_tokens)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens takes when prefilled alone."""
        return self.predict_s(1, num_tokens - 1)

    def observe(self, num_jobs: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn from a finished step: its jobs, its tokens beyond one a job, and how long it took."""
        self.observed_steps += 1
        if self.observed_steps > _READY_STEPS and self.observed_steps % _THINNING:
            return
        features = [1.0, float(num_jobs), float(num_prefill_tokens)]
        projected = [sum(row[col] * features[col] for col in range(3)) for row in self._covariance]
        scale = _FORGETTING + sum(features[row] * projected[row] for row in range(3))
        gain = [value / scale for value in projected]
        error = seconds - sum(
            weight * feature for weight, feature in zip(self._weights, features, strict=True)
        )
        self._weights = [weight + step * error for weight, step in zip(self._weights, gain, strict=True)]
        self._covariance = [
            [(self._covariance[row][col] - gain[row] * projected[col]) / _FORGETTING for col in range(3)]
            for row in range(3)
        ]
