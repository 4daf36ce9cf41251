"""`/v1/responses` and `/v1/messages` through a gateway over real HTTP: served like completions and chats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from headway.core.slo import Slo
from headway.gateway.http.keys import Keys
from tests.gateway.front import Answer, Front, gateway
from tests.gateway.named_upstream import as_bytes, message_events, message_of, response_events, response_of
from tests.gateway.test_serving import counts
from tests.gateway.upstream import Turn, upstream

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "small", "max_tokens": 4, "messages": [{"role": "user", "content": "one"}]},
    RESPONSES: {"model": "small", "max_output_tokens": 4, "input": "one"},
}
PATHS = pytest.mark.parametrize("path", BODIES)
BOTH = pytest.mark.parametrize("stream", [False, True])
Events = dict[str, Any]


def events_of(path: str, tokens: int) -> list[Events]:
    return list((message_events if path == MESSAGES else response_events)(tokens))


def stream_of(path: str, tokens: int) -> bytes:
    return b"".join(map(as_bytes, events_of(path, tokens)))


def whole_of(path: str, tokens: int) -> bytes:
    return json.dumps((message_of if path == MESSAGES else response_of)(tokens)).encode()


async def say(turn: Turn, data: bytes) -> None:
    """Send a piece of a stream, with the head first."""
    if turn.response is None:
        turn.response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await turn.response.prepare(turn.request)
    await turn.raw(data)


def answering(tokens: int) -> Callable[[Turn], Awaitable[None]]:
    """Answer with this many tokens."""

    async def act(turn: Turn) -> None:
        path = turn.request.path
        if turn.streams:
            await say(turn, stream_of(path, tokens))
        else:
            turn.response = web.Response(body=whole_of(path, tokens), content_type="application/json")

    return act


def breaking(tokens: int) -> Callable[[Turn], Awaitable[None]]:
    """The connection is reset after so many; after the first events for none."""

    async def act(turn: Turn) -> None:
        path = turn.request.path
        cut = 0
        for event in events_of(path, 4):
            if event["type"].endswith("delta"):
                cut += 1
            if cut > tokens:
                break
            await say(turn, as_bytes(event))
        await asyncio.sleep(0.05)
        turn.die()

    return act


async def ask(front: Front, path: str, *, stream: bool, **headers: str) -> Answer:
    return await front.post({**BODIES[path], "stream": stream}, path, **headers)


@PATHS
@BOTH
async def test_the_client_gets_the_bytes_of_the_instance(path: str, stream: bool) -> None:
    async with upstream(act=answering(4)) as instance, gateway(instance) as front:
        answer = await ask(front, path, stream=stream)
        assert answer.status == 200
        assert answer.body == (stream_of(path, 4) if stream else whole_of(path, 4))
        counts(front, finished=1)
        assert front.accounts.output_tokens == 4


@PATHS
async def test_targets_tenants_and_priorities_go_along(path: str) -> None:
    said = {"x-slo-ttft-ms": "5000", "x-tenant": "blue", "x-dynamo-request-priority": "3"}
    async with upstream(act=answering(1)) as instance, gateway(instance, trust_tenants=True) as front:
        await ask(front, path, stream=False, **said, **{"x-request-id": "mine"})
        body, headers = instance.bodies[0], instance.turns[0].request.headers
        assert 4000 < body["vllm_xargs"]["headway_ttft_ms"] <= 5000
        assert body["vllm_xargs"]["headway_tenant"] == "blue"
        if path == MESSAGES:  # vLLM reads these from headers
            assert (headers["x-vllm-priority"], headers["x-request-id"]) == ("-3", "mine")
            assert not {"priority", "request_id"} & body.keys()
        else:  # it gives out its stored responses by such names only
            assert (body["priority"], body["request_id"]) == (-3, "resp_mine")
        (key,) = front.accounts.classes
        assert key.tenant == "blue"


@PATHS
@BOTH
async def test_what_a_policy_ends_unserved_is_handed_off(path: str, stream: bool) -> None:
    async with (
        upstream("lp-0", act=answering(0)) as low,
        upstream("hp-0", act=answering(4)) as high,
        gateway(low, high, router="ascendra", slo=Slo(ttft_s=60)) as front,
    ):
        answer = await ask(front, path, stream=stream)
        assert answer.body == (stream_of(path, 4) if stream else whole_of(path, 4))
        assert [each.bodies[0]["vllm_xargs"]["headway_may_move"] for each in (low, high)] == [1, 0]
        counts(front, finished=1)
        assert sum(front.accounts.moves.values()) == 1


@PATHS
@BOTH
async def test_where_it_cannot_go_elsewhere_it_is_to_come_again(path: str, stream: bool) -> None:
    async with upstream(act=answering(0)) as instance, gateway(instance) as front:
        answer = await ask(front, path, stream=stream)
        assert (answer.status, "retry-after" in answer.headers) == (429, True)
        said = json.loads(answer.body)
        assert (said["type"], said["error"]["type"]) == ("error", "overloaded")
        counts(front, shed=1)


@PATHS
@BOTH
async def test_what_is_given_up_when_its_target_has_passed_is_told_that_its_time_ran_out(
    path: str, stream: bool
) -> None:
    async def give_up_late(turn: Turn) -> None:
        await asyncio.sleep(0.1)
        await answering(0)(turn)

    async with upstream(act=give_up_late) as instance, gateway(instance) as front:
        answer = await ask(front, path, stream=stream, **{"x-slo-ttft-ms": "50"})
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"]) == (429, "expired")
        assert "its time ran out" in error["message"]
        counts(front, expired=1)


@PATHS
async def test_an_empty_answer_of_an_instance_without_a_policy_is_one(path: str) -> None:
    async with upstream(act=answering(0), headway=False) as instance, gateway(instance) as front:
        assert (await ask(front, path, stream=True)).body == stream_of(path, 0)
        counts(front, finished=1)


@PATHS
async def test_what_breaks_before_its_first_token_is_asked_for_elsewhere(path: str) -> None:
    async with (
        upstream("a", act=breaking(0)) as first,
        upstream("b", act=answering(4)) as second,
        gateway(first, second) as front,
    ):
        for _ in range(2):
            assert (await ask(front, path, stream=True)).body == stream_of(path, 4)
        assert front.accounts.retried == len(first.turns) > 0
        counts(front, finished=2)


@PATHS
async def test_a_stream_that_breaks_ends_in_an_event_that_says_so(path: str) -> None:
    async with upstream(act=breaking(2)) as instance, gateway(instance) as front:
        answer = await ask(front, path, stream=True)
        *_, name, data = [line for line in answer.body.split(b"\n") if line]
        assert name == b"event: error"
        error = json.loads(data.removeprefix(b"data: "))
        assert error["error"]["code"] == "interrupted"
        assert "[DONE]" not in answer.body.decode()
        assert answer.body.count(b"delta\n") == 2
        counts(front, failed=1)


@PATHS
async def test_an_error_in_the_request_is_the_clients_to_see(path: str) -> None:
    refused = as_bytes({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}})

    async def act(turn: Turn) -> None:
        await say(turn, as_bytes(events_of(path, 4)[0]) + refused)

    async with upstream(act=act) as instance, gateway(instance) as front:
        answer = await ask(front, path, stream=True)
        assert answer.body.endswith(refused)
        assert answer.body.count(b"event: error") == 1
        counts(front, rejected=1)


@pytest.mark.parametrize("header", ["x-api-key", "Authorization"])
async def test_a_key_may_come_as_anthropics_clients_send_it(header: str) -> None:
    async def posted(front: Front, key: str) -> Answer:
        shown = key if header == "x-api-key" else f"Bearer {key}"
        return await front.post(BODIES[MESSAGES], MESSAGES, **{header: shown})

    keys = Keys({b"right": "blue"})
    async with upstream(act=answering(1)) as instance, gateway(instance, keys=keys) as front:
        assert (await posted(front, "wrong")).status == 401
        assert (await posted(front, "right")).status == 200
        assert header not in instance.turns[0].request.headers, "the gateway's keys are its own"
        assert next(iter(front.accounts.classes)).tenant == "blue"
        both = {"Authorization": "Bearer of another", "x-api-key": "right"}
        assert (await front.post(BODIES[MESSAGES], MESSAGES, **both)).status == 200


async def test_conversations_stay_where_their_beginning_is_cached() -> None:
    hashes = iter(range(9))
    first = [{"role": "user", "content": "Why?"}]
    following = [*first, {"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]

    def asked(messages: list[dict[str, str]]) -> dict[str, Any]:
        own = {"type": "text", "text": f"x-anthropic-billing-header: cch={next(hashes)}"}
        system = [own, {"type": "text", "text": "word " * 4000}]
        return {**BODIES[MESSAGES], "system": system, "messages": messages}

    async with (
        upstream("a", act=answering(2)) as one,
        upstream("b", act=answering(2)) as other,
        gateway(one, other, router="cache-aware") as front,
    ):
        for messages in (first, following, following):
            assert (await front.post(asked(messages), MESSAGES)).status == 200
        assert sorted(len(each.turns) for each in (one, other)) == [0, 3]


async def test_the_body_is_read_as_far_as_it_is_the_gateways() -> None:
    async with upstream(act=answering(1)) as instance, gateway(instance) as front:
        refused = await front.post({**BODIES[MESSAGES], "max_tokens": "many"}, MESSAGES)
        assert refused.status == 400
        assert "max_tokens" in json.loads(refused.body)["error"]["message"]
        assert not instance.turns
        assert (await front.post({**BODIES[RESPONSES], "n": 3}, RESPONSES)).status == 200
