"""Prompts at prefill instances, answers at decode instances, as clients and instances see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headway.gateway.book.accounts import Entry, Prefill
from tests.gateway.fleets import until
from tests.gateway.front import CHAT, PROMPT, Answer, Front, gateway
from tests.gateway.named_upstream import message_of
from tests.gateway.upstream import Turn, Upstream, answer_ids, prompt_ids, text_of, upstream

PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
BODIES: dict[str, dict[str, Any]] = {"completion": PROMPT, "chat": CHAT}
TRANSFER = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "engine",
    "remote_request_id": "cmpl-1",
    "remote_host": "10.0.0.2",
    "remote_port": 5600,
    "tp_size": 1,
}
TEXT = {
    "completion": text_of(answer_ids(prompt_ids("one two three"), 8)),
    "chat": text_of(answer_ids([1, *prompt_ids("one two three")], 8)),
}


@asynccontextmanager
async def pair(
    *, transfer: dict[str, Any] | None = TRANSFER, **options: Any
) -> AsyncIterator[tuple[Upstream, Upstream, Front]]:
    async with (
        upstream("prefill-0", transfer=transfer) as prefill,
        upstream("decode-0") as decode,
        gateway(prefill, decode, router="prefill-decode", **options) as front,
    ):
        yield prefill, decode, front


async def ended(front: Front) -> Entry:
    """The one request there was, which has ended."""
    await front.idle()
    (entry,) = front.accounts.recent
    return entry


def text(answer: Answer, stream: bool) -> str:
    if stream:
        return answer.text
    (choice,) = answer.json["choices"]
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


def dying(upstream: Upstream) -> None:
    async def act(turn: Turn) -> None:
        turn.die()

    upstream.act = act


@pytest.mark.parametrize("transfer", [TRANSFER, None])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PATHS)
async def test_the_prompt_goes_to_one_instance_and_the_request_with_its_answer_to_another(
    kind: str, stream: bool, transfer: dict[str, Any] | None
) -> None:
    """Whether the prefill instance tells where the KV is (NIXL), or storage is shared (ExampleConnector)."""
    body = {**BODIES[kind], "stream": stream, "min_tokens": 2, "request_id": "r1"}
    if stream:
        body["stream_options"] = {"include_usage": True}
    async with pair(transfer=transfer) as (prefill, decode, front):
        answer = await front.post(body, PATHS[kind])
        assert answer.status == 200
        assert text(answer, stream) == TEXT[kind]
        (first,), (second,) = prefill.bodies, decode.bodies
        assert first["kv_transfer_params"]["do_remote_decode"] is True
        assert first["kv_transfer_params"]["do_remote_prefill"] is False
        assert (first["max_tokens"], first["request_id"]) == (1, "r1")
        assert not first.keys() & {"stream", "stream_options", "min_tokens"}
        assert second.get("kv_transfer_params") == transfer
        assert (second["max_tokens"], second["min_tokens"], second["stream"]) == (8, 2, stream)
        entry = await ended(front)
        assert entry.places == ["prefill-0", "decode-0"]
        assert (entry.prefill, entry.outcome, entry.tokens) == (Prefill.APART, "finished", 8)
        assert entry.prefill_s is not None
        assert entry.ttft_s is not None
        assert entry.prefill_s <= entry.ttft_s


async def test_both_limits_of_a_chat_are_one_token() -> None:
    body = {**CHAT, "max_completion_tokens": 8}
    async with pair() as (prefill, decode, front):
        await front.post(body, PATHS["chat"])
        assert [prefill.bodies[0][name] for name in ("max_tokens", "max_completion_tokens")] == [1, 1]
        assert [decode.bodies[0][name] for name in ("max_tokens", "max_completion_tokens")] == [8, 8]


async def test_a_chat_without_a_limit_gets_one_for_its_prompt() -> None:
    body = {"model": "small", "messages": CHAT["messages"]}
    async with pair() as (prefill, decode, front):
        await front.post(body, PATHS["chat"])
        assert prefill.bodies[0]["max_tokens"] == 1
        assert "max_tokens" not in decode.bodies[0]


async def test_targets_travel_with_the_request() -> None:
    """The prompt is due when the first token is; pace is the decode instance's, and so is what is left of the rest."""
    hints = {
        "headway_ttft_ms": 60_000,
        "headway_tbt_ms": 50,
        "headway_deadline_ms": 120_000,
        "headway_length": 9,
    }
    async with pair() as (prefill, decode, front):
        await front.post({**PROMPT, "vllm_xargs": hints})
        first, second = prefill.turns[0].xargs, decode.turns[0].xargs
        assert not first.keys() & {"headway_tbt_ms", "headway_length"}
        assert (second["headway_tbt_ms"], second["headway_length"]) == (50, 9)
        for name in ("headway_ttft_ms", "headway_deadline_ms"):
            assert 0 < second[name] < first[name] < hints[name]
        assert first["headway_may_move"] == second["headway_may_move"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_decode_instance_computes_a_prompt_whose_prefill_instance_died(stream: bool) -> None:
    async with pair() as (prefill, decode, front):
        dying(prefill)
        answer = await front.post({**PROMPT, "stream": stream})
        assert text(answer, stream) == TEXT["completion"]
        (body,) = decode.bodies
        assert "kv_transfer_params" not in body
        entry = await ended(front)
        assert (entry.prefill, entry.outcome) == (Prefill.FAILED, "finished")
        assert front.accounts.totals.ended == 1


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_what_a_prefill_instance_refuses_the_decode_instance_judges(status: int) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(status, b'{"error": {"message": "not here"}}')

    async with pair() as (prefill, _, front):
        prefill.act = refuse
        answer = await front.post(PROMPT)
        assert (answer.status, text(answer, stream=False)) == (200, TEXT["completion"])


async def test_without_a_prefill_instance_that_is_ready() -> None:
    async with pair() as (prefill, decode, front):
        prefill.sick = True
        await until(lambda: front.fleet.names() == ("decode-0",))
        assert text(await front.post(PROMPT), stream=False) == TEXT["completion"]
        assert (len(prefill.turns), len(decode.turns)) == (0, 1)
        assert (await ended(front)).prefill is Prefill.NONE


async def test_without_a_decode_instance_that_is_ready() -> None:
    async with pair() as (prefill, decode, front):
        decode.sick = True
        await until(lambda: front.fleet.names() == ("prefill-0",))
        assert text(await front.post(PROMPT), stream=False) == TEXT["completion"]
        assert not decode.turns
        assert prefill.bodies[-1]["max_tokens"] == 8


@pytest.mark.parametrize("how", ["status", "event", "dies"])
async def test_a_transfer_that_fails_costs_one_more_prefill(how: str) -> None:
    """As vLLM fails a request whose KV did not come: HTTP 500, or an error as the first event of a stream."""

    async def fail_transfers(turn: Turn) -> None:
        if "kv_transfer_params" not in turn.body:
            await turn.answer()
        elif how == "dies":
            turn.die()
        elif how == "status":
            await turn.refuse(500, b'{"error": {"message": "KV cache load failed", "code": 500}}')
        else:
            await turn.begin()
            await turn.event({"error": {"message": "KV cache load failed", "code": 500}})

    async with pair() as (_, decode, front):
        decode.act = fail_transfers
        answer = await front.post({**PROMPT, "stream": how == "event"})
        assert text(answer, how == "event") == TEXT["completion"]
        *failed, last = ["kv_transfer_params" in body for body in decode.bodies]
        assert all(failed)  # two if it dies: the first may have met a connection that had been closed before
        assert not last
        entry = await ended(front)
        assert (entry.prefill, entry.prefilled_s, entry.outcome) == (Prefill.FAILED, None, "finished")
        assert front.accounts.prefills == {Prefill.APART: 1, Prefill.FAILED: 1}
        assert front.accounts.totals.ended == 1


async def test_a_request_that_brings_instances_down_spares_one() -> None:
    async with (
        upstream("prefill-0") as prefill,
        upstream("decode-0") as first,
        upstream("decode-1") as second,
        gateway(prefill, first, second, router="prefill-decode") as front,
    ):
        for each in (prefill, first, second):
            dying(each)
        assert (await front.post(PROMPT)).status == 502
        assert prefill.turns
        assert bool(first.turns) != bool(second.turns)
        assert (await ended(front)).outcome == "failed"


async def test_a_stream_that_breaks_goes_on_at_another_decode_instance() -> None:
    async def breaking(turn: Turn) -> None:
        await turn.begin()
        for _ in range(3):
            await turn.token()
        await asyncio.sleep(0.01)  # so that the gateway has read what was sent
        turn.die()

    async with (
        upstream("prefill-0", transfer=TRANSFER) as prefill,
        upstream("decode-0", act=breaking) as first,
        upstream("decode-1") as second,
        gateway(prefill, first, second, router="prefill-decode") as front,
    ):
        assert (await front.post({**PROMPT, "stream": True})).text == TEXT["completion"]
        assert len(prefill.turns) == 1
        assert "kv_transfer_params" not in second.bodies[0]
        entry = await ended(front)
        assert (entry.prefill, entry.resumes, entry.places[-1]) == (Prefill.APART, 1, "decode-1")


@pytest.mark.parametrize("reason", ["expired", "shed"])
async def test_what_a_policy_ends_at_the_prefill_instance_has_ended(reason: str) -> None:
    async def leave(turn: Turn) -> None:
        await turn.leave(reason)

    async with pair() as (prefill, decode, front):
        prefill.act = leave
        answer = await front.post(PROMPT)
        assert (answer.status, answer.error["code"]) == (429, reason)
        assert not decode.turns
        assert (await ended(front)).outcome == reason


async def test_a_client_that_leaves_during_the_prompt() -> None:
    async def hang(turn: Turn) -> None:
        await asyncio.sleep(3600)

    async with pair() as (prefill, decode, front):
        prefill.act = hang
        task = asyncio.create_task(front.post(PROMPT))
        await until(lambda: prefill.running)
        task.cancel()
        await prefill.gone.wait()
        assert (await ended(front)).outcome == "cancelled"
        assert not decode.turns


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**PROMPT, "n": 2}),
        ("/v1/completions", {**PROMPT, "prompt": [[1, 2], [3, 4]]}),
        ("/v1/completions", {**PROMPT, "prompt_logprobs": 0}),
        ("/v1/completions", {**PROMPT, "echo": True}),
        ("/v1/chat/completions", {**CHAT, "use_beam_search": True}),
        ("/v1/responses", {"model": "small", "input": "one two three", "max_output_tokens": 8}),
    ],
)
async def test_requests_that_the_decode_instance_serves_alone(path: str, body: dict[str, Any]) -> None:
    async def answer(turn: Turn) -> None:
        await turn.refuse(200, b'{"choices": [], "usage": {"completion_tokens": 1}}')

    async with pair() as (prefill, decode, front):
        decode.act = answer
        assert (await front.post(body, path)).status == 200
        assert not prefill.turns
        assert "kv_transfer_params" not in decode.bodies[0]
        assert (await ended(front)).prefill is Prefill.NONE


