"""By hand: decodes are predicted to take a second, prompts three."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.plan import StepOutcome, StepPlan
from headway.core.step_quality import StepTimeQuality
from headway.policies.order.compared_steps import ComparedSteps
from tests.strategies import decoding, prefilling

ANSWER, PROMPT = decoding("x"), prefilling("p", prompt=5000, computed=300)


class Turns(UnknownCost):
    """Counts what it is asked."""

    asked = 0

    def step_s(self, shape: BatchShape) -> float:
        self.asked += 1
        return 3.0 if shape.num_prefill_tokens else 1.0


class Heard(StepTimeQuality):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, float]] = []

    def observe(self, predicted_s: float, actual_s: float) -> None:
        super().observe(predicted_s, actual_s)
        self.told.append((predicted_s, actual_s))


def compared(kinds: str, taken_s: Sequence[float], cost: Turns | None = None) -> list[tuple[float, float]]:
    """What is told of steps, `d` of decodes, `p` of a prompt, `-` of nobody, each so long after the one before."""
    heard = Heard()
    steps = ComparedSteps(cost or Turns(), heard)
    for kind, step_s in zip(kinds, taken_s, strict=True):
        tokens = {"d": {ANSWER: 1}, "p": {PROMPT: 100}, "-": {}}[kind]
        steps.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens=tokens), step_s)
    return heard.told


def test_the_first_two_of_every_four_are_held_against_the_two_times_after_them() -> None:
    cost = Turns()
    assert compared("dpddppdd", [0, 1.1, 2.9, 1, 1, 3.1, 3.2, 1], cost) == [
        (1.0 + 3.0, 1.1 + 2.9),
        (3.0 + 3.0, 3.1 + 3.2),
    ]
    assert cost.asked == 4


@pytest.mark.parametrize("lag", [0, 1])
def test_steps_that_take_turns_are_held_against_what_both_take(lag: int) -> None:
    # With a step in flight the time between two plans is that of the step before.
    taken_s = [3.0 if (step - lag) % 2 else 1.0 for step in range(-1, 199)]
    assert set(compared("dp" * 100, taken_s)) == {(4.0, 4.0)}


@pytest.mark.parametrize("taken_s", [[1, 0, 1, 1], [1, 1, 0, 1]])
def test_two_of_which_one_is_not_known_are_not_compared(taken_s: list[float]) -> None:
    told = compared("dddd", taken_s)
    assert all(predicted_s == 0 or actual_s == 0 for predicted_s, actual_s in told)


def test_nothing_is_predicted_of_a_step_of_nobody() -> None:
    cost = Turns()
    assert compared("-d--", [1, 1, 1, 1], cost) == [(0.0, 2.0)]
    assert cost.asked == 0
