"""Requests through a gateway over real HTTP: bytes, hand-offs, refusals, losses, and the one end of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from io import BytesIO
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from headway.core.slo import Slo
from headway.gateway.book.classes import RequestCounts
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.fleet.supervisor import Supervisor
from headway.gateway.http.options import Cors
from tests.gateway import test_kept_connections
from tests.gateway.fleets import QUICK, until
from tests.gateway.front import CHAT, PROMPT, Answer, Front, ask, gateway
from tests.gateway.upstream import Turn, Upstream, answer_ids, prompt_ids, text_of, upstream

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ASKS = [pytest.param(COMPLETIONS, PROMPT, id="completion"), pytest.param(CHATS, CHAT, id="chat")]
BOTH = pytest.mark.parametrize("stream", [False, True])
TEXT = text_of(answer_ids(prompt_ids("one two three"), 8))


async def direct(instance: Upstream, front: Front, path: str, body: dict[str, Any]) -> Answer:
    """The instance's answer to the same request without a gateway."""
    instance.turns.clear()
    data = json.dumps(body).encode()
    return await ask(front.session, "POST", instance.url + path, data, {"Content-Type": "application/json"})


def counts(front: Front, **expected: int) -> None:
    """Every request is in exactly these counts."""
    totals = front.accounts.totals
    names = ("finished", "expired", "shed", "failed", "cancelled", "rejected")
    assert {name: getattr(totals, name) for name in names if getattr(totals, name)} == expected
    assert totals.offered == totals.ended


def acts(act: Callable[[Turn], Awaitable[object]], times: int = 1) -> Callable[[Turn], Awaitable[None]]:
    """Do this for the first requests, and answer the others."""

    async def acting(turn: Turn) -> None:
        if len(turn.upstream.turns) <= times:
            await act(turn)
        else:
            await turn.answer()

    return acting


# ---- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "body"), ASKS)
@BOTH
@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("resume", [False, True])
async def test_the_client_gets_the_bytes_of_the_instance(
    path: str, body: dict[str, Any], stream: bool, usage: bool, resume: bool
) -> None:
    body = {**body, "stream": stream, "request_id": "r1"}
    if stream and usage:
        body["stream_options"] = {"include_usage": True}
    async with upstream() as instance, gateway(instance, resume=resume) as front:
        passed = await front.post(body, path)
        plain = await direct(instance, front, path, body)
        assert passed.body == plain.body
        assert passed.status == plain.status == 200
        assert passed.headers["content-type"] == plain.headers["content-type"]
        counts(front, finished=1)
        assert front.accounts.totals.met == 1


@pytest.mark.parametrize("size", [1, 3, 7])
async def test_bytes_may_come_in_any_pieces(size: int) -> None:
    async def act(turn: Turn) -> None:
        write = turn.raw

        async def piecewise(data: bytes) -> None:
            for place in range(0, len(data), size):
                await write(data[place : place + size])
                await asyncio.sleep(0)

        turn.raw = piecewise  # type: ignore[method-assign]
        await turn.answer()

    body = {**CHAT, "stream": True, "request_id": "r"}
    async with upstream() as instance, gateway(instance) as front:
        plain = await direct(instance, front, CHATS, body)
        instance.turns.clear()
        instance.act = act
        assert (await front.post(body, CHATS)).body == plain.body


async def test_odd_but_good_streams_pass_as_they_are() -> None:
    """Comments, other line ends, several answers, characters that end a line elsewhere, and no last newline."""
    events = (
        b": ping\r\n\r\n"
        b'data: {"choices":[{"index":0,"text":"a\xe2\x80\xa8b\xc2\x85c","finish_reason":null}]}\n\n'
        b'data: {"choices":[{"index":0,"text":" \\"headway:\\" {\\"error\\"","finish_reason":null}]}\n\n'
        b'data:{"choices":[{"index":0,"text":"\\"token_ids\\":[1,2]","finish_reason":"stop"}]}\r\n\r\n'
        b"data: [DONE]\n\n: the end"
    )

    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.raw(events)

    async with upstream(act=act) as instance, gateway(instance) as front:
        assert (await front.post({**PROMPT, "stream": True})).body == events
        counts(front, finished=1)


