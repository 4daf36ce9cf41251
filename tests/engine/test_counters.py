from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import Departure, Fate, Reason, StepOutcome, StepPlan
from headway.engine.step.counters import TOLD_EVERY_S, Counters
from tests.strategies import UNTIMED


def test_every_total_starts_at_zero_and_is_told() -> None:
    told = Counters().flat()
    assert set(told.values()) == {0}
    assert {f"differences.{reason}" for reason in Reason} <= told.keys()
    assert {f"departures.{departure}" for departure in Departure} <= told.keys()


def test_every_field_has_a_flat_name() -> None:
    counters = Counters()
    for number, field in enumerate(fields(Counters), start=1):
        if field.type == "int":
            setattr(counters, field.name, number)
    told = counters.flat()
    for number, field in enumerate(fields(Counters), start=1):
        if field.type == "int":
            assert told[field.name] == number


def test_times_are_whole_microseconds() -> None:
    told = Counters(scheduler_s=1.2345678, vllm_schedule_s=0.0000004).flat()
    assert (told["scheduler_us"], told["vllm_schedule_us"]) == (1_234_568, 0)


def test_a_step_counts_what_the_plan_did_not_want_beside_what_it_did() -> None:
    planned, victim, ran, refused = (
        Job(id=name, arrival_s=0.0, num_prompt_tokens=8, max_output_tokens=4) for name in "abcd"
    )
    counters = Counters()
    counters.stepped(
        StepOutcome(
            now_s=0.0,
            plan=StepPlan(preempt={planned: Fate.SWAP}),
            tokens={ran: 8},
            num_tokens=8,
            admitted=[ran],
            preempted={planned: Fate.SWAP, victim: Fate.RECOMPUTE},
            passed_over={refused: Reason.SEATS},
        )
    )
    counters.stepped(StepOutcome(now_s=1.0, plan=StepPlan()))
    assert {name: total for name, total in counters.flat().items() if total} == {
        "steps": 2,
        "empty_steps": 1,
        "scheduled_tokens": 8,
        "admissions": 1,
        "shortage_preemptions": 1,
        "swaps": 1,
        f"differences.{Reason.SEATS}": 1,
    }


def test_growth_is_since_it_was_last_asked() -> None:
    counters = Counters(steps=5)
    assert counters.grown()["steps"] == 5
    assert set(counters.grown().values()) == {0}
    counters.steps += 2
    counters.departures[Departure.EXPIRED] += 1
    grown = counters.grown()
    assert (grown["steps"], grown["departures.expired"], sum(grown.values())) == (2, 1, 3)


def test_news_come_at_intervals_and_the_last_at_once() -> None:
    counters = Counters(steps=5)
    assert counters.news(7.0, is_last=False)["steps"] == 5
    counters.steps += 2
    assert counters.news(7.0 + TOLD_EVERY_S / 2, is_last=False) == {}
    assert counters.news(7.0 + TOLD_EVERY_S, is_last=False)["steps"] == 2
    counters.steps += 1
    assert counters.news(7.0 + TOLD_EVERY_S, is_last=True)["steps"] == 1


@UNTIMED
@given(times_s=st.lists(st.floats(0, 1e-5), max_size=30))
def test_growth_adds_up_to_the_total(times_s: list[float]) -> None:
    counters, added = Counters(), 0
    for time_s in times_s:
        counters.scheduler_s += time_s
        grown = counters.grown()["scheduler_us"]
        assert grown >= 0
        added += grown
    assert added == counters.flat()["scheduler_us"]
