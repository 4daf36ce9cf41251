"""Comments before the first token: they reach the client, and the request can still be served elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headway.gateway.http.events import comments_apart
from tests.gateway.fleets import until
from tests.gateway.front import CHAT, PROMPT, Front, gateway
from tests.gateway.test_serving import CHATS, COMPLETIONS, TEXT, counts
from tests.gateway.upstream import Turn, answer_ids, prompt_ids, text_of, upstream

COMMENT = b": keep-alive\n\n"
STREAM = {**PROMPT, "stream": True}
BUSY = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}


async def abort(turn: Turn) -> None:
    turn.die()


async def hand_off(turn: Turn) -> None:
    await turn.event({"choices": [turn._choice("", [], "abort", "headway:handed_off", first=True)]})
    await turn.end()


async def shed(turn: Turn) -> None:
    await turn.event({"choices": [turn._choice("", [], "abort", "headway:shed", first=True)]})
    await turn.end()


async def early_error(turn: Turn) -> None:
    await turn.event(BUSY)


def commenting(
    then: Callable[[Turn], Awaitable[object]], let_go: asyncio.Event
) -> Callable[[Turn], Awaitable[None]]:
    """Send the head and a comment; do the rest once the test has seen that."""

    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.raw(COMMENT)
        await let_go.wait()
        await then(turn)

    return act


async def open_stream(front: Front, body: dict[str, Any], path: str, let_go: asyncio.Event) -> bytes:
    """All bytes of a stream that must begin with a comment."""
    headers = {"Content-Type": "application/json"}
    async with front.session.post(front.url + path, data=json.dumps(body), headers=headers) as response:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        first = await response.content.readany()
        assert first == COMMENT
        let_go.set()
        return first + await response.read()


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, STREAM), (CHATS, {**CHAT, "stream": True})])
@pytest.mark.parametrize("then", [abort, hand_off, early_error])
async def test_a_comment_comes_at_once_and_the_request_can_still_go_elsewhere(
    path: str, body: dict[str, Any], then: Callable[[Turn], Awaitable[object]]
) -> None:
    let_go = asyncio.Event()
    async with (
        upstream("lp-0") as first,
        upstream("hp-0") as second,
        gateway(first, second, router="ascendra") as front,
    ):
        first.act = commenting(then, let_go)
        got = await open_stream(front, body, path, let_go)
        prompt = prompt_ids("one two three")
        expected = text_of(answer_ids([1, *prompt] if path == CHATS else prompt, 8))
        lines = [line[6:] for line in got.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        texts = [choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices]
        assert "".join(texts) == expected
        assert got.endswith(b"data: [DONE]\n\n")
        await front.idle()
        assert len(second.turns) == 1
        counts(front, finished=1)


@pytest.mark.parametrize(
    ("then", "code", "outcome"), [(shed, "shed", "shed"), (abort, "bad_instance", "failed")]
)
async def test_a_refusal_after_a_comment_is_the_last_event(
    then: Callable[[Turn], Awaitable[object]], code: str, outcome: str
) -> None:
    let_go = asyncio.Event()
    async with upstream(act=commenting(then, let_go)) as only, gateway(only) as front:
        got = await open_stream(front, STREAM, COMPLETIONS, let_go)
        event, done = got.removeprefix(COMMENT).split(b"\n\n")[-3:-1]
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == code
        assert done == b"data: [DONE]"
        await front.idle()
        counts(front, **{outcome: 1})


@pytest.mark.parametrize("named", [False, True])
async def test_the_gateway_sends_comments_of_its_own(named: bool) -> None:
    """They begin while an instance says nothing, and its error is the last event."""

    async def act(turn: Turn) -> None:
        await release.wait()
        await turn.refuse(404, b'{"error": {"message": "no such model", "code": 404}}')

    release = asyncio.Event()
    path = "/v1/messages" if named else CHATS
    async with upstream(act=act) as only, gateway(only, sse_keep_alive_s=0.01) as front:
        got = await open_stream(front, {**CHAT, "stream": True}, path, release)
        comments, event = got.rsplit(COMMENT, 1)
        assert set(comments.split(b"\n\n")) <= {b"", b": keep-alive"}
        error = b'data: {"error": {"message": "no such model", "code": 404}}\n\n'
        assert event == (b"event: error\n" + error if named else error + b"data: [DONE]\n\n")
        await front.idle()
        counts(front, rejected=1)


async def test_comments_end_with_the_first_token() -> None:
    async def act(turn: Turn) -> None:
        await asyncio.sleep(0.05)
        await turn.answer()

    async with upstream(act=act) as only, gateway(only, sse_keep_alive_s=0.01) as front:
        answer = await front.post(STREAM)
        assert answer.body.startswith(COMMENT)
        assert answer.text == TEXT
        assert COMMENT not in answer.body[answer.body.index(b"data:") :]
        whole = await front.post(PROMPT)
        assert whole.json["choices"][0]["text"] == TEXT


async def test_an_answer_in_one_piece_after_a_comment_is_none() -> None:
    """The head of a stream is out: only events may follow it."""

    async def act(turn: Turn) -> None:
        await asyncio.sleep(0.05)
        turn.body["stream"] = False
        await turn.answer()

    async with (
        upstream("a", act=act) as first,
        upstream("b") as second,
        gateway(first, second, sse_keep_alive_s=0.01) as front,
    ):
        assert (await front.post(STREAM)).text == TEXT
        await until(lambda: second.turns)


@pytest.mark.parametrize(
    ("lines", "comments", "others"),
    [
        (b"data: x\n\n", b"", b"data: x\n\n"),
        (b": a\n\ndata: x\n\n: b\r\n\r\n", b": a\n\n: b\r\n\r\n", b"data: x\n\n"),
        (b"event: x\n: a\ndata: : b\n\n", b": a\n", b"event: x\ndata: : b\n\n"),
        (b":\n\n:\n", b":\n\n:\n", b""),
    ],
)
def test_comments_are_told_from_events(lines: bytes, comments: bytes, others: bytes) -> None:
    assert comments_apart(lines) == (comments, others)