async def test_a_stream_that_somebody_gathered_is_as_good() -> None:
    """A proxy in front of an instance may send it in one piece, and say how long that is."""

    async def act(turn: Turn) -> None:
        pieces: list[bytes] = []

        async def gather(data: bytes) -> None:
            pieces.append(data)

        turn.raw = gather  # type: ignore[method-assign]
        for _ in range(turn.limit - 1):
            await turn.token()
        await turn.token(finish="length")
        await turn.end()
        turn.response = web.Response(body=b"".join(pieces), content_type="text/event-stream")

    async with upstream(act=act) as instance, gateway(instance) as front:
        assert (await front.post({**PROMPT, "stream": True})).text == TEXT
        counts(front, finished=1)


async def test_an_end_mark_may_be_the_last_of_all_bytes() -> None:
    async def act(turn: Turn) -> None:
        await turn.begin()
        for index in (0, 1):
            await turn.event({"choices": [{"index": index, "text": "x", "finish_reason": "stop"}]})
        await turn.raw(b"data: [DONE]")

    async with upstream(version=None, act=act) as instance, gateway(instance) as front:
        assert (await front.post({**PROMPT, "stream": True, "n": 2})).body.endswith(b"\n\ndata: [DONE]")
        counts(front, finished=1)


def several(*outcomes: str | None) -> Callable[[Turn], Awaitable[None]]:
    """An instance that answers several sequences: whole (None), or ended by a policy for the reason given."""

    async def act(turn: Turn) -> None:
        choices = [
            {"index": index, "text": "x", "finish_reason": "stop", "stop_reason": None}
            if reason is None
            else {"index": index, "text": "", "finish_reason": "abort", "stop_reason": f"headway:{reason}"}
            for index, reason in enumerate(outcomes)
        ]
        if not turn.streams:
            body = json.dumps({**turn.head, "choices": choices, "usage": {"completion_tokens": 1}}).encode()
            await turn.refuse(200, body, **{"Content-Type": "application/json"})
            return
        await turn.begin()
        for choice in choices:
            await turn.event({**turn.head, "choices": [choice]})
            await asyncio.sleep(0.01)
        await turn.end()

    return act


SEVERAL = pytest.mark.parametrize("asked", [{"n": 2}, {"prompt": ["one", "two"]}])


@SEVERAL
@BOTH
async def test_several_answers_that_a_policy_ends_unserved_are_a_429(
    asked: dict[str, Any], stream: bool
) -> None:
    async with upstream(act=several("expired", "expired")) as instance, gateway(instance) as front:
        answer = await front.post({**PROMPT, **asked, "stream": stream})
        assert (answer.status, answer.error["code"]) == (429, "expired")
        assert answer.error["message"] == "its time ran out before all of its 2 answers were begun"
        assert int(answer.headers["retry-after"]) >= 1
        counts(front, expired=1)
        instance.act = several("shed", "shed")
        assert (await front.post({**PROMPT, **asked, "stream": stream})).error["code"] == "shed"
        counts(front, expired=1, shed=1)


@SEVERAL
async def test_several_answers_of_which_a_policy_ends_one_are_no_answer(asked: dict[str, Any]) -> None:
    """The request failed whole if some of its answers never came; the client is told so in any case."""
    for outcomes in ((None, "expired"), ("expired", None)):
        async with upstream(act=several(*outcomes)) as instance, gateway(instance) as front:
            assert (await front.post({**PROMPT, **asked})).error["code"] == "expired"
            counts(front, expired=1)
            answer = await front.post({**PROMPT, **asked, "stream": True})
            if outcomes[0] is None:  # its text has reached the client, so the stream ends in an error
                assert "ended by the policy (headway:expired)" in answer.events[-1]["error"]["message"]
                counts(front, expired=1, failed=1)
            else:
                assert answer.error["code"] == "expired"
                counts(front, expired=2)