async def test_messages_have_a_prompt_too() -> None:
    async def prompt(turn: Turn) -> None:
        await turn.refuse(200, json.dumps({**message_of(1), "kv_transfer_params": TRANSFER}).encode())

    async def answer(turn: Turn) -> None:
        await turn.refuse(200, json.dumps(message_of(8)).encode())

    async with pair() as (prefill, decode, front):
        prefill.act, decode.act = prompt, answer
        body = {**CHAT, "thinking": {"type": "enabled", "budget_tokens": 4}}
        assert (await front.post(body, "/v1/messages")).json == message_of(8)
        assert prefill.bodies[0]["max_tokens"] == 1
        assert decode.bodies[0]["kv_transfer_params"] == TRANSFER


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses"])
async def test_a_client_may_not_say_where_kv_is(path: str) -> None:
    async with pair() as (prefill, decode, front):
        answer = await front.post({**PROMPT, "input": "x", "kv_transfer_params": TRANSFER}, path)
        assert (answer.status, answer.error["param"]) == (400, "kv_transfer_params")
        assert not prefill.turns
        assert not decode.turns
        assert (await ended(front)).rejected
        assert (await front.post({**PROMPT, "kv_transfer_params": None})).status == 200


async def test_limits_count_decode_instances() -> None:
    async with pair(max_in_flight=1) as (prefill, decode, front):
        decode.delay_s = 0.01
        answers = await asyncio.gather(*(front.post({**PROMPT, "stream": True}) for _ in range(4)))
        assert {answer.text for answer in answers} == {TEXT["completion"]}
        assert len(prefill.turns) == len(decode.turns) == 4
        assert (await front.post({**PROMPT, "n": 2})).error["code"] == "too_many_sequences"
        assert front.accounts.totals.rejected == 1


