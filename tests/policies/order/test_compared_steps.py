"""By hand: decodes are predicted to take a second, prompts three."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.plan import StepOutcome, StepPlan
from headway.core.prediction_quality import StepTimeQuality
from headway.policies.order.compared_steps import ComparedSteps
from tests.strategies import decoding, prefilling

ANSWER, PROMPT = decoding("x"), prefilling("p", prompt=5000, computed=300)


class Turns(UnknownCost):
    """Counts what it is asked."""

    asked = 0

    def step_s(self, shape: BatchShape) -> float:
        self.asked += 1
        return 3.0 if shape.num_prefill_tokens else 1.0


class Unknown(Turns):
    """Counts, and knows nothing."""

    def step_s(self, shape: BatchShape) -> float:
        super().step_s(shape)
        return 0.0


class Heard(StepTimeQuality):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, float]] = []

    def observe(self, predicted_s: float, actual_s: float) -> None:
        super().observe(predicted_s, actual_s)
        self.told.append((predicted_s, actual_s))


def compared(kinds: str, taken_s: Sequence[float], cost: Turns | None = None) -> list[tuple[float, float]]:
    """The reported errors of steps: `d` of decodes, `p` of a prompt, `-` empty; each this long after the one before."""
    heard = Heard()
    steps = ComparedSteps(cost or Turns(), heard)
    for kind, step_s in zip(kinds, taken_s, strict=True):
        tokens = {"d": {ANSWER: 1}, "p": {PROMPT: 100}, "-": {}}[kind]
        steps.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens=tokens), step_s)
    return heard.told


def test_the_time_after_the_first_two_of_every_four_is_held_against_the_nearer_of_them() -> None:
    cost = Turns()
    assert compared("dpddppdd", [0, 1.1, 2.9, 1, 1, 3.1, 3.2, 1], cost) == [(3.0, 2.9), (3.0, 3.2)]
    assert cost.asked == 4


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kinds", ["dp", "dpp", "ddp", "dddp", "dddddp"])
def test_steps_that_differ_hold_whether_one_is_in_flight_or_none(kinds: str, lag: int) -> None:
    # With a step in flight the time between two plans is that of the step before.
    steps = kinds * 60
    taken_s = [3.0 if steps[step - lag - 1] == "p" else 1.0 for step in range(len(steps))]
    assert {predicted_s / actual_s for predicted_s, actual_s in compared(steps, taken_s)} == {1.0}


def test_a_step_that_takes_three_times_what_either_was_predicted_does_not_hold() -> None:
    assert compared("dpd", [1, 1, 9]) == [(3.0, 9)]


def test_a_time_that_is_not_known_is_not_compared() -> None:
    assert compared("ddd", [1, 1, 0]) == []
    assert compared("ddd", [1, 0, 1]) == [(1.0, 1)]


def test_nothing_is_predicted_of_a_step_of_nobody() -> None:
    cost = Turns()
    assert compared("----", [1, 1, 1, 1], cost) == []
    assert cost.asked == 0


def test_a_step_told_once_more_is_predicted_anew_after_64_or_when_nobody_knew() -> None:
    cost, heard = Turns(), Heard()
    steps = ComparedSteps(cost, heard)
    again = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={ANSWER: 1})
    for _ in range(64):
        steps.observe(again, 1.0)
    assert cost.asked == 1
    assert heard.told == [(1.0, 1.0)] * 16
    for _ in range(8):
        steps.observe(again, 1.0)
    assert cost.asked == 2
    steps.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens={ANSWER: 1}), 1.0)
    assert cost.asked == 3, "another step that looks alike"
    unknown = Unknown()
    never = ComparedSteps(unknown, heard)
    for _ in range(8):
        never.observe(again, 1.0)
    assert unknown.asked == 4, "who does not know yet is asked each time"


def test_a_step_is_predicted_anew_once_one_of_its_jobs_is_gone() -> None:
    cost = Turns()
    steps = ComparedSteps(cost, Heard())
    again = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={ANSWER: 1})
    steps.observe(again, 1.0)
    steps.forget(PROMPT)
    steps.observe(again, 1.0)
    assert cost.asked == 1
    steps.forget(ANSWER)
    for _ in range(3):
        steps.observe(again, 1.0)
    assert cost.asked == 2