async def test_several_answers_that_an_instance_hands_off_are_served_by_another() -> None:
    async with (
        upstream("lp-0", act=several("handed_off", "handed_off")) as low,
        upstream("hp-0", act=several(None, None)) as high,
        gateway(low, high, router="ascendra") as front,
    ):
        answer = await front.post({**PROMPT, "n": 2})
        assert [choice["finish_reason"] for choice in answer.json["choices"]] == ["stop", "stop"]
        assert (len(low.turns), len(high.turns)) == (1, 1)
        counts(front, finished=1)


@pytest.mark.parametrize("usage", [False, True])
async def test_one_of_several_answers_is_not_all(usage: bool) -> None:
    """The first has come to its end, and the second has not: the client must not take that for the whole."""

    async def act(turn: Turn) -> None:
        await turn.begin()
        for index, finish in ((0, "stop"), (1, None)):
            await turn.event({"choices": [{"index": index, "text": "x", "finish_reason": finish}]})
        await asyncio.sleep(0.01)
        turn.die()

    async with upstream(act=act) as instance, gateway(instance) as front:
        body = {**PROMPT, "stream": True, "n": 2, "stream_options": {"include_usage": usage}}
        assert "error" in (await front.post(body)).events[-1]
        counts(front, failed=1)


async def test_a_large_prompt_goes_through() -> None:
    async with upstream() as instance, gateway(instance) as front:
        body = {**PROMPT, "prompt": "word " * 500_000}
        data = BytesIO(json.dumps(body).encode())
        async with front.session.post(front.url + COMPLETIONS, data=data) as response:
            assert response.status == 200
        assert instance.bodies[0]["prompt"] == body["prompt"]


@pytest.mark.parametrize("status", [400, 404, 422, 429])
@BOTH
async def test_an_instances_errors_pass_unchanged(status: int, stream: bool) -> None:
    error = b'{"error": {"message": "no such model", "type": "NotFoundError", "param": null, "code": 404}}'

    async def act(turn: Turn) -> None:
        await turn.refuse(status, error, **{"Content-Type": "application/json", "X-Told": "1"})

    async with (
        upstream("a", act=act) as first,
        upstream("b", act=act) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**PROMPT, "stream": stream})
        assert (answer.status, answer.body, answer.headers["x-told"]) == (status, error, "1")
        assert len(first.turns) + len(second.turns) == 1
        await front.idle()
        counts(front, **{"shed" if status == 429 else "rejected": 1})


@pytest.mark.parametrize("answers", [1, 2])
async def test_an_instances_error_inside_a_stream_is_no_answer(answers: int) -> None:
    """One in the request, as nothing would have served it: it is the client's, and not in goodput."""

    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.event({"error": {"message": "too long", "type": "BadRequestError", "code": 400}})
        await turn.raw(b"data: [DONE]\n\n")

    async with upstream("a", act=act) as instance, gateway(instance, slo=Slo(deadline_s=100)) as front:
        answer = await front.post({**PROMPT, "stream": True, "n": answers})
        assert [event["error"]["message"] for event in answer.events] == ["too long"]
        counts(front, rejected=1)
        assert front.accounts.totals.goodput is None


async def test_what_the_instance_is_sent() -> None:
    async with upstream() as instance, gateway(instance, trust_tenants=True) as front:
        body = {**PROMPT, "stream": True, "vllm_xargs": {"other": "kept", "headway_ttft_ms": 2000}}
        await front.post(
            body,
            x_tenant="blue",
            X_Vllm_Priority="3",
            Traceparent="00-ab-cd-01",
            X_Slo_Tpot_Ms="80",
            Content_Encoding="gzip",
        )
        (turn,) = instance.turns
        sent = dict(turn.body)
        xargs = sent.pop("vllm_xargs")
        assert 1900 < xargs.pop("headway_ttft_ms") <= 2000
        # Its router hands nothing off, so nobody would take it.
        told = {"headway_tbt_ms": 80, "headway_tenant": "blue", "headway_may_move": 0}
        assert xargs == {"other": "kept", **told}
        assert len(sent.pop("request_id")) == 32
        expected = {**body, "priority": 3, "return_token_ids": True}
        assert sent == {name: value for name, value in expected.items() if name != "vllm_xargs"}
        headers = turn.request.headers
        assert headers["traceparent"] == "00-ab-cd-01"
        assert "content-encoding" not in headers  # the body is the gateway's own
        assert not {"x-tenant", "x-vllm-priority", "x-slo-tpot-ms"} & {name.lower() for name in headers}


