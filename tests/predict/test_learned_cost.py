from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headway.core.batch_shape import BatchShape, StepKind
from headway.predict.steps.learned import JudgedSteps, StepClock
from headway.predict.steps.step_time import READY_STEPS, StepTimeModel
from tests.predict.shapes import batch, decodes


@dataclass
class Lessons:
    """Keeps what it was taught: (jobs, tokens, seconds)."""

    taught: list[tuple[int, int, float]] = field(default_factory=list)

    ready: bool = False

    def wants(self, step: int) -> bool:
        return True

    def observe(self, shape: BatchShape, seconds: float) -> None:
        self.taught.append((shape.num_jobs, shape.num_tokens, round(seconds, 9)))


NOTHING = BatchShape()


@pytest.fixture
def model() -> Lessons:
    return Lessons()


@pytest.fixture
def clock(model: Lessons) -> StepClock:
    return StepClock(model)


def test_one_step_at_a_time_is_timed_from_its_dispatch(model: Lessons, clock: StepClock) -> None:
    # Dispatched at 10 and 12, finished at 11 and 12.25: the second took 0.25 s, the idle second is not its own.
    for dispatched_s, finished_s in ((10.0, 11.0), (12.0, 12.25)):
        clock.dispatched(batch((1, 4), (7, 0)), dispatched_s)
        clock.finished(finished_s)
    clock.learn()
    assert model.taught == [(2, 8, 1.0), (2, 8, 0.25)]


def test_two_steps_in_flight_are_timed_from_end_to_end(model: Lessons, clock: StepClock) -> None:
    # Both were dispatched by 10.1; the device ended them at 11.0 and 11.4: the second took 0.4 s.
    clock.dispatched(decodes(1, 5), 10.0)
    clock.dispatched(batch((1, 5), (1, 5), (100, 0)), 10.1)
    clock.finished(11.0)
    clock.dispatched(decodes(1, 6), 11.1)
    clock.finished(11.4)
    clock.finished(11.9)
    clock.learn()
    assert model.taught == [(1, 1, 1.0), (3, 102, 0.4), (1, 1, 0.5)]


def test_empty_steps_teach_nothing_and_are_no_part_of_the_next(model: Lessons, clock: StepClock) -> None:
    clock.dispatched(NOTHING, 10.2)
    clock.finished(10.3)
    clock.dispatched(batch((500, 0)), 10.4)
    clock.finished(10.9)  # the first after an idle engine: where little is asked prompts have no other
    clock.dispatched(decodes(1, 5), 11.0)
    clock.finished(11.2)
    clock.learn()
    assert model.taught == [(1, 500, 0.5), (1, 1, 0.2)]


def test_a_step_without_a_shape_keeps_the_chain(model: Lessons, clock: StepClock) -> None:
    # The middle step is not learned from, but it is work: the third ran from 10.7 to 11.0.
    clock.dispatched(decodes(1, 5), 10.0)
    clock.dispatched(None, 10.1)
    clock.finished(10.3)
    clock.dispatched(decodes(1, 6), 10.4)
    clock.finished(10.7)
    clock.finished(11.0)
    clock.learn()
    assert model.taught == [(1, 1, 0.3), (1, 1, 0.3)]


def test_it_teaches_when_asked_to_and_nothing_twice(model: Lessons, clock: StepClock) -> None:
    for number in range(3):
        clock.dispatched(decodes(1, 5), 10.0 + number)
        clock.finished(10.25 + number)
    assert model.taught == []
    clock.learn()
    clock.learn()
    assert model.taught == [(1, 1, 0.25)] * 3


def test_lessons_are_apart_once_the_model_is_ready(model: Lessons, clock: StepClock) -> None:
    clock.dispatched(decodes(1, 5), 10.0)
    assert clock.learns_next(10.01, StepKind.DECODE)
    model.ready = True
    assert not clock.learns_next(10.01, StepKind.DECODE)
    # A step that teaches nothing does not put the next lesson off.
    clock.dispatched(None, 10.04)
    assert clock.learns_next(10.05, StepKind.DECODE)
    clock.dispatched(NOTHING, 10.05)
    assert clock.learns_next(10.06, StepKind.DECODE)


def test_a_step_that_is_the_one_before_once_more_teaches_seldom(model: Lessons, clock: StepClock) -> None:
    clock.dispatched(decodes(1, 5), 10.0)
    assert clock.learns_next(10.01, StepKind.DECODE, alike=True), "while nothing is known every step teaches"
    model.ready = True
    assert not clock.learns_next(10.2, StepKind.DECODE, alike=True)
    assert clock.learns_next(10.25, StepKind.DECODE, alike=True)
    assert clock.learns_next(10.2, StepKind.DECODE)


def test_a_ready_model_chooses_among_decodes_and_is_taught_all_prompts() -> None:
    model = StepTimeModel()
    for count in range(1, READY_STEPS + 1):
        model.observe(decodes(count, 100), 0.01)
    clock = StepClock(model)
    clock.dispatched(decodes(1, 5), 10.0)
    assert not model.wants(1)
    assert not clock.learns_next(11.0, StepKind.DECODE)
    assert clock.learns_next(11.0, StepKind.PREFILL)
    assert clock.learns_next(10.04, StepKind.PREFILL)  # of its kind it is the first


def test_of_a_kind_that_is_rare_every_step_teaches(model: Lessons, clock: StepClock) -> None:
    # Prompts apart from decodes, and both together once: lessons of the one kind do not hide the other.
    model.ready = True
    clock.dispatched(batch((5, 0)), 10.0)
    clock.dispatched(decodes(3, 100), 10.01)
    assert not clock.learns_next(10.02, StepKind.PREFILL)
    assert not clock.learns_next(10.02, StepKind.DECODE)
    assert clock.learns_next(10.02, StepKind.MIXED)
    clock.dispatched(batch((5, 0), (1, 10)), 10.02)
    assert not clock.learns_next(10.06, StepKind.MIXED)  # too soon after the last one
    assert clock.learns_next(10.06, StepKind.PREFILL)


def test_in_flight_counts_steps_with_work(clock: StepClock) -> None:
    assert not clock.in_flight
    clock.dispatched(NOTHING, 10.0)
    assert not clock.in_flight
    clock.dispatched(None, 10.1)
    assert clock.in_flight
    clock.finished(10.2)
    assert clock.in_flight
    clock.finished(10.3)
    assert not clock.in_flight


def test_an_output_without_a_step_is_an_error(clock: StepClock) -> None:
    with pytest.raises(IndexError):
        clock.finished(1.0)


def test_it_teaches_the_model_it_was_given() -> None:
    model = StepTimeModel()
    clock = StepClock(model)
    for index in range(30):
        clock.dispatched(decodes(1, 100), float(index))
        clock.finished(index + 0.5)
        clock.learn()
    assert model.observed_steps == 30
    assert model.step_s(decodes(1, 100)) == pytest.approx(0.5, rel=1e-3)


def test_with_no_model_no_shape_is_wanted_and_steps_are_followed_all_the_same() -> None:
    clock = StepClock(None)
    assert not any(clock.learns_next(10.0, kind) for kind in StepKind)
    clock.dispatched(None, 10.0)
    assert clock.in_flight
    clock.finished(10.2)
    clock.learn()
    assert not clock.in_flight


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
