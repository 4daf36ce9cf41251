"""Seconds of a step, learned while serving."""

from __future__ import annotations

_FORGETTING = 0.998
"""Weight of a step falls by half in about 350 learned ones, so the fit follows a changing load."""
_FLOOR = 1e-4
"""What is always known of each coefficient, in steps: so little that 20 real ones outweigh it."""
_READY_STEPS = 20
_THINNING = 4
"""Once ready, one step in 4 is learned from: the fit hardly gains from more, and it runs beside the scheduler."""


class OnlineStepTime:
    """Step time = a + b x jobs + c x prefill tokens, by recursive least squares with forgetting.

    Pure Python and O(1) a step: it runs beside the scheduler. Until 20 steps were seen it predicts 0, so
    nothing is decided by a guess. What steps of late say nothing of, such as the cost of a prompt during a
    long decode, stays as it was last known. Attention over long contexts is left to the full model.
    """

    def __init__(self) -> None:
        self._weights = [0.0, 0.0, 0.0]
        self._information = [[_FLOOR if row == col else 0.0 for col in range(3)] for row in range(3)]
        self.observed_steps = 0

    def predict_s(self, num_jobs: int, num_prefill_tokens: int) -> float:
        """Predicted seconds of a step, never negative."""
        if self.observed_steps < _READY_STEPS:
            return 0.0
        base, per_job, per_thousand = self._weights
        return max(0.0, base + per_job * num_jobs + per_thousand * num_prefill_tokens / 1000)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens takes when prefilled alone."""
        return self.predict_s(1, num_tokens - 1)

    def observe(self, num_jobs: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn from a finished step: its jobs, its tokens beyond one a job, and how long it took."""
        self.observed_steps += 1
        if self.observed_steps > _READY_STEPS and self.observed_steps % _THINNING:
            return
        # Thousands of tokens: features of like size keep the arithmetic exact enough to solve.
        features = [1.0, float(num_jobs), num_prefill_tokens / 1000]
        for row, information in enumerate(self._information):
            for col in range(3):
                information[col] = _FORGETTING * information[col] + features[row] * features[col]
            information[row] += (1 - _FORGETTING) * _FLOOR
        error = seconds - sum(
            weight * feature for weight, feature in zip(self._weights, features, strict=True)
        )
        gain = _solve(self._information, features)
        self._weights = [weight + step * error for weight, step in zip(self._weights, gain, strict=True)]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """x with matrix x = right, for a symmetric positive definite matrix of 3 rows, by Cholesky's L D L^T."""
    (a, b, c), (_, d, e), (_, _, f) = matrix
    first, second = b / a, c / a
    pivot = d - first * b
    third = (e - first * c) / pivot
    last = f - second * c - third * third * pivot
    y = right[1] - first * right[0]
    z = (right[2] - second * right[0] - third * y) / last
    y = y / pivot - third * z
    return [right[0] / a - first * y - second * z, y, z]
