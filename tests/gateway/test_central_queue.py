"""Whole batches from one queue to instances, as clients and instances see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome
from headway.gateway.request.central_queue import CentralBatching
from headway.predict.lengths.facts import RequestFacts
from headway.predict.steps.kept_batch_times import BatchTimes
from headway.routing.batch_service import BatchCounts
from headway.routing.magnus import BatchSettings
from tests.gateway.fleets import until
from tests.gateway.front import CHAT, PROMPT, Answer, Front, gateway
from tests.gateway.upstream import Act, Turn, Upstream, answer_ids, prompt_ids, text_of, upstream

ROOMY = 1_000_000
STREAM = {**PROMPT, "stream": True}
TEXT = text_of(answer_ids(prompt_ids("one two three"), 8))


class Told:
    """Knows each answer's length by its limit; keeps what it was told."""

    def __init__(self) -> None:
        self.learned: list[tuple[RequestFacts, int]] = []

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        return LengthEstimate.around(facts.max_output_tokens)

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.learned.append((facts, output_tokens))


def batching(row: str = "vs", predictor: Told | None = None, **settings: Any) -> CentralBatching:
    """Batches of two, unless said otherwise."""
    given = {"capacity_tokens": ROOMY, "batch_size": 2, **settings}
    times = BatchTimes(time.monotonic)
    times.measured([(1, 100, 10, 1.0), (2, 100, 100, 10.0)])
    return CentralBatching(row=row, settings=BatchSettings(**given), times=times, predictor=predictor)


class Gate:
    """An instance that holds its first request, and does as `then` says with those that come in batches after it."""

    def __init__(self, then: Act = Turn.answer) -> None:
        self.opened = asyncio.Event()
        self._then = then

    async def answer(self, turn: Turn) -> None:
        first = turn is turn.upstream.turns[0]
        await self.opened.wait()
        await (Turn.answer if first else self._then)(turn)

    async def hold(self, front: Front, one: Upstream) -> asyncio.Task[Answer]:
        """The request that keeps the instance busy, so that those that come now share batches."""
        busy = asyncio.create_task(front.post({**STREAM, "request_id": "busy"}))
        await until(lambda: len(one.turns) == 1)
        return busy


@asynccontextmanager
async def held(then: Act = Turn.answer, **settings: Any) -> AsyncIterator[tuple[Gate, Upstream, Front]]:
    """A gateway before one instance that is busy with a request of its own until the gate opens."""
    gate = Gate(then)
    async with upstream(act=gate.answer) as one, gateway(one, batching=batching(**settings)) as front:
        busy = await gate.hold(front, one)
        yield gate, one, front
        assert (await busy).text == TEXT


async def queued(
    front: Front, bodies: Sequence[dict[str, Any]], path: str = "/v1/completions"
) -> list[asyncio.Task[Answer]]:
    """The requests, sent one after another, once all of them are in the queue or at the instance."""
    queue = front.app.serving.batches
    assert queue is not None
    asked = []
    for body in bodies:
        known = len(queue._called)
        asked.append(asyncio.create_task(front.post(body, path)))
        while len(queue._called) == known:
            await asyncio.sleep(0.01)
    return asked


async def post_all(
    front: Front, bodies: Sequence[dict[str, Any]], path: str = "/v1/completions"
) -> list[Answer]:
    return await asyncio.gather(*(front.post(body, path) for body in bodies))


def counts(front: Front) -> BatchCounts:
    assert front.app.serving.batches is not None
    return front.app.serving.batches.counts


def named(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**STREAM, "request_id": f"{number}", **fields} for number in range(count)]


def outcomes(front: Front) -> dict[str, Outcome | None]:
    """The outcomes of all ended requests; each name must occur once."""
    found = {entry.id: entry.outcome for entry in front.accounts.recent}
    assert len(found) == len(front.accounts.recent)
    return found


async def test_a_batch_is_sent_whole_and_the_next_when_its_last_member_has_ended() -> None:
    log: list[str] = []
    both = asyncio.Barrier(2)

    async def answer(turn: Turn) -> None:
        await both.wait()  # answers start when both members have come, or never
        log.append("start")
        await turn.answer()
        log.append("end")

    async with held(answer) as (gate, _, front):
        asked = await queued(front, named(6))
        gate.opened.set()
        assert {(await each).text for each in asked} == {TEXT}
        for first in (0, 4, 8):
            assert sorted(log[first : first + 4]) == ["end", "end", "start", "start"]
        await front.idle()
        assert counts(front) == BatchCounts(sent=4, members=7)
        assert set(outcomes(front).values()) == {Outcome.FINISHED}
        text = (await front.get("/metrics")).body.decode()
        for line in (
            "batches_total 4.0",
            "batch_members_total 7.0",
            "batches_split_total 0.0",
            "batches_waiting 0.0",
        ):
            assert f"headway_gateway_queue_{line}" in text


