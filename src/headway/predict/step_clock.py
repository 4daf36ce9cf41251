"""How long each step took, as seen by who schedules them."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Protocol

from headway.core.batch_shape import BatchShape, StepKind

LESSONS_APART_S = 0.05
"""A lesson costs as much as planning a step: a tenth of a millisecond and more, where steps themselves take few."""
ALIKE_APART_S = 0.25
"""Steps of the same decodes again and again say hardly more than the first of them."""


class LearnsSteps(Protocol):
    """What learns from finished steps."""

    @property
    def ready(self) -> bool:
        """Whether it has seen enough steps to take its time with more."""
        ...

    def wants(self, step: int) -> bool:
        """Whether the `step`-th step is worth the cost of its shape."""
        ...

    def observe(self, shape: BatchShape, seconds: float) -> None:
        """A step of this shape took this long."""
        ...


class StepClock:
    """Pairs each dispatched step with its output, in order, and teaches a step-time model.

    A step's time is finished(n) - max(dispatched(n), finished(n-1)): with two steps in flight the second
    starts on the device when the first ends. Empty steps are left out. The first after an idle engine is not: where
    little is asked, prompts have no other. Once the model is ready lessons of a kind are LESSONS_APART_S apart, so that
    the rare ones are all heard: a policy may do a kind of step now and then only to learn what it takes. Of decodes
    alone it chooses some, steps with prompts are unlike each other. Lessons are given by `learn`, when nobody waits for
    it; with no model there are none.
    """

    def __init__(self, model: LearnsSteps | None) -> None:
        self._model = model
        self._dispatched: deque[tuple[BatchShape | None, float]] = deque()
        self._last_finished_s = -inf
        self._steps = 0
        self._taught_s = dict.fromkeys(StepKind, -inf)
        self._lessons: list[tuple[BatchShape, float]] = []

    def learns_next(self, now_s: float, kind: StepKind, *, alike: bool = False) -> bool:
        """Whether the shape of the next step, of this kind, is wanted; it is dispatched about now.

        `alike`: it is the one before once more.
        """
        if self._model is None:
            return False
        due_s = self._taught_s[kind] + (ALIKE_APART_S if alike else LESSONS_APART_S)
        due = now_s >= due_s or not self._model.ready
        return due and (kind is not StepKind.DECODE or self._model.wants(self._steps))

    @property
    def in_flight(self) -> bool:
        """Whether a step with work has been dispatched and its output not yet processed."""
        return any(shape is None or shape.num_jobs for shape, _ in self._dispatched)

    def dispatched(self, shape: BatchShape | None, now_s: float) -> None:
        """A step went to the workers; None is one with work that nothing is to be learned from."""
        self._steps += 1
        if shape is not None and shape.num_jobs:
            self._taught_s[shape.kind] = now_s
        self._dispatched.append((shape, now_s))

    def finished(self, now_s: float) -> None:
        """The output of the oldest step came back."""
        shape, started_s = self._dispatched.popleft()
        if shape is not None and shape.num_jobs:
            self._lessons.append((shape, now_s - max(started_s, self._last_finished_s)))
        self._last_finished_s = now_s

    def learn(self) -> None:
        """Teach the model what steps have finished since."""
        if self._model is not None:
            for shape, seconds in self._lessons:
                self._model.observe(shape, seconds)
        self._lessons.clear()
