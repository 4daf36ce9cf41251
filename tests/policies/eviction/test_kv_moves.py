"""Which job makes room for which, by hand: blocks of 4, one slot a job."""

from __future__ import annotations

import pytest

from headway.core.job import Job, JobState
from headway.core.plan import Fate
from headway.policies.eviction.making_room import Room, needed_room
from headway.policies.eviction.proactive import KvMoves, NextService
from tests.policies.eviction.stage import copied, on_its_way, resident, stage
from tests.strategies import decoding, ids, make_job

SWAP = Fate.SWAP


def swap_if_room(job: Job, has_room: bool) -> Fate | None:
    """To the host, or nowhere."""
    return SWAP if has_room else None


def later(leaves: NextService, comes: NextService) -> bool:
    """Whether the leaving job is served later than the coming one."""
    return leaves > comes


def kv_moves(*last: NextService, free: Room, idle: Room = Room(0, 0), host: int = 100) -> KvMoves:  # noqa: B008
    """On a stage whose host has so many blocks free."""
    return KvMoves(
        view=stage(host=host), free=free, idle=idle, choose=swap_if_room, worth=later, last=list(last)
    )


def waits(id_: str, soon_s: float, blocks: int) -> NextService:
    """A newcomer of so many blocks."""
    return (soon_s, 0, make_job(id_, prompt=4 * blocks))


def swapped(id_: str, soon_s: float, blocks: int) -> NextService:
    """One on the host, whose next token is in the last of so many blocks."""
    return (soon_s, 0, decoding(id_, prompt=4 * blocks - 1, state=JobState.SWAPPED))


def stays(id_: str, soon_s: float, blocks: int) -> NextService:
    """A paused resident."""
    return (soon_s, 0, resident(id_, blocks))


def test_room_is_blocks_and_slots() -> None:
    assert Room(2, 1).plus(Room(3, 4)) == Room(5, 5)
    assert Room(2, 4).at_least(Room(3, 1)) == Room(3, 4)
    assert Room(3, 1).covers(Room(3, 1))
    assert not Room(3, 1).covers(Room(4, 0))
    assert not Room(9, 0).covers(Room(0, 1))


def test_a_queued_job_takes_blocks_for_all_its_tokens_and_a_slot() -> None:
    assert needed_room(stage(), make_job(prompt=9)) == Room(3, 1)
    assert needed_room(stage(), decoding(prompt=8, output=5)) == Room(4, 1)


def test_the_last_ones_leave_until_the_idle_room_is_there() -> None:
    # Idle 5, free 1: y leaves 3 blocks, x another 3; w may stay.
    made = kv_moves(stays("w", 1, 3), stays("x", 2, 3), stays("y", 3, 3), free=Room(1, 9), idle=Room(5, 0))
    made.settle([])
    assert ids(made.leaving) == ["y", "x"]
    assert made.free == Room(7, 11)


def test_slots_are_made_too() -> None:
    made = kv_moves(stays("x", 2, 1), stays("y", 3, 1), free=Room(50, 0), idle=Room(0, 1))
    made.settle([])
    assert ids(made.leaving) == ["y"]


def test_the_idle_room_is_there_for_the_newcomers_and_not_beside_them() -> None:
    # 5 idle blocks are free: a newcomer of 5 fits them. One of 6 needs another, and y makes room for it.
    for blocks, leaving in ((5, []), (6, ["y"])):
        made = kv_moves(stays("y", 9, 3), free=Room(5, 9), idle=Room(5, 0))
        made.settle([waits("n", 1, blocks)])
        assert ids(made.leaving) == leaving


def test_nobody_leaves_for_one_that_is_served_later() -> None:
    made = kv_moves(stays("y", 3, 3), free=Room(0, 9))
    made.settle([waits("n", 4, 2)])
    assert not made.leaving


def test_who_comes_back_leaves_the_idle_room_alone() -> None:
    # 7 free, 4 idle: s needs 3, t another 1.
    made = kv_moves(free=Room(7, 9), idle=Room(4, 0))
    made.settle([swapped("s", 1, 3), swapped("t", 2, 1)])
    assert ids(made.returning) == ["s"]
    made = kv_moves(free=Room(8, 9), idle=Room(4, 0))
    made.settle([swapped("s", 1, 3), swapped("t", 2, 1)])
    assert ids(made.returning) == ["s", "t"]


def test_nobody_overtakes_one_that_does_not_fit() -> None:
    made = kv_moves(free=Room(4, 9))
    made.settle([swapped("s", 1, 5), swapped("t", 2, 1)])
    assert not made.returning


def test_one_the_host_has_no_room_for_stays_and_the_next_is_asked() -> None:
    # The host has 3 blocks: y's 4 do not fit, x's 3 do, and then w's 1 does not.
    made = kv_moves(
        stays("w", 1, 1), stays("x", 2, 3), stays("y", 3, 4), free=Room(0, 9), idle=Room(9, 0), host=3
    )
    made.settle([])
    assert ids(made.leaving) == ["x"]


@pytest.mark.parametrize(
    ("free", "host", "expected"),
    [
        (4, 100, ["y", "x"]),  # 4 + 3 + 3: with y alone it would be 7 of 8
        (5, 100, ["y"]),
        (8, 100, []),
        (4, 5, ["y"]),  # the host has room for one of them
    ],
)
def test_what_would_leave_for_once_more_the_idle_room_is_copied_beforehand(
    free: int, host: int, expected: list[str]
) -> None:
    turns = (stays("w", 1, 3), stays("x", 2, 3), stays("y", 3, 3))
    made = kv_moves(*turns, free=Room(free, 9), idle=Room(4, 0), host=host)
    assert ids(made.next_to_leave()) == expected


def test_what_is_copied_already_is_not_copied_again() -> None:
    made = kv_moves(stays("x", 2, 3), stays("y", 3, 3), free=Room(4, 9), idle=Room(4, 0))
    copied(made.view, made.last[-1][2])
    assert ids(made.next_to_leave()) == ["x"]


def test_what_is_on_its_way_is_not_named_again_and_takes_no_more_room() -> None:
    # The host has room for x alone, beside what y's copy has taken already.
    made = kv_moves(stays("x", 2, 3), stays("y", 3, 3), free=Room(4, 9), idle=Room(4, 0), host=3)
    on_its_way(made.view, made.last[-1][2])
    assert ids(made.next_to_leave()) == ["x"]


@pytest.mark.parametrize(
    ("free", "expected"), [(Room(11, 3), True), (Room(10, 3), False), (Room(11, 2), False)]
)
def test_room_is_ample_with_the_newcomers_in_and_the_idle_room_left(free: Room, expected: bool) -> None:
    # Two newcomers of 3 blocks are more than the idle 5 and 1 slot; 5 and 1 more are to be left.
    newcomers = [waits(id_, 1, 3)[2] for id_ in "nm"]
    assert kv_moves(free=free, idle=Room(5, 1)).is_ample(newcomers) == expected


def test_without_newcomers_the_idle_room_is_there_twice() -> None:
    assert kv_moves(free=Room(10, 2), idle=Room(5, 1)).is_ample([])
    assert not kv_moves(free=Room(9, 2), idle=Room(5, 1)).is_ample([])
