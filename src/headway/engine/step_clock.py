"""How long each step took, as the scheduler sees it."""

from __future__ import annotations

from collections import deque

from headway.core.plan import StepOutcome
from headway.predict.step_time import OnlineStepTime


class StepClock:
    """Pairs each dispatched step with its output, in order, and teaches the step-time model.

    A step's time is finished(n) - max(dispatched(n), finished(n-1)): with two steps in flight the second
    starts on the device when the first ends. Empty steps and the first after an idle engine are left out.
    """

    def __init__(self, model: OnlineStepTime) -> None:
        self._model = model
        self._dispatched: deque[tuple[int, int, float]] = deque()
        self._last_finished_s: float | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a step with work has been dispatched and its output not yet processed."""
        return any(jobs for jobs, _, _ in self._dispatched)

    def dispatched(self, outcome: StepOutcome, now_s: float) -> None:
        """A step went to the workers."""
        jobs = len(outcome.tokens)
        self._dispatched.append((jobs, outcome.num_tokens - jobs, now_s))

    def finished(self, now_s: float) -> None:
        """The output of the oldest step came back."""
        jobs, prefill_tokens, started_s = self._dispatched.popleft()
        if jobs and self._last_finished_s is not None:
            self._model.observe(jobs, prefill_tokens, now_s - max(started_s, self._last_finished_s))
        self._last_finished_s = now_s if jobs else None
