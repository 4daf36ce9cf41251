from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.admission_queue import LONGEST_RETRY_S, AdmissionQueue, QueuedRequest, StartRate
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut


class Site:
    """A queue with so many places, and a clock that stands still."""

    def __init__(self, places: int | None = None, **limits: int) -> None:
        self.places = places
        self.now_s = 100.0
        self.queue = AdmissionQueue(lambda: self.places, clock=lambda: self.now_s, **limits)
        self.entered: list[str] = []
        self.interrupts: dict[str, Interrupt] = {}

    async def admission(
        self, name: str, priority: int = 0, tenant: str = "", sequences: int = 1
    ) -> QueuedRequest:
        self.interrupts[name] = Interrupt()
        admission = await self.queue.enter(tenant, priority, self.interrupts[name], sequences)
        self.entered.append(name)
        return admission


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_limits_all_come_in() -> None:
    site = Site()
    visits = [await site.admission(str(number)) for number in range(50)]
    assert (site.queue.waiting, site.queue.inside) == (50, 50)
    for admission in visits:
        site.queue.began(admission)
        site.queue.began(admission)
        site.queue.leave(admission)
    assert (site.queue.waiting, site.queue.inside) == (0, 0)


async def test_the_door_opens_by_priority_then_arrival() -> None:
    site = Site(places=1)
    first = await site.admission("first")
    waits = {
        name: asyncio.create_task(site.admission(name, priority))
        for name, priority in (("late", 5), ("a", 1), ("b", 1), ("urgent", -1))
    }
    await settle()
    assert site.entered == ["first"]
    admission = first
    for name in ("urgent", "a", "b", "late"):
        site.queue.leave(admission)
        admission = await waits[name]
        assert site.entered[-1] == name
    assert site.queue.inside == 1


async def test_newcomers_do_not_pass_those_at_the_door() -> None:
    site = Site(places=1)
    first = await site.admission("first")
    waiting = asyncio.create_task(site.admission("second"))
    await settle()
    site.queue.leave(first)
    assert site.queue.inside == 1  # the place is the second's already
    late = asyncio.create_task(site.admission("third"))
    await settle()
    assert site.entered == ["first", "second"]
    site.queue.leave(await waiting)
    await late


async def test_who_leaves_the_door_takes_no_place() -> None:
    site = Site(places=1)
    first = await site.admission("first")
    tasks = [asyncio.create_task(site.admission(name)) for name in ("gone", "stays")]
    await settle()
    site.interrupts["gone"].cut(Cut.GONE)
    with pytest.raises(WaitCut):
        await tasks[0]
    assert site.queue.waiting == 2
    site.queue.leave(first)
    await tasks[1]
    assert site.entered == ["first", "stays"]


async def test_new_places_are_found_without_anybody_leaving() -> None:
    site = Site(places=1)
    await site.admission("first")
    waiting = asyncio.create_task(site.admission("second"))
    await settle()
    site.places = 2
    await waiting
    assert site.queue.inside == 2


async def test_with_no_place_left_at_all_there_is_nothing_to_wait_for() -> None:
    site = Site(places=1)
    await site.admission("first")
    waiting = asyncio.create_task(site.admission("second"))
    await settle()
    site.places = 0
    with pytest.raises(GatewayError) as raised:
        await waiting
    assert raised.value.status == 503
    assert site.queue.waiting == 1


async def test_the_queue_is_bounded_by_those_without_a_token() -> None:
    site = Site(max_queue=2)
    first = await site.admission("first")
    await site.admission("second")
    with pytest.raises(GatewayError) as raised:
        await site.admission("third")
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (429, "queue_full", 1)
    site.queue.began(first)
    await site.admission("third")
    assert site.queue.waiting == 2


async def test_a_tenant_has_its_share() -> None:
    site = Site(max_per_tenant=2)
    blue = [await site.admission(name, tenant="blue") for name in ("a", "b")]
    await site.admission("c", tenant="red")
    with pytest.raises(GatewayError) as raised:
        await site.admission("d", tenant="blue")
    assert raised.value.code == "tenant_limit"
    site.queue.began(blue[0])
    with pytest.raises(GatewayError):  # it is still here
        await site.admission("d", tenant="blue")
    site.queue.leave(blue[0])
    await site.admission("d", tenant="blue")


