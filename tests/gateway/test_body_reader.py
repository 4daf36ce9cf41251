from __future__ import annotations

import asyncio
import errno
import json
import multiprocessing
import os
import signal
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway.gateway.http.api import CHAT, COMPLETIONS
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.body_reader import MAX_BYTES_HERE, MAX_COMMAS_HERE, BodyReader
from headway.gateway.request.generation_request import read_request
from tests.gateway.fleets import until
from tests.gateway.front import PROMPT, gateway
from tests.gateway.upstream import upstream

PROMPTS = MAX_COMMAS_HERE + 2
MANY = {"model": "small", "prompt": [[1]] * PROMPTS, "n": 2, "priority": 3}
LARGE = {
    "messages": [{"role": "user", "content": "x" * MAX_BYTES_HERE}],
    "vllm_xargs": {"headway_ttft_ms": 5},
}
HEADERS = [(b"x-tenant", b"blue")]


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    # Not by `join`: it may return early where the pool's own thread waits for the same process.
    until_s = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not multiprocessing.active_children()


@asynccontextmanager
async def reader() -> AsyncIterator[BodyReader]:
    found = BodyReader()
    try:
        yield found
    finally:
        found.close()


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def not_here(*_arguments: object, **_options: object) -> None:
    raise AssertionError("read in this process")


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS.path, MANY), (f"{CHAT.path}?a=b", LARGE)])
async def test_a_large_body_is_read_in_another_process_as_it_would_be_here(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(body)
    here = read_request(path, HEADERS, data, request_id="r")
    monkeypatch.setattr("headway.gateway.request.body_reader.read_request", not_here)
    async with reader() as bodies:
        there = await bodies.read(path, HEADERS, data, request_id="r")
    assert there == here
    assert there.api is here.api
    assert there.body(hints={}, request_id=True, ids=True) == here.body(hints={}, request_id=True, ids=True)


@pytest.mark.parametrize("body", [PROMPT, MANY], ids=["small", "large"])
async def test_a_byte_order_mark_is_no_part_of_a_body(body: dict[str, Any]) -> None:
    plain = read_request(COMPLETIONS.path, HEADERS, encoded(body), request_id="r")
    async with reader() as bodies:
        assert await bodies.read(COMPLETIONS.path, HEADERS, BOM_UTF8 + encoded(body), request_id="r") == plain


async def test_sequences_of_a_large_body_are_counted_in_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headway.gateway.request.generation_request._decode_fields", not_here)
    async with reader() as bodies:
        assert await bodies.outline(encoded(MANY)) == ("small", 2 * PROMPTS)
        form = b'--form\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--form\r\n'
        assert await bodies.outline(form + b"," * MAX_BYTES_HERE) == ("whisper", 1)


async def test_a_refusal_comes_back_whole() -> None:
    data = encoded({**MANY, "stream": "maybe"})
    async with reader() as bodies:
        with pytest.raises(GatewayError) as raised:
            await bodies.read(COMPLETIONS.path, [], data, request_id="r")
    assert (raised.value.status, raised.value.param) == (400, "stream")
    assert "accepted: true or false" in raised.value.message


async def test_a_tenants_bodies_do_not_all_come_before_anothers() -> None:
    data, done = encoded(MANY), list[str]()

    async def read(bodies: BodyReader, tenant: str) -> None:
        await bodies.read(COMPLETIONS.path, [], data, request_id="r", key_tenant=tenant)
        done.append(tenant)

    async with reader() as bodies:
        await asyncio.gather(*(read(bodies, tenant) for tenant in ["blue"] * 4 + ["red"]))
    assert done[:2] == ["blue", "red"]


async def test_a_reader_that_ends_is_started_again() -> None:
    data = encoded(MANY)
    async with reader() as bodies:
        reading = asyncio.create_task(bodies.read(COMPLETIONS.path, [], data, request_id="r"))
        await asyncio.sleep(0)
        for process in multiprocessing.active_children():
            process.kill()
        with pytest.raises(GatewayError) as raised:
            await reading
        assert (raised.value.status, raised.value.code) == (503, "body_not_read")
        assert (await bodies.read(COMPLETIONS.path, [], data, request_id="r")).answers == 2 * PROMPTS


async def test_requests_that_wait_for_a_reader_that_ends_fail_alone() -> None:
    """Each asks again at once, and one new process reads for all of them."""
    data = encoded(MANY)

    async def ask(bodies: BodyReader, tenant: str) -> int:
        try:
            await bodies.read(COMPLETIONS.path, [], data, request_id="r", key_tenant=tenant)
        except GatewayError:
            return 1 + await ask(bodies, tenant)
        return 0

    async with reader() as bodies:
        asking = [asyncio.create_task(ask(bodies, tenant)) for tenant in "abcdef"]
        await asyncio.sleep(0)
        for process in multiprocessing.active_children():
            process.kill()
        assert await asyncio.gather(*asking) == [1] * 6
        assert len(multiprocessing.active_children()) == 1


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_group_ends_no_reader_even_while_it_starts(signum: signal.Signals) -> None:
    data = encoded(MANY)
    async with reader() as bodies:
        for _ in range(2):
            reading = asyncio.create_task(bodies.read(COMPLETIONS.path, [], data, request_id="r"))
            await asyncio.sleep(0)
            (process,) = multiprocessing.active_children()
            assert process.pid is not None
            os.kill(process.pid, signum)
            assert (await reading).answers == 2 * PROMPTS
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


async def test_a_process_that_cannot_be_started_costs_the_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = multiprocessing.get_context("spawn").Process.start

    def fails(_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async with reader() as bodies:
        monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", fails)
        with pytest.raises(GatewayError) as refused:
            await bodies.read(COMPLETIONS.path, [], encoded(MANY), request_id="r")
        assert (refused.value.status, refused.value.code) == (503, "body_not_read")
        monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", start)
        found = await bodies.read(COMPLETIONS.path, [], encoded(MANY), request_id="r")
        assert found.answers == 2 * PROMPTS


async def test_a_process_that_was_started_before_reads_the_first_body() -> None:
    async with reader() as bodies:
        bodies.start()
        (process,) = multiprocessing.active_children()
        assert (await bodies.read(COMPLETIONS.path, [], encoded(MANY), request_id="r")).answers == 2 * PROMPTS
        assert multiprocessing.active_children() == [process]


async def test_a_start_that_fails_is_tried_again_by_the_first_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async with reader() as bodies:
        with monkeypatch.context() as full:
            full.setattr("multiprocessing.context.SpawnProcess.start", fails)
            bodies.start()
        assert (await bodies.read(COMPLETIONS.path, [], encoded(MANY), request_id="r")).answers == 2 * PROMPTS


def being_answered() -> int:
    return sum("run_asgi" in str(task.get_coro()) for task in asyncio.all_tasks())


@pytest.mark.parametrize("path", [COMPLETIONS.path, "/v1/hang"])
async def test_a_body_whose_client_has_left_is_not_read(path: str) -> None:
    large = encoded({**PROMPT, "prompt": [7] * PROMPTS})
    async with upstream() as instance, gateway(instance) as front:
        assert (await front.post(large)).status == 200
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        asking = [asyncio.create_task(front.post(large, path)) for _ in range(4)]
        await until(lambda: being_answered() == len(asking))
        for _ in range(8):  # meanwhile all of the bodies have come
            assert (await front.post(PROMPT)).status == 200
        for each in asking:
            each.cancel()
        await until(lambda: not being_answered())
        os.kill(process.pid, signal.SIGCONT)
        assert (await front.post(large)).status == 200
        assert len(instance.turns) == front.accounts.totals.offered == 10


async def test_a_body_of_many_values_reaches_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.request.body_reader.read_request", not_here)
    ids = [7] * PROMPTS
    async with upstream() as instance, gateway(instance) as front:
        assert (await front.post({**PROMPT, "prompt": ids})).status == 200
        assert instance.bodies[0]["prompt"] == ids