async def test_a_plain_server_is_sent_the_clients_fields_alone() -> None:
    async with upstream(version=None, headway=False) as instance, gateway(instance) as front:
        body = {**PROMPT, "stream": True}
        answer = await front.post(body, x_slo_ttft_ms="500")
        assert instance.bodies == [body]
        assert answer.text == TEXT
        assert next(iter(front.accounts.classes)).slo == "ttft=0.5s"


# ---- moves --------------------------------------------------------------------------------------------------------


def ascendra(*upstreams: Upstream, **options: Any) -> Any:
    return gateway(*upstreams, router="ascendra-no-ticket", **options)


@pytest.mark.parametrize(("path", "body"), ASKS)
@BOTH
async def test_a_hand_off_is_invisible(path: str, body: dict[str, Any], stream: bool) -> None:
    body = {**body, "stream": stream, "request_id": "r", "vllm_xargs": {"headway_ttft_ms": 5000}}

    async def act(turn: Turn) -> None:
        await asyncio.sleep(0.1)
        await turn.leave("handed_off")

    async with upstream("lp-0", act=act) as low, upstream("hp-0") as high, ascendra(low, high) as front:
        answer = await front.post(body, path)
        plain = await direct(high, front, path, high.bodies[0] | {"return_token_ids": False})
        assert answer.body == plain.body
        (first,), second = low.turns, front.accounts
        assert 4800 < first.xargs["headway_ttft_ms"] <= 5000
        assert first.xargs["headway_may_move"] == 1
        assert dict(second.moves) == {("lp-0", "hp-0"): 1}
        counts(front, finished=1)


async def test_what_is_handed_off_has_less_time_left_and_moves_no_more() -> None:
    async def act(turn: Turn) -> None:
        await asyncio.sleep(0.2)
        await turn.leave("handed_off")

    async with upstream("lp-0", act=act) as low, upstream("hp-0") as high, ascendra(low, high) as front:
        await front.post({**PROMPT, "stream": True}, x_slo_ttft_ms="5000", x_slo_deadline_ms="150")
        (xargs,) = (turn.xargs for turn in high.turns)
        assert 3000 < xargs["headway_ttft_ms"] <= 4800
        assert xargs["headway_deadline_ms"] == 1
        assert xargs["headway_may_move"] == 0


async def test_with_nobody_to_take_it_it_goes_back_and_stays() -> None:
    async def act(turn: Turn) -> None:
        await turn.leave("handed_off")

    async with upstream("lp-0", act=acts(act)) as low, ascendra(low) as front:
        assert (await front.post({**PROMPT, "stream": True})).text == TEXT
        assert [turn.xargs.get("headway_may_move") for turn in low.turns] == [1, 0]


async def test_an_lp_instance_is_told_what_waits_at_hp_instances_with_each_request() -> None:
    begin = asyncio.Event()

    async def give_up(turn: Turn) -> None:
        await turn.leave("handed_off")

    async def wait(turn: Turn) -> None:
        await begin.wait()
        await turn.answer()

    async with (
        upstream("lp-0", act=give_up) as low,
        upstream("hp-0", act=wait) as high,
        ascendra(low, high) as front,
    ):
        urgent = {**PROMPT, "stream": True, "vllm_xargs": {"headway_ttft_ms": 60_000}}
        answers = []
        for waiting in (1, 2, 3):
            answers.append(asyncio.create_task(front.post(urgent)))
            await until(lambda waiting=waiting: len(high.turns) == waiting)  # type: ignore[misc]
        told = [int(turn.xargs["headway_waiting_elsewhere"]) for turn in low.turns]
        assert told[0] == 0 < told[1]
        assert told == [0, told[1], 2 * told[1]]
        assert not any("headway_waiting_elsewhere" in turn.xargs for turn in high.turns)
        begin.set()
        assert [(await answer).text for answer in answers] == [TEXT] * 3
        assert dict(front.accounts.moves) == {("lp-0", "hp-0"): 3}
        await front.idle()
        counts(front, finished=3)


