"""What jobs that can wait may take beside others, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.batching.spare_room import SpareRoom
from headway.policies.order.on_time import OnTime
from tests.policies.instance import LinearCost
from tests.strategies import decoding, ids, make_job, prefilling

HOURS = Slo(deadline_s=4 * 3600.0)


def others(count: int) -> list[Job]:
    """Decodes that cannot wait."""
    return [decoding(f"x{number:03}") for number in range(count)]


def patient(count: int, *, prompt: int = 4) -> list[Job]:
    """Waiting requests of a batch."""
    return [make_job(f"b{number:03}", prompt=prompt, slo=HOURS) for number in range(count)]


def limited(
    residents: list[Job],
    waiting: list[Job],
    *,
    seats: int = 8,
    room: SpareRoom | None = None,
) -> StepPlan:
    """The plan to run all residents and to start all that wait, as limited."""
    order = OnTime(LinearCost(), patience_s=1e9)
    for job in (*residents, *waiting):
        order.add(job)
    for job in residents:
        order.remove(job)
    view = StepView(residents=residents, waiting=waiting, max_run=seats, max_resident=seats, total_blocks=900)
    plan = StepPlan(run=residents, admit=waiting, token_budget=640)
    return (room or SpareRoom()).limit(view, plan, order)


def test_an_engine_without_others_is_a_batch_s_own() -> None:
    assert ids(limited([], patient(9, prompt=500)).admit) == [f"b{number:03}" for number in range(8)]


def test_the_more_seats_others_take_the_more_are_kept_for_them() -> None:
    # Of 80 seats 20 (1 + 1/16) = 21.25 are kept, 40 (1 + 1/4) = 50, and 54 (1 + 0.456) = 78.6.
    for count, started in ((20, 59), (40, 30), (54, 1), (55, 0)):
        assert len(limited(others(count), patient(80), seats=80).admit) == started


def test_jobs_that_run_keep_their_seats_and_count() -> None:
    # As above 59 seats, of which three are taken, or sixty.
    for running, started in ((3, 56), (60, 0)):
        batch = [decoding(f"r{number:02}", slo=HOURS) for number in range(running)]
        plan = limited([*others(20), *batch], patient(80), seats=80)
        assert (len(plan.run), len(plan.admit)) == (20 + running, started)


def test_a_newcomer_that_cannot_wait_starts_and_counts_as_one_that_runs() -> None:
    newcomer = make_job("a", prompt=4)
    # 5 (1 + 25 / 64) = 6.95 of 8 are kept.
    assert ids(limited(others(4), [newcomer, *patient(3)]).admit) == ["a", "b000"]


def test_seats_stay_free_for_others_a_while_after_they_have_gone() -> None:
    room = SpareRoom()
    for _ in range(128):
        limited(others(8), [*patient(1)], room=room)
        room.observe(ran=True)
    # The mean is 8 (1 - (127 / 128)^128) = 5.07: 7.1 of 8 seats are kept. After 128 steps more it is 1.86: 1.96 are.
    assert len(limited([], patient(8), room=room).admit) == 1
    for _ in range(128):
        limited([], patient(8), room=room)
        room.observe(ran=True)
    limited([], patient(8), room=room)
    room.observe(ran=False)  # an idle engine tells nothing
    assert len(limited([], patient(8), room=room).admit) == 6


@pytest.mark.parametrize(("before", "tokens"), [(0, 256), (100, 156), (256, 0), (300, 0)])
def test_prompts_that_can_wait_get_what_others_leave_of_a_few_tokens(before: int, tokens: int) -> None:
    [prompt] = patient(1, prompt=500)
    first = [prefilling("a", prompt=before, computed=0)] if before else []
    plan = limited([*others(3), *first], [prompt], seats=80)
    assert ids(plan.run) == ids([*others(3), *first])
    assert plan.chunk_cap == ({prompt: tokens} if tokens else {})
    assert ids(plan.admit) == (["b000"] if tokens else [])


def test_prompts_in_progress_come_before_newcomers_and_may_sit_a_step_out() -> None:
    begun = [prefilling(f"r{number}", prompt=208, computed=8, slo=HOURS) for number in range(3)]
    plan = limited([*others(3), *begun], patient(2), seats=80)
    assert ids(plan.run) == ["x000", "x001", "x002", "r0", "r1"]
    assert (plan.chunk_cap, plan.admit) == ({begun[1]: 56}, [])


@given(
    residents=st.integers(0, 12),
    running=st.integers(0, 4),
    newcomers=st.integers(0, 3),
    waiting=st.integers(0, 12),
    prompt=st.integers(0, 60),
)
def test_others_never_lose_anything(
    residents: int, running: int, newcomers: int, waiting: int, prompt: int
) -> None:
    first = [make_job(f"a{number}", prompt=prompt) for number in range(newcomers)]
    batch = [decoding(f"r{number}", slo=HOURS) for number in range(running)]
    here = [*others(residents), *batch]
    waits = [*first, *patient(waiting, prompt=prompt)]
    plan = limited(here, waits, seats=16)
    assert list(plan.run) == here
    assert list(plan.admit)[:newcomers] == first
    assert not set(first) & set(plan.chunk_cap)