async def test_instances_share_the_queue_and_any_client_is_served() -> None:
    at_once = asyncio.Barrier(2)  # neither answers before both are asked

    async def answer(turn: Turn) -> None:
        await at_once.wait()
        await turn.answer()

    bodies = {"/v1/completions": [PROMPT, STREAM], "/v1/chat/completions": [CHAT, {**CHAT, "stream": True}]}
    async with (
        upstream("a", act=answer) as first,
        upstream("b", act=answer) as second,
        gateway(first, second, batching=batching(batch_size=1)) as front,
    ):
        found = await asyncio.gather(*(post_all(front, each, path) for path, each in bodies.items()))
        assert {each.status for answers in found for each in answers} == {200}
        assert (len(first.turns), len(second.turns)) == (2, 2)


async def test_like_lengths_share_a_batch_and_what_was_learned_is_told() -> None:
    # Limits 8, 8 and 300: with (3, 300) a short one would waste 292 x (3 + (8 + 299) / 2) = 45 698, over Phi.
    told = Told()
    async with held(row="magnus", predictor=told, batch_size=None) as (gate, _, front):
        bodies = [{**STREAM, "prompt": [5, 6, 7], "max_tokens": limit} for limit in (8, 300, 8)]
        asked = await queued(front, bodies)
        assert counts(front).waiting == 2
        gate.opened.set()
        assert {(await each).status for each in asked} == {200}
        await front.idle()
        assert counts(front) == BatchCounts(sent=3, members=4)
        await until(lambda: len(told.learned) == 4)
        assert sorted(tokens for _, tokens in told.learned) == [8, 8, 8, 300]
        assert {facts.num_prompt_tokens for facts, _ in told.learned} == {3}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_batch_that_runs_out_of_memory_is_split_and_every_answer_is_whole(stream: bool) -> None:
    """Two of three are given back in the midst of their answers, and wait again as a batch of their own."""
    all_three = asyncio.Barrier(3)

    async def answer(turn: Turn) -> None:
        place = turn.upstream.turns.index(turn)
        if place > 3:
            return await turn.answer()
        await all_three.wait()
        if place == 1:
            return await turn.answer()
        assert turn.xargs["headway_may_move"] == 1
        if not turn.streams:
            return await turn.leave("handed_off")
        await turn.begin()
        await turn.token()
        await turn.token(finish="abort", stop="headway:handed_off")
        await turn.end()

    async with held(answer, batch_size=3) as (gate, one, front):
        asked = await queued(front, [{**PROMPT, "stream": stream}] * 3)
        gate.opened.set()
        answers = [await each for each in asked]
        found = {each.text if stream else each.json["choices"][0]["text"] for each in answers}
        assert found == {TEXT}
        await front.idle()
        assert counts(front).split == 1
        assert counts(front).members == 1 + 3 + 2
        assert {entry.outcome for entry in front.accounts.recent} == {Outcome.FINISHED}
        assert [turn.xargs["headway_may_move"] for turn in one.turns[4:]] == [0, 0]


