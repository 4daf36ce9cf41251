from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.http.refusal import Refusal
from headway.gateway.request.admission_queue import LONGEST_RETRY_S, Pace, Turnstile, Visit
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut


class Site:
    """A turnstile with so many places, and a clock that stands still."""

    def __init__(self, places: int | None = None, **limits: int) -> None:
        self.places = places
        self.now_s = 100.0
        self.turnstile = Turnstile(lambda: self.places, clock=lambda: self.now_s, **limits)
        self.entered: list[str] = []
        self.interrupts: dict[str, Interrupt] = {}

    async def visit(self, name: str, priority: int = 0, tenant: str = "", sequences: int = 1) -> Visit:
        self.interrupts[name] = Interrupt()
        visit = await self.turnstile.enter(tenant, priority, self.interrupts[name], sequences)
        self.entered.append(name)
        return visit


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_limits_all_come_in() -> None:
    site = Site()
    visits = [await site.visit(str(number)) for number in range(50)]
    assert (site.turnstile.waiting, site.turnstile.inside) == (50, 50)
    for visit in visits:
        site.turnstile.began(visit)
        site.turnstile.began(visit)
        site.turnstile.leave(visit)
    assert (site.turnstile.waiting, site.turnstile.inside) == (0, 0)


async def test_the_door_opens_by_priority_then_arrival() -> None:
    site = Site(places=1)
    first = await site.visit("first")
    waits = {
        name: asyncio.create_task(site.visit(name, priority))
        for name, priority in (("late", 5), ("a", 1), ("b", 1), ("urgent", -1))
    }
    await settle()
    assert site.entered == ["first"]
    visit = first
    for name in ("urgent", "a", "b", "late"):
        site.turnstile.leave(visit)
        visit = await waits[name]
        assert site.entered[-1] == name
    assert site.turnstile.inside == 1


async def test_newcomers_do_not_pass_those_at_the_door() -> None:
    site = Site(places=1)
    first = await site.visit("first")
    waiting = asyncio.create_task(site.visit("second"))
    await settle()
    site.turnstile.leave(first)
    assert site.turnstile.inside == 1  # the place is the second's already
    late = asyncio.create_task(site.visit("third"))
    await settle()
    assert site.entered == ["first", "second"]
    site.turnstile.leave(await waiting)
    await late


async def test_who_leaves_the_door_takes_no_place() -> None:
    site = Site(places=1)
    first = await site.visit("first")
    tasks = [asyncio.create_task(site.visit(name)) for name in ("gone", "stays")]
    await settle()
    site.interrupts["gone"].cut(Cut.GONE)
    with pytest.raises(WaitCut):
        await tasks[0]
    assert site.turnstile.waiting == 2
    site.turnstile.leave(first)
    await tasks[1]
    assert site.entered == ["first", "stays"]


async def test_new_places_are_found_without_anybody_leaving() -> None:
    site = Site(places=1)
    await site.visit("first")
    waiting = asyncio.create_task(site.visit("second"))
    await settle()
    site.places = 2
    await waiting
    assert site.turnstile.inside == 2


async def test_with_no_place_left_at_all_there_is_nothing_to_wait_for() -> None:
    site = Site(places=1)
    await site.visit("first")
    waiting = asyncio.create_task(site.visit("second"))
    await settle()
    site.places = 0
    with pytest.raises(Refusal) as raised:
        await waiting
    assert raised.value.status == 503
    assert site.turnstile.waiting == 1


async def test_the_queue_is_bounded_by_those_without_a_token() -> None:
    site = Site(max_queue=2)
    first = await site.visit("first")
    await site.visit("second")
    with pytest.raises(Refusal) as raised:
        await site.visit("third")
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (429, "queue_full", 1)
    site.turnstile.began(first)
    await site.visit("third")
    assert site.turnstile.waiting == 2


async def test_a_tenant_has_its_share() -> None:
    site = Site(max_per_tenant=2)
    blue = [await site.visit(name, tenant="blue") for name in ("a", "b")]
    await site.visit("c", tenant="red")
    with pytest.raises(Refusal) as raised:
        await site.visit("d", tenant="blue")
    assert raised.value.code == "tenant_limit"
    site.turnstile.began(blue[0])
    with pytest.raises(Refusal):  # it is still here
        await site.visit("d", tenant="blue")
    site.turnstile.leave(blue[0])
    await site.visit("d", tenant="blue")


