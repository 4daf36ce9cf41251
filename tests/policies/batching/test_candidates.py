from __future__ import annotations

import pytest

from headway.policies.batching.admission import SCAN_AHEAD, candidates
from headway.policies.batching.decode_first import DecodeFirst
from tests.policies.batching.scene import Scene
from tests.strategies import decoding, ids, make_job

MANY = [make_job(f"{place:03}") for place in range(100)]


@pytest.mark.parametrize(("max_run", "seats"), [(5, 3), (3, 1)])
def test_the_free_seats_and_a_stated_number_more(max_run: int, seats: int) -> None:
    scene = Scene(DecodeFirst(), residents=[decoding("a"), decoding("b")], max_run=max_run).wait(*MANY)
    assert candidates(scene.view, scene.order, ()) == MANY[: seats + SCAN_AHEAD]


def test_nobody_without_a_seat() -> None:
    scene = Scene(DecodeFirst(), residents=[decoding()], max_run=1).wait(*MANY)
    assert candidates(scene.view, scene.order, ()) == []


@pytest.mark.parametrize(("seats", "wanted"), [(0, 0), (1, 1 + SCAN_AHEAD), (9, 8 + SCAN_AHEAD)])
def test_fewer_seats_may_be_asked_for_but_not_more(seats: int, wanted: int) -> None:
    scene = Scene(DecodeFirst()).wait(*MANY)
    assert candidates(scene.view, scene.order, (), seats=seats) == MANY[:wanted]


def test_those_who_leave_are_replaced_by_the_next() -> None:
    scene = Scene(DecodeFirst(), max_run=1).wait(*MANY)
    leaving = {MANY[0], MANY[2], MANY[90]}
    found = candidates(scene.view, scene.order, leaving)
    assert len(found) == 1 + SCAN_AHEAD
    assert ids(found[:3]) == ["001", "003", "004"]


def test_an_empty_queue_is_not_asked() -> None:
    scene = Scene(DecodeFirst())
    scene.order = None  # type: ignore[assignment]
    assert candidates(scene.view, scene.order, ()) == []