async def test_what_could_not_go_on_elsewhere_is_never_given_back() -> None:
    """A parser reads tools, or reasoning, from an answer's beginning; several answers are several jobs."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    chat, greedy = {**CHAT, "stream": True}, {**CHAT, "stream": True, "temperature": 0}
    endless = {name: value for name, value in greedy.items() if name != "max_tokens"}
    bodies = [{**chat, "tools": tools}, {**CHAT, "n": 2, "temperature": 0.5}, chat, endless, greedy]
    async with upstream() as one, gateway(one, batching=batching()) as front:
        for body in bodies:
            await front.post(body, "/v1/chat/completions")
        assert [turn.xargs["headway_may_move"] for turn in one.turns] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("sick", "batch_size"), [(True, 2), (False, 1)], ids=["died", "seems well"])
async def test_what_broke_at_an_instance_is_served_by_the_other(sick: bool, batch_size: int) -> None:
    async def die(turn: Turn) -> None:
        turn.upstream.sick = sick
        if turn.streams:
            await turn.begin()
            await turn.token()
        turn.die()

    async with (
        upstream("a", act=die) as first,
        upstream("b") as second,
        gateway(first, second, batching=batching(batch_size=batch_size)) as front,
    ):
        answers = await post_all(front, named(8))
        assert {each.text for each in answers} == {TEXT}
        await front.idle()
        assert set(outcomes(front).values()) == {Outcome.FINISHED}
        assert counts(front).split >= 1
        assert len(second.turns) == 8


async def test_a_client_that_leaves_is_taken_out_of_the_queue_or_its_answer_is_dropped() -> None:
    leaves = asyncio.Event()

    async def answer(turn: Turn) -> None:
        await leaves.wait()
        await turn.answer()

    async with held(answer) as (gate, one, front):
        asked = await queued(front, named(5))  # two batches of two, and one of one
        for gone in (2, 4):
            asked[gone].cancel()
        await until(lambda: len(front.accounts.recent) == 2)
        assert counts(front).waiting == 2
        gate.opened.set()
        await until(lambda: len(one.turns) == 3)  # the first two are being served
        asked[0].cancel()
        await until(lambda: len(front.accounts.recent) == 4)
        leaves.set()
        assert (await asked[1]).text == (await asked[3]).text == TEXT
        await front.idle()
        ends = outcomes(front)
        cancelled = {name for name, outcome in ends.items() if outcome is Outcome.CANCELLED}
        assert cancelled == {"0", "2", "4"}
        assert counts(front) == BatchCounts(sent=3, members=4)


async def test_what_waits_beyond_its_target_is_expired() -> None:
    async with held() as (gate, _, front):
        late = await front.post(PROMPT, x_slo_ttft_ms="50")
        assert (late.status, late.error["code"]) == (429, "expired")
        assert counts(front).waiting == 0
        gate.opened.set()


async def test_a_request_of_several_answers_takes_as_many_seats() -> None:
    async with held(batch_size=3) as (gate, _, front):
        asked = await queued(front, [{**PROMPT, "n": 2}] * 2)
        assert counts(front).waiting == 2
        gate.opened.set()
        await asyncio.gather(*asked)


async def test_what_is_wanted_of_one_instance_goes_there_beside_the_batches() -> None:
    async with (
        upstream("a", models_there=["small", "adapter"]) as first,
        upstream("b") as second,
        gateway(first, second, batching=batching()) as front,
    ):
        answers = [await front.post({**STREAM, "model": "adapter"}) for _ in range(2)]
        assert {each.text for each in answers} == {TEXT}
        assert (len(first.turns), len(second.turns)) == (2, 0)
        assert counts(front) == BatchCounts()


async def test_without_a_word_of_memory_requests_are_refused_by_name() -> None:
    async with upstream() as one, gateway(one, batching=batching(capacity_tokens=None)) as front:
        refused = await front.post(PROMPT)
        assert refused.status == 503
        assert (
            "does not say how much KV memory it has; accepted: vLLM with metrics, or --kv-tokens"
            in (refused.error["message"])
        )
        one.more_metrics = 'vllm:cache_config_info{block_size="10",num_gpu_blocks="11"} 1.0\n'
        assert (await front.post(PROMPT)).status == 200


async def test_the_memory_is_what_the_smallest_instance_says() -> None:
    line = 'vllm:cache_config_info{block_size="10",cache_dtype="auto",num_gpu_blocks="%d"} 1.0\n'
    first_gate, second_gate = Gate(), Gate()
    plan = batching("abp", capacity_tokens=None, batch_size=None)
    async with (
        upstream("a", act=first_gate.answer, more_metrics=line % 1000) as first,
        upstream("b", act=second_gate.answer, more_metrics=line % 5) as second,
        gateway(first, second, batching=plan) as front,
    ):
        busy = [await first_gate.hold(front, first), await second_gate.hold(front, second)]
        # The smaller has four blocks beside the null block: two times 3 + 8 tokens are two blocks each.
        asked = await queued(front, [{**STREAM, "prompt": [5, 6, 7]}] * 3)
        assert counts(front).waiting == 2
        first_gate.opened.set()
        second_gate.opened.set()
        assert {(await each).status for each in (*busy, *asked)} == {200}


async def test_batch_times_are_measured_first_where_the_row_asks_for_them() -> None:
    plan = CentralBatching(
        row="magnus", settings=BatchSettings(capacity_tokens=ROOMY), times=BatchTimes(time.monotonic)
    )
    async with upstream() as one, gateway(one, batching=plan) as front:
        assert (await front.post(STREAM)).text == TEXT
        made_up = [turn for turn in one.turns if turn.body.get("ignore_eos")]
        # Of one and of eight members, of two prompts and two answers, twice each.
        assert len(made_up) == (1 + 8) * 2 * 2 * 2
        assert plan.times.is_known
        assert len(front.accounts.recent) == 1


async def test_a_server_that_serves_no_made_up_batch_is_served_first_come_first_served() -> None:
    async def answer(turn: Turn) -> None:
        if turn.body.get("ignore_eos"):
            await turn.refuse(400, b"unknown field")
        else:
            await turn.answer()

    plan = CentralBatching(
        row="magnus", settings=BatchSettings(capacity_tokens=ROOMY), times=BatchTimes(time.monotonic)
    )
    async with upstream(act=answer) as one, gateway(one, batching=plan) as front:
        assert (await front.post(STREAM)).text == TEXT
        assert not plan.times.is_known


async def test_limits_hold_while_requests_wait_in_the_queue() -> None:
    gate = Gate()
    async with (
        upstream(act=gate.answer) as one,
        gateway(one, batching=batching(batch_size=1), max_queue=2) as front,
    ):
        asked = [await gate.hold(front, one), *await queued(front, [STREAM])]
        assert (await front.post(PROMPT)).error["code"] == "queue_full"
        gate.opened.set()
        assert {(await each).text for each in asked} == {TEXT}


async def test_a_gateway_that_ends_tells_what_waits() -> None:
    gate = Gate()
    async with (
        upstream(act=gate.answer) as one,
        gateway(one, batching=batching(batch_size=1), drain_s=0.1) as front,
    ):
        asked = await queued(front, [PROMPT, PROMPT])
        await until(lambda: len(one.turns) == 1)
        front.stop.set()
        assert {(await each).status for each in asked} == {503}