async def test_limits_count_the_sequences_of_a_request() -> None:
    site = Site(max_queue=6, max_per_tenant=5)
    four = await site.admission("four", tenant="blue", sequences=4)
    with pytest.raises(GatewayError) as raised:
        await site.admission("two", tenant="blue", sequences=2)
    assert (raised.value.status, raised.value.code) == (429, "tenant_limit")
    await site.admission("one", tenant="blue")
    with pytest.raises(GatewayError) as raised:
        await site.admission("two", tenant="red", sequences=2)
    assert (raised.value.status, raised.value.code) == (429, "queue_full")
    assert (site.queue.waiting, site.queue.inside) == (5, 5)
    site.queue.began(four)
    assert (site.queue.waiting, site.queue.start_rate.per_s(site.now_s + 1)) == (1, 4.0)
    site.queue.leave(four)
    assert (site.queue.waiting, site.queue.inside) == (1, 1)
    await site.admission("two", tenant="blue", sequences=2)


@pytest.mark.parametrize("limit", ["max_per_tenant", "max_queue", "max_in_flight"])
async def test_a_request_larger_than_a_limit_is_told_so_at_once(limit: str) -> None:
    site = Site(places=6, **{limit: 3})
    await site.admission("fits", sequences=3)
    with pytest.raises(GatewayError) as raised:
        await site.admission("never", sequences=4)
    assert (raised.value.status, raised.value.code) == (400, "too_many_sequences")
    assert f"4 sequences (prompts times n); accepted: up to 3 (--{limit.replace('_', '-')})" in str(
        raised.value
    )


async def test_a_request_waits_for_places_for_all_of_its_sequences() -> None:
    site = Site(places=4)
    first, second = await site.admission("first", sequences=2), await site.admission("second")
    large = asyncio.create_task(site.admission("large", sequences=3))
    small = asyncio.create_task(site.admission("small"))
    await settle()
    assert site.entered == ["first", "second"]
    site.queue.leave(second)
    await settle()
    assert site.entered == ["first", "second"], "the small one does not pass the large one"
    site.queue.leave(first)
    await asyncio.gather(large, small)
    assert (site.queue.inside, site.entered[2:]) == (4, ["large", "small"])


async def test_a_tenant_comes_back_when_one_of_its_own_should_have_ended() -> None:
    site = Site(max_per_tenant=2)
    for _ in range(3):
        admission = await site.admission("before", tenant="red")
        site.now_s += 40.0
        site.queue.leave(admission)
    for name in ("a", "b"):
        await site.admission(name, tenant="blue")
    with pytest.raises(GatewayError) as raised:
        await site.admission("c", tenant="blue")
    assert raised.value.retry_after_s == 20  # one of two that stay for 40 s


def test_the_pace_is_of_the_last_half_minute() -> None:
    start_rate = StartRate()
    assert start_rate.retry_after_s(100, 0.0) == 1  # nothing is known
    for number in range(21):
        start_rate.began(number / 2)
    # 21 in 10 s: 2.1 a second, so 100 of them take 48 s.
    assert start_rate.per_s(10.0) == 2.1
    assert start_rate.retry_after_s(100, 10.0) == 48
    assert start_rate.retry_after_s(0, 10.0) == 1
    assert start_rate.retry_after_s(10_000, 10.0) == LONGEST_RETRY_S
    assert start_rate.per_s(60.0) == 0.0


@given(starts_s=st.lists(st.floats(0, 100)), waiting=st.integers(0, 10**6))
def test_retry_after_is_always_a_whole_number_of_seconds_in_bounds(
    starts_s: list[float], waiting: int
) -> None:
    start_rate = StartRate()
    for start_s in sorted(starts_s):
        start_rate.began(start_s)
    found = start_rate.retry_after_s(waiting, 100.0)
    assert isinstance(found, int)
    assert 1 <= found <= LONGEST_RETRY_S
