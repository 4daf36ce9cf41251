"""The gateway and the simulated cluster send the same stream the same way, request by request."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.routing import ROUTERS
from tests.gateway.routed_events import Event, What, made_events, routed, simulated

POOLS = ("lp-0", "lp-1", "hp-0", "hp-1")
ALIKE = ("0", "1", "2")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("router", [name for name in ROUTERS if name.startswith("ascendra")])
async def test_pools_are_routed_alike(router: str, seed: int) -> None:
    events = made_events(seed, count=25)
    expected = simulated(events, router, POOLS)
    assert await routed(events, router, POOLS) == expected
    # The stream was one in which there was something to decide.
    given_up = sum(event.what is What.GIVEN_UP for event in events)
    assert given_up >= 3
    assert len(expected) == 25 + given_up
    assert len({name for _, name in expected}) == len(POOLS)


@pytest.mark.parametrize("router", [name for name in ROUTERS if not name.startswith("ascendra")])
async def test_instances_without_pools_are_routed_alike(router: str) -> None:
    events = made_events(7, count=25)
    expected = simulated(events, router, ALIKE)
    assert await routed(events, router, ALIKE) == expected
    # Nobody takes what another gives up: it comes once more where it was.
    places = Counter(expected)
    assert max(places.values()) == 2
    assert len(places) == 25


@pytest.mark.parametrize("seed", range(2))
async def test_conversations_are_routed_alike(seed: int) -> None:
    events = made_events(seed, count=30, talks=5)
    expected = simulated(events, "cache-aware", ALIKE)
    assert await routed(events, "cache-aware", ALIKE) == expected
    assert expected != simulated(events, "least-work", ALIKE)
    assert len({name for _, name in expected}) == len(ALIKE)


async def test_three_requests_by_hand() -> None:
    # One LP and one HP instance. The first request comes before there is a ticket and goes to LP; the second takes the
    # HP instance's ticket and waits there, so that no other is issued, and the third goes to LP as well. It is given
    # up and handed to HP. Once all have started there, the fourth finds a ticket again.
    come, start, end = What.ARRIVES, What.STARTS, What.ENDS
    events = [
        *(Event(come, id_) for id_ in ("0", "1", "2")),
        Event(What.GIVEN_UP, "2"),
        Event(start, "1"),
        Event(start, "2"),
        Event(come, "3"),
        Event(start, "0"),
        *(Event(end, id_) for id_ in ("3", "2", "1", "0")),
    ]
    expected = [("0", "lp-0"), ("1", "hp-0"), ("2", "lp-0"), ("2", "hp-0"), ("3", "hp-0")]
    names = ("lp-0", "hp-0")
    assert simulated(events, "ascendra", names) == expected
    assert await routed(events, "ascendra", names) == expected


def test_events_make_sense() -> None:
    events = made_events(1, count=40)
    assert events == made_events(1, count=40) != made_events(2, count=40)
    for id_ in {event.id for event in events}:
        life = [event.what for event in events if event.id == id_]
        assert life[0] is What.ARRIVES
        assert life[-1] is What.ENDS
        assert all(count == 1 for count in Counter(life).values())
        assert life.index(What.ENDS) == len(life) - 1
        if What.STARTS in life and What.GIVEN_UP in life:
            assert life.index(What.GIVEN_UP) < life.index(What.STARTS)