async def test_one_that_is_always_handed_back_is_refused_in_the_end() -> None:
    async def act(turn: Turn) -> None:
        await turn.leave("handed_off")

    async with upstream("lp-0", act=act) as low, ascendra(low, max_moves=2) as front:
        answer = await front.post({**PROMPT, "stream": True})
        assert answer.status == 429
        assert len(low.turns) == 3
        counts(front, shed=1)


@pytest.mark.parametrize("reason", ["expired", "shed"])
@BOTH
async def test_an_expiry_is_a_clean_429(reason: str, stream: bool) -> None:
    async def act(turn: Turn) -> None:
        await turn.leave(reason)

    async with upstream(act=act) as instance, gateway(instance) as front:
        answer = await front.post({**CHAT, "stream": stream}, CHATS, x_tenant="blue")
        assert answer.status == 429
        assert answer.error["type"] == "overloaded"
        assert answer.error["code"] == reason
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["retry-after"]) >= 1
        counts(front, **{reason: 1})
        (note,) = front.accounts.refusals
        assert (note.status, note.code, note.tenant) == (429, reason, "blue")


# ---- losses -------------------------------------------------------------------------------------------------------


async def abort(turn: Turn) -> None:
    turn.die()
    await asyncio.sleep(0)


async def nonsense(turn: Turn) -> None:
    await turn.refuse(200, b"<html>busy</html>", **{"Content-Type": "text/html"})


async def fault(turn: Turn) -> None:
    await turn.refuse(500, b'{"error": {"message": "boom"}}', **{"Content-Type": "application/json"})


async def early_error(turn: Turn) -> None:
    if not turn.streams:
        await fault(turn)
        return
    await turn.begin()
    await turn.raw(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\ndata: [DONE]\n\n')


async def no_events(turn: Turn) -> None:
    turn.body["stream"] = True
    await turn.begin()
    await turn.raw(b"data: <html>\n\n")


async def nothing(turn: Turn) -> None:
    await turn.begin()


@pytest.mark.parametrize("how", [abort, nonsense, fault, early_error, no_events, nothing])
@BOTH
async def test_what_breaks_unstarted_is_served_elsewhere(
    how: Callable[[Turn], Awaitable[None]], stream: bool
) -> None:
    async with upstream("a", act=how) as first, upstream("b") as second, gateway(first, second) as front:
        answer = await front.post({**PROMPT, "stream": stream})
        assert answer.status == 200
        assert (answer.text if stream else answer.json["choices"][0]["text"]) == TEXT
        assert len(second.turns) == 1
        assert front.accounts.retried == 1
        counts(front, finished=1)


async def test_an_error_is_the_end_of_several_answers_too() -> None:
    async def late_error(turn: Turn) -> None:
        await turn.begin()
        await turn.event({"choices": [{"index": 0, "text": "x", "finish_reason": None}]})
        await turn.raw(b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\ndata: [DONE]\n\n')

    body = {**PROMPT, "stream": True, "n": 2}
    async with (
        upstream("a", act=acts(early_error)) as first,
        upstream("b") as second,
        gateway(first, second) as front,
    ):
        assert (await front.post(body)).text == TEXT
        assert front.accounts.retried == 1
        counts(front, finished=1)
        first.act = second.act = late_error
        events = (await front.post(body)).events
        assert [each["error"]["message"] for each in events[1:]] == [
            "EngineCore died; its tokens are not known"
        ]
        counts(front, finished=1, failed=1)


async def test_an_instances_own_error_reaches_the_client_if_all_have_it() -> None:
    sick: dict[str, Any] = {"act": fault}
    async with (
        upstream("a", **sick) as first,
        upstream("b", **sick) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**PROMPT, "stream": True})
        assert (answer.status, answer.error["message"]) == (500, "boom")
        assert len(first.turns) == len(second.turns) == 1
        await front.idle()
        counts(front, failed=1)


async def no_words(turn: Turn) -> None:
    await turn.refuse(500, b"\xff\xfe")


@pytest.mark.parametrize(("how", "asked"), [(nonsense, 2), (no_words, 1)])
async def test_nobody_who_answers_is_a_502(how: Callable[[Turn], Awaitable[None]], asked: int) -> None:
    async with upstream("a", act=how) as only, gateway(only, max_tries=2) as front:
        answer = await front.post({**PROMPT, "stream": True})
        assert (answer.status, answer.error["code"]) == (502, "bad_instance")
        assert len(only.turns) == asked
        counts(front, failed=1)


@pytest.mark.parametrize(("stale_shows_s", "asked"), [(60.0, 2), (0.0, 1)], ids=["at once", "later"])
async def test_what_breaks_at_once_is_sent_again_on_another_connection(
    stale_shows_s: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.gateway.request.attempt._STALE_SHOWS_S", stale_shows_s)
    async with upstream("a", act=abort) as only, gateway(only, max_tries=1) as front:
        assert (await front.post(PROMPT)).status == 502
        assert len(only.turns) == asked


@pytest.mark.parametrize("how", ["abort", "fault"])
@pytest.mark.parametrize(("instances", "asked"), [(2, 2), (3, 2), (4, 3), (5, 3)])
async def test_who_may_be_what_breaks_instances_does_not_break_them_all(
    instances: int, asked: int, how: str
) -> None:
    act, status = {"abort": (abort, 502), "fault": (fault, 500)}[how]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(name, act=act)) for name in "abcde"[:instances]]
        front = await stack.enter_async_context(gateway(*servers))
        assert (await front.post(PROMPT)).status == status
        assert sum(bool(server.turns) for server in servers) == asked