async def test_limits_count_the_sequences_of_a_request() -> None:
    site = Site(max_queue=6, max_per_tenant=5)
    four = await site.visit("four", tenant="blue", sequences=4)
    with pytest.raises(Refusal) as raised:
        await site.visit("two", tenant="blue", sequences=2)
    assert (raised.value.status, raised.value.code) == (429, "tenant_limit")
    await site.visit("one", tenant="blue")
    with pytest.raises(Refusal) as raised:
        await site.visit("two", tenant="red", sequences=2)
    assert (raised.value.status, raised.value.code) == (429, "queue_full")
    assert (site.turnstile.waiting, site.turnstile.inside) == (5, 5)
    site.turnstile.began(four)
    assert (site.turnstile.waiting, site.turnstile.pace.per_s(site.now_s + 1)) == (1, 4.0)
    site.turnstile.leave(four)
    assert (site.turnstile.waiting, site.turnstile.inside) == (1, 1)
    await site.visit("two", tenant="blue", sequences=2)


@pytest.mark.parametrize("limit", ["max_per_tenant", "max_queue", "max_in_flight"])
async def test_a_request_larger_than_a_limit_is_told_so_at_once(limit: str) -> None:
    site = Site(places=6, **{limit: 3})
    await site.visit("fits", sequences=3)
    with pytest.raises(Refusal) as raised:
        await site.visit("never", sequences=4)
    assert (raised.value.status, raised.value.code) == (400, "too_many_sequences")
    assert f"4 sequences (prompts times n); accepted: up to 3 (--{limit.replace('_', '-')})" in str(
        raised.value
    )


async def test_a_request_waits_for_places_for_all_of_its_sequences() -> None:
    site = Site(places=4)
    first, second = await site.visit("first", sequences=2), await site.visit("second")
    large = asyncio.create_task(site.visit("large", sequences=3))
    small = asyncio.create_task(site.visit("small"))
    await settle()
    assert site.entered == ["first", "second"]
    site.turnstile.leave(second)
    await settle()
    assert site.entered == ["first", "second"], "the small one does not pass the large one"
    site.turnstile.leave(first)
    await asyncio.gather(large, small)
    assert (site.turnstile.inside, site.entered[2:]) == (4, ["large", "small"])


async def test_a_tenant_comes_back_when_one_of_its_own_should_have_ended() -> None:
    site = Site(max_per_tenant=2)
    for _ in range(3):
        visit = await site.visit("before", tenant="red")
        site.now_s += 40.0
        site.turnstile.leave(visit)
    for name in ("a", "b"):
        await site.visit(name, tenant="blue")
    with pytest.raises(Refusal) as raised:
        await site.visit("c", tenant="blue")
    assert raised.value.retry_after_s == 20  # one of two that stay for 40 s


def test_the_pace_is_of_the_last_half_minute() -> None:
    pace = Pace()
    assert pace.retry_after_s(100, 0.0) == 1  # nothing is known
    for number in range(21):
        pace.began(number / 2)
    # 21 in 10 s: 2.1 a second, so 100 of them take 48 s.
    assert pace.per_s(10.0) == 2.1
    assert pace.retry_after_s(100, 10.0) == 48
    assert pace.retry_after_s(0, 10.0) == 1
    assert pace.retry_after_s(10_000, 10.0) == LONGEST_RETRY_S
    assert pace.per_s(60.0) == 0.0


@given(starts_s=st.lists(st.floats(0, 100)), waiting=st.integers(0, 10**6))
def test_retry_after_is_always_a_whole_number_of_seconds_in_bounds(
    starts_s: list[float], waiting: int
) -> None:
    pace = Pace()
    for start_s in sorted(starts_s):
        pace.began(start_s)
    found = pace.retry_after_s(waiting, 100.0)
    assert isinstance(found, int)
    assert 1 <= found <= LONGEST_RETRY_S
