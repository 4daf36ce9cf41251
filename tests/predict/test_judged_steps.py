from __future__ import annotations

from headway.core.batch_shape import BatchShape, StepKind
from headway.predict.judged_steps import JudgedSteps
from headway.predict.step_clock import StepClock
from headway.predict.step_time import READY_STEPS, StepTimeModel
from tests.predict.shapes import decodes


def test_each_prediction_is_told_before_the_model_learns_from_what_came() -> None:
    told: list[tuple[BatchShape, float, float]] = []
    model = StepTimeModel()
    clock = StepClock(JudgedSteps(model, lambda *step: told.append(step)))
    now_s = 0.0
    for step in range(READY_STEPS + 9):
        assert clock.learns_next(now_s, StepKind.DECODE) == model.wants(step)
        shape = decodes(1 + step % 7, 100)
        clock.dispatched(shape if clock.learns_next(now_s, StepKind.DECODE) else None, now_s)
        now_s += 0.1 * (1 + step % 7)
        clock.finished(now_s)
        clock.learn()
    assert [predicted_s for _, predicted_s, _ in told[:READY_STEPS]] == [0.0] * READY_STEPS
    later = told[READY_STEPS:]
    assert later
    assert all(abs(predicted_s / took_s - 1) < 0.2 for _, predicted_s, took_s in later)
    assert len(told) == model.observed_steps
