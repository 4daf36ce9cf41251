from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from headway.errors import UpstreamError
from headway.http_client import open_session
from headway.loadgen import ReplayOptions
from headway.loadgen.batch_profile import BatchLengths, ClockedTimes, continued_s, measured_times
from headway.loadgen.instance import KvMemory, ServedInstance
from headway.predict.steps.batch_time import BatchTimeModel

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream

ROOMY = KvMemory(1_000_000)


async def measure(
    server: FakeServer,
    longest: BatchLengths,
    memory: KvMemory = ROOMY,
    context: int | None = 1000,
    *,
    own_stops: bool = False,
) -> BatchTimeModel:
    dialect = ReplayOptions(url=server.url, own_stops=own_stops).dialect("fake", context)
    async with open_session() as session:
        return await measured_times(session, ServedInstance(server.url, dialect), longest, memory)


def served(server: FakeServer) -> Counter[tuple[int, int]]:
    """(prompt, output) of the requests that came."""
    return Counter((len(body["prompt"]), body["max_tokens"]) for body in server.bodies)


async def test_batches_of_one_and_of_eight_are_served_with_short_and_long_prompts(
    server: FakeServer,
) -> None:
    model = await measure(server, BatchLengths(80, 100))
    # (1 + 8) members, twice each.
    assert served(server) == dict.fromkeys([(10, 4), (10, 36), (80, 4), (80, 36)], 18)
    # Two sizes, two prompts, and answers of 1, 2, 4, ... 64 and 100 tokens.
    assert model.num_rows == 2 * 2 * 8
    assert model.predict(1, 10, 100) > 0


async def test_several_are_as_many_as_the_memory_holds_and_prompts_stay_within_the_context(
    server: FakeServer,
) -> None:
    # 3 x (80 + 36 + 16) = 396.
    await measure(server, BatchLengths(80, 10), KvMemory(400, 16))
    assert served(server)[80, 36] == (1 + 3) * 2
    server.bodies.clear()
    await measure(server, BatchLengths(80, 10), context=100)
    assert max(prompt for prompt, _ in served(server)) == 64


async def test_their_lengths_are_forced_where_answers_end_by_themselves_too(server: FakeServer) -> None:
    await measure(server, BatchLengths(80, 100), own_stops=True)
    assert all(body["ignore_eos"] for body in server.bodies)
    assert {output for _, output in served(server)} == {4, 36}


async def test_a_server_that_fails_them_is_named(server: FakeServer) -> None:
    async def answer(stream: Stream) -> None:
        await stream.end("abort", "headway:handed_off")

    server.answer = answer
    with pytest.raises(UpstreamError, match="does not serve a batch of 1: handed_off"):
        await measure(server, BatchLengths(80, 10))


def test_longer_answers_go_on_at_the_measured_pace_by_hand() -> None:
    # 1 s with 4 tokens, 4.2 s with 36: 0.1 s a token.
    assert continued_s(1.0, 4.2, 104) == pytest.approx(11.0)
    assert continued_s(1.0, 4.2, 1) == 1.0
    assert continued_s(1.0, 0.9, 500) == 1.0  # a faster long answer is noise


def test_it_learns_when_its_period_is_over() -> None:
    clock = itertools.count(0.0, 70.0)
    times = ClockedTimes(BatchTimeModel([(1, 10, 10, 1.0)], neighbours=1), lambda: next(clock))
    times.observe(1, 10, 100, 50.0)  # at 0 s
    times.observe(1, 10, 100, 50.0)  # at 70 s
    assert times.predict(1, 10, 100) == pytest.approx(1.0)
    times.observe(1, 10, 100, 50.0)  # at 140 s: two minutes are over
    assert times.predict(1, 10, 100) == pytest.approx(50.0)
