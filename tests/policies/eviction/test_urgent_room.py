"""Which job leaves for a newcomer that is overdue or can be in time: blocks of 4, 100 in all."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import Fate, StepPlan
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.urgent_room import make_urgent_room
from headway.policies.order.arrival import Arrival
from headway.policies.order.on_time import OnTime
from tests.policies.eviction.stage import NOW_S, Prices, resident, stage
from tests.strategies import decoding, ids, make_job

URGENT = make_job("urgent", prompt=16, arrival_s=NOW_S, slo=Slo(ttft_s=60.0))
"""Four blocks; 16 s of prompt."""


def world(
    *residents: Job, newcomer: Job = URGENT, patience_s: float = 1e9, **view: Any
) -> tuple[StepView, OnTime]:
    order = OnTime(Prices(), patience_s=patience_s)
    for job in residents:
        order.add(job)
        order.remove(job)
    order.add(newcomer)
    return stage(*residents, waiting=[newcomer], **view), order


def choose(job: Job, has_room: bool) -> Fate:
    return Fate.SWAP if has_room else Fate.RECOMPUTE


def room(view: StepView, order: Any, spared: tuple[Job, ...] = ()) -> StepPlan:
    plan = StepPlan(run=list(view.residents), admit=(), token_budget=64)
    return make_urgent_room(view, plan, order, choose, spared=spared)


def test_as_many_leave_as_it_lacks_and_no_more() -> None:
    # It lacks 4 - 1 blocks: the one that came last has 5 of them.
    early, late = resident("early", 5, waited_s=20.0), resident("late", 5)
    made = room(*world(early, late, free=1))
    assert (made.preempt, ids(made.run), made.admit) == ({late: Fate.SWAP}, ["early"], ())
    assert made.room_for is URGENT
    # It lacks 6 where there are none: both leave.
    view, order = world(early, late, newcomer=make_job("urgent", prompt=24, slo=Slo(ttft_s=500.0)))
    assert set(room(view, order).preempt) == {early, late}


def test_nobody_leaves_if_all_of_them_are_not_enough() -> None:
    view, order = world(resident("only", 2), free=1)
    assert not room(view, order).preempt


@pytest.mark.parametrize("view", [{"free": 4}, {"free": 1, "blocks_coming_free": 3}])
def test_nobody_leaves_while_there_is_room_or_will_be(view: dict[str, Any]) -> None:
    assert not room(*world(resident("a", 5), **view)).preempt


def test_one_leaves_for_what_the_watermark_keeps_free() -> None:
    # There are five blocks and it takes four, but two are to stay free: the engine would not start it.
    early, late = resident("early", 5, waited_s=20.0), resident("late", 5)
    view, order = world(early, late, free=5, watermark_blocks=2, missing_blocks=lambda job: 1)
    assert room(view, order).preempt == {late: Fate.SWAP}


def test_one_leaves_for_a_seat_alone() -> None:
    # There are blocks for it, and two that could go: the one that came last does.
    early, late = resident("early", 5, waited_s=20.0), resident("late", 5)
    for seats, made in ((2, {late: Fate.SWAP}), (3, {})):
        assert room(*world(early, late, free=4, seats=seats)).preempt == made


def test_the_last_seat_is_not_taken_from_one_in_time() -> None:
    timed = resident("timed", 5)
    timed.slo, timed.first_token_s = Slo(tbt_s=50.0), NOW_S
    assert not room(*world(timed, free=4, seats=1)).preempt


def test_what_the_prefix_cache_holds_for_it_in_residents_blocks_is_not_missing() -> None:
    # Three of its four blocks are held by who runs: one block comes free with the first victim.
    early, late = resident("early", 5, waited_s=20.0), resident("late", 1)
    view, order = world(early, late, missing_blocks=lambda job: 1)
    assert set(room(view, order).preempt) == {late}


@pytest.mark.parametrize("view", [{"missing_blocks": lambda job: 0}, {"ready": lambda job: False}])
def test_nobody_leaves_for_one_that_starts_without_or_waits_for_something_else(view: dict[str, Any]) -> None:
    # The prefix cache has the rest of it; its grammar is being compiled.
    assert not room(*world(resident("a", 5), free=1, **view)).preempt


def test_who_is_in_time_stays() -> None:
    timed = resident("timed", 5)
    timed.slo, timed.first_token_s = Slo(tbt_s=50.0), NOW_S
    assert not room(*world(timed, free=1)).preempt


def test_nobody_leaves_for_one_that_is_late_or_has_no_target() -> None:
    for newcomer in (make_job("late", prompt=16, slo=Slo(ttft_s=1.0)), make_job("patient", prompt=16)):
        assert not room(*world(resident("a", 9), newcomer=newcomer)).preempt


@pytest.mark.parametrize(("deadline_s", "leaves"), [(57.0, False), (58.0, True)])
def test_one_with_a_deadline_alone_can_spare_its_place_for_three_seconds(
    deadline_s: float, leaves: bool
) -> None:
    # The urgent one has to start at 144. This one came at 90 and has a second to go: at 146, or 147.
    slo = Slo(deadline_s=deadline_s)
    patient = decoding("patient", prompt=20, output=1, limit=2, arrival_s=90.0, slo=slo)
    view, order = world(patient, free=1)
    assert order.latest_start_s(URGENT) == 144.0
    assert bool(room(view, order).preempt) is leaves


def test_for_one_with_a_deadline_alone_nobody_with_a_target_gives_up_blocks() -> None:
    # Two have a target, one of which is late already. For a seat the late one leaves: nothing is computed again.
    newcomer = make_job("batch", prompt=16, arrival_s=NOW_S, slo=Slo(deadline_s=90.0))
    patient = decoding("patient", prompt=20, output=1, limit=2, slo=Slo(deadline_s=500.0))
    late = decoding("late", prompt=20, output=1, limit=2, slo=Slo(deadline_s=9.0))
    assert not room(*world(patient, late, newcomer=newcomer, free=1)).preempt
    assert room(*world(patient, late, newcomer=newcomer, free=4, seats=2)).preempt == {late: Fate.SWAP}
    assert room(*world(patient, resident("free", 5), newcomer=newcomer, free=1)).preempt
    # Somebody waits for the first token of this one.
    assert set(room(*world(patient, late, free=1)).preempt) == {late}


def test_the_spared_stay_and_those_computed_again_as_often_as_is_fair() -> None:
    other = resident("a", 5)
    view, order = world(other, free=1)
    assert not room(view, order, spared=(other,)).preempt
    # It has 21 tokens.
    for again, made in ((21, {other: Fate.SWAP}), (22, {})):
        other.recomputed_tokens = again
        assert room(view, order).preempt == made


def test_anybody_leaves_for_the_one_that_is_overdue_the_lowest_first() -> None:
    # `old` came a minute before and has no target: it needs 4 blocks. The one in time that may wait longest goes,
    # whatever was computed of it again; the other stays.
    old = make_job("old", prompt=16, arrival_s=NOW_S - 60.0)
    soon, later = (
        decoding(name, prompt=19, output=1, limit=9, first_token_s=NOW_S, slo=Slo(tbt_s=tbt_s))
        for name, tbt_s in (("soon", 50.0), ("later", 90.0))
    )
    later.recomputed_tokens = 99
    made = room(*world(soon, later, newcomer=old, patience_s=60.0))
    assert (made.preempt, made.room_for) == ({later: Fate.SWAP}, old)
    assert not room(*world(soon, later, newcomer=old, patience_s=61.0)).preempt


def test_the_one_that_is_overdue_leaves_for_nobody() -> None:
    old = resident("old", 5, waited_s=60.0)
    assert room(*world(old, free=1)).preempt
    assert not room(*world(old, free=1, patience_s=60.0)).preempt


def test_without_room_on_the_host_they_are_computed_again() -> None:
    other = resident("a", 5)
    assert room(*world(other, free=1, host=2)).preempt == {other: Fate.RECOMPUTE}


def test_an_order_that_does_not_know_displaces_nobody() -> None:
    view, _ = world(resident("a", 9))
    assert not room(view, Arrival()).preempt


@pytest.mark.parametrize(
    ("urgent", "token_s", "fate"), [(True, 0.25, Fate.RECOMPUTE), (True, 0.3, Fate.SWAP), (False, 0.3, None)]
)
def test_cheapest_makes_it_the_cheaper_way_if_it_is_to(
    urgent: bool, token_s: float, fate: Fate | None
) -> None:
    # Five blocks take 5 s each way, side by side, and 20 tokens 5 or 6.
    other = resident("a", 5)
    view, order = world(other, free=1)
    plan = StepPlan(run=[other], token_budget=1)
    made = Cheapest(Prices(token_s=token_s), urgent=urgent).evict(view, plan, order)
    assert made.preempt == ({other: fate} if fate else {})


HOURS = Slo(deadline_s=4 * 3600.0)


def test_what_can_wait_leaves_for_any_newcomer_but_one_of_its_kind() -> None:
    batch = decoding("batch", prompt=20, output=1, limit=2, slo=HOURS)
    without = make_job("without", prompt=16, arrival_s=NOW_S)
    for newcomer in (URGENT, without):
        assert set(room(*world(batch, newcomer=newcomer, free=1)).preempt) == {batch}
    # A resident without a target stays where the newcomer has none either.
    assert not room(*world(resident("a", 5), newcomer=without, free=1)).preempt
    another = make_job("another", prompt=16, arrival_s=NOW_S, slo=Slo(deadline_s=2 * 3600.0))
    for resident_job in (batch, resident("a", 5)):
        assert not room(*world(resident_job, newcomer=another, free=1)).preempt