async def test_instances_that_are_parked_are_none_that_it_may_break() -> None:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(name, act=abort)) for name in "abc"]
        front = await stack.enter_async_context(gateway(*servers))
        for name in ("d", "e"):
            parked = Member(name, url="http://127.0.0.1:1", condition=Condition.PARKED)
            front.fleet._supervisors[name] = Supervisor(parked, QUICK, lambda: 0.0, front.fleet.adapters)
        assert (await front.post(PROMPT)).status == 502
        assert sum(bool(server.turns) for server in servers) == 2


PATIENT = replace(QUICK, timeout_s=60.0, garbage_pause_s=3600.0)
"""For tests in which an instance is to be unwell for what it answers alone, and for as long as the test takes."""


async def test_an_instance_that_answers_garbage_gets_a_pause() -> None:
    async with (
        upstream("a", act=nonsense) as first,
        upstream("b") as second,
        gateway(first, second, fleet_options=PATIENT) as front,
    ):
        for _ in range(8):
            assert (await front.post(PROMPT)).status == 200
        assert len(first.turns) == 3
        assert front.fleet.member("a").failures == 1


@pytest.mark.parametrize("instances", [1, 2])
@BOTH
async def test_a_request_that_every_instance_answers_with_garbage_pauses_none(
    instances: int, stream: bool
) -> None:
    async def provoked(turn: Turn) -> None:
        await (nonsense if turn.body["prompt"] == "provoke" else Turn.answer)(turn)

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(upstream(name, act=provoked)) for name in "ab"[:instances]]
        front = await stack.enter_async_context(gateway(*servers, fleet_options=PATIENT))
        for _ in range(4):
            answer = await front.post({**PROMPT, "prompt": "provoke", "stream": stream})
            assert (answer.status, answer.error["code"]) == (502, "bad_instance")
        assert {member.condition for member in front.fleet.members} == {Condition.READY}
        assert (await front.post({**PROMPT, "stream": stream})).status == 200


async def test_an_origin_of_any_length_makes_no_answer_unreadable() -> None:
    """vLLM repeats it to clients with a cookie, and no HTTP client reads a header of any length."""

    async def repeat(turn: Turn) -> None:
        await turn.answer()
        assert turn.response is not None
        turn.response.headers["Access-Control-Allow-Origin"] = turn.request.headers.get("Origin", "*")

    cors = Cors(allow_origins=("*",))
    async with upstream(act=repeat) as instance, gateway(instance, cors=cors) as front:
        assert (await front.post(PROMPT, Origin="https://" + "x" * 9000, Cookie="a=b")).status == 200


