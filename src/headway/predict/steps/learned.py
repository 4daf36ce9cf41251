"""A policy's cost model of one engine, and the clock that teaches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from headway.core.batch_shape import BatchShape, StepKind
from headway.predict.steps.copies import CopyTimeModel
from headway.predict.steps.step_time import StepTimeModel

LESSONS_APART_S = 0.05
"""A lesson costs as much as planning a step, a tenth of a millisecond and more, so lessons are this far apart."""
ALIKE_APART_S = 0.25
"""Repeated steps of the same decodes teach hardly more than the first, so they are this far apart."""


class LearnsSteps(Protocol):
    """A model that learns from finished steps."""

    @property
    def ready(self) -> bool:
        """Whether it has seen enough steps to be more selective."""
        ...

    def wants(self, step: int) -> bool:
        """Whether the `step`-th step is worth the cost of its shape."""
        ...

    def observe(self, shape: BatchShape, seconds: float) -> None:
        """A step of this shape took this long."""
        ...


class StepClock:
    """Pairs each dispatched step with its output, in order, and teaches a step-time model.

    A step's time is finished(n) - max(dispatched(n), finished(n-1)): with two steps in flight the second starts on the
    device when the first ends. Empty steps are left out. The first step after an idle engine is not: with light
    traffic, prompts have no other. Once the model is ready, lessons of a kind are LESSONS_APART_S apart, so that rare
    kinds are all used: a policy may run a kind of step now and then only to learn its time. Some steps of decodes alone
    are selected; steps with prompts all differ. `learn` gives the lessons, beside the next step; without a model there
    are none.
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

        `alike`: it repeats the step before.
        """
        if self._model is None:
            return False
        due_s = self._taught_s[kind] + (ALIKE_APART_S if alike else LESSONS_APART_S)
        due = now_s >= due_s or not self._model.ready
        return due and (kind is not StepKind.DECODE or self._model.wants(self._steps))

    @property
    def in_flight(self) -> bool:
        """Whether a step with work was dispatched and its output was not processed yet."""
        return any(shape is None or shape.num_jobs for shape, _ in self._dispatched)

    def dispatched(self, shape: BatchShape | None, now_s: float) -> None:
        """A step went to the workers; None for one with work from which nothing is to be learned."""
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
        """Teach the model the steps that have finished since."""
        if self._model is not None:
            for shape, seconds in self._lessons:
                self._model.observe(shape, seconds)
        self._lessons.clear()


class JudgedSteps:
    """Wraps a step-time model, and reports each lesson: shape, predicted seconds (0: unknown), and real seconds.

    Only steps from which the model learns are reported, a few once it is ready, since their shapes exist anyway. Adds
    one prediction to each of those, about 3 us.
    """

    def __init__(self, model: StepTimeModel, tell: Callable[[BatchShape, float, float], None]) -> None:
        self._model = model
        self._tell = tell

    @property
    def ready(self) -> bool:
        """Whether the model is ready."""
        return self._model.ready

    def wants(self, step: int) -> bool:
        """Whether the model wants the step."""
        return self._model.wants(step)

    def observe(self, shape: BatchShape, seconds: float) -> None:
        """A step of this shape took this long."""
        if seconds > 0:
            self._tell(shape, self._model.step_s(shape), seconds)
        self._model.observe(shape, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCost:
    """A policy's cost model, composed of models that the owner of the clock teaches.

    Until a copy was seen in one direction it is assumed as fast as in the other: a victim comes back long after it
    left, and half a round trip is no estimate of the whole. Loads from a connector's store are counted in tokens,
    copies to and from the host in blocks.
    """

    steps: StepTimeModel
    kv_tokens: int = 0
    to_host: CopyTimeModel = field(default_factory=CopyTimeModel)
    to_device: CopyTimeModel = field(default_factory=CopyTimeModel)
    from_store: CopyTimeModel = field(default_factory=CopyTimeModel)

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of one prompt of `num_tokens` tokens prefilled alone."""
        return self.steps.prefill_s(num_tokens)

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step of this shape."""
        return self.steps.step_s(shape)

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape stays within with this probability (0-1, exclusive)."""
        return self.steps.predict(shape).within_s(confidence)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds of a copy of `num_blocks` KV blocks to the host after its start."""
        return self.to_host.seconds(num_blocks) or self.to_device.seconds(num_blocks)

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds of a copy of `num_blocks` KV blocks back to the device after its start."""
        return self.to_device.seconds(num_blocks) or self.to_host.seconds(num_blocks)

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load of `num_tokens` tokens' KV from a connector's store after its start."""
        return self.from_store.seconds(num_tokens)