async def test_a_prompt_goes_where_its_beginning_is() -> None:
    async with (
        upstream("prefill-0", transfer=TRANSFER) as first,
        upstream("prefill-1", transfer=TRANSFER) as second,
        upstream("decode-0") as decode,
        gateway(first, second, decode, router="prefill-decode") as front,
    ):
        long = {topic: f"{topic} " * 3000 for topic in ("a", "b")}
        for topic in ("a", "b", "a", "b", "a"):
            await front.post({**PROMPT, "prompt": long[topic]})
        assert sorted(len(each.turns) for each in (first, second)) == [2, 3]
        assert all(len({body["prompt"] for body in each.bodies}) == 1 for each in (first, second))


async def test_both_stages_are_told_of(tmp_path: Any) -> None:
    log = tmp_path / "access.jsonl"
    async with pair(access_log=log) as (_, _, front):
        await front.post({**PROMPT, "request_id": "r1"})
        entry = await ended(front)
        told = (await front.get("/explain/r1")).json["gateway"]
        assert told["instances"] == ["prefill-0", "decode-0"]
        assert told["prefill"] == "apart"
        assert 0 < told["prefill_s"] <= told["ttft_s"]
        line = json.loads(log.read_text())
        assert (line["prefill"], line["instance"]) == ("apart", "decode-0")
        assert entry.prefill_s is not None
        assert line["prefill_ms"] == pytest.approx(entry.prefill_s * 1000, abs=0.001)
        metrics = (await front.get("/metrics")).body
        assert b'headway_gateway_prefills_total{result="apart"} 1.0' in metrics
        assert b'headway_gateway_instance_served_total{name="prefill-0",pool="prefill"} 1.0' in metrics
        state = (await front.get("/dashboard/state")).json
        assert state["prefills"] == {"apart": 1}
        assert [(one["name"], one["served"]) for one in state["instances"]] == [
            ("prefill-0", 1),
            ("decode-0", 1),
        ]
        assert all(one["ttft_p50_s"] is not None for one in state["instances"])