async def test_a_frozen_instance_loses_its_requests_to_another() -> None:
    async def freeze(turn: Turn) -> None:
        turn.upstream.sick = True
        await asyncio.sleep(3600)

    async with upstream("a", act=freeze) as first, upstream("b") as second, gateway(first, second) as front:
        answer = await front.post({**PROMPT, "stream": True})
        assert answer.text == TEXT
        await asyncio.wait_for(first.gone.wait(), 5)
        assert len(second.turns) == 1
        counts(front, finished=1)


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_connection_closed_meanwhile_costs_nothing(
    answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that closes connections it had kept: the request goes out once more, on a new one."""
    whole = b'{"choices": [{"text": "x", "finish_reason": "length"}]}'
    monkeypatch.setattr(test_kept_connections, "completion", lambda: whole)
    closing = test_kept_connections.Closing(answers=answers)
    async with await asyncio.start_server(closing.serve, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        async with gateway(Upstream(url=f"http://{host}:{port}")) as front:
            assert [(await front.post(PROMPT)).body for _ in range(6)] == [whole] * 6
            assert answers in closing.completions  # some did find theirs closed
            assert front.accounts.retried == 0


async def test_no_instance_is_a_503() -> None:
    async with upstream() as instance, gateway(instance) as front:
        instance.sick = True
        await until(lambda: not front.fleet.names())
        answer = await front.post(PROMPT)
        assert (answer.status, answer.error["code"]) == (503, "no_instance")
        assert answer.headers["retry-after"] == "5"
        assert (await front.get("/ready")).status == 503
        assert (await front.get("/health")).status == 200
        instance.sick = False
        await until(front.fleet.names)
        assert (await front.post(PROMPT)).status == 200
        counts(front, finished=1, failed=1)


# ---- clients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 2])
@BOTH
async def test_a_client_that_leaves_ends_the_work_at_once(tokens: int, stream: bool) -> None:
    async def act(turn: Turn) -> None:
        if stream:
            await turn.begin()
            for _ in range(tokens):
                await turn.token()
        await asyncio.sleep(3600)

    async with upstream(act=act) as instance, gateway(instance) as front:
        async with aiohttp.ClientSession() as leaving:
            asking = asyncio.create_task(
                leaving.post(front.url + COMPLETIONS, json={**PROMPT, "stream": stream})
            )
            await until(lambda: instance.running)
            if stream and tokens:
                response = await asking
                await response.content.readany()
                response.close()
            asking.cancel()
        await asyncio.wait_for(instance.gone.wait(), 1)
        await front.idle()
        counts(front, cancelled=1)


async def test_a_client_that_reads_nothing_holds_only_itself_up() -> None:
    """Its bytes stay where they are, and others are served beside it."""

    async def flood(turn: Turn) -> None:
        await turn.begin()
        while True:
            await turn.event({"choices": [{"index": 0, "text": "x" * 60_000, "finish_reason": None}]})

    async with upstream(act=acts(flood)) as instance, gateway(instance) as front:
        reader, writer = await asyncio.open_connection(*front.url.removeprefix("http://").split(":"))
        body = json.dumps({**PROMPT, "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await reader.readline()
        await until(lambda: front.accounts.totals.offered)
        for _ in range(20):
            assert (await front.post(PROMPT)).status == 200
        writer.transport.abort()
        await asyncio.wait_for(instance.gone.wait(), 5)
        await front.idle()
        counts(front, finished=20, cancelled=1)


async def test_figures_of_a_stream_are_the_clients() -> None:
    async with upstream(delay_s=0.02) as instance, gateway(instance, slo=Slo(ttft_s=5, tbt_s=0.001)) as front:
        await front.post({**PROMPT, "stream": True}, X_Tenant="blue")
        ((key, account),) = front.accounts.classes.items()
        assert key == ("ttft=5s tbt=0.001s", "blue")
        assert account.totals == RequestCounts(offered=1, finished=1, met=0)
        assert account.output_tokens == 8
        assert account.ttft.count == account.tbt.count == 1
        assert 0.02 <= account.tbt.sum_s < 1
        assert instance.bodies[0]["vllm_xargs"]["headway_tbt_ms"] == 1
