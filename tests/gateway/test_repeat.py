"""Streams that token ids cannot continue: made again elsewhere, as far as they come out the same."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UpstreamError
from headway.gateway.http.events import MOST_UNREAD_BYTES
from headway.gateway.request.generation_request import read_request
from headway.gateway.request.repeat import Transcript, repeatable
from tests.gateway.front import CHAT, PROMPT, Answer, gateway
from tests.gateway.upstream import Turn, Upstream, upstream

PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
HEAD = {"id": "x", "created": 7, "model": "small"}


def choice(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "finish_reason": finish, **fields}


def call(arguments: str, **once: Any) -> dict[str, Any]:
    """A piece of a tool call."""
    function = {"arguments": arguments, **({"name": once.pop("name")} if "name" in once else {})}
    return {"tool_calls": [{"index": 0, **once, "function": function}]}


def logprobs(*tokens: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -0.5} for token in tokens]}


TOOLS = [
    choice(delta={"role": "assistant", "content": ""}),
    choice(delta={"reasoning": "hm "}),
    choice(delta={"reasoning": "so"}),
    choice(delta={"content": "I ask. "}),
    choice(delta=call("", id="call-1", type="function", name="get")),
    choice(delta=call('{"a"')),
    choice(delta=call(": 1}")),
    choice(finish="tool_calls", delta={}),
]
LOGPROBS = [choice(delta={"content": text}, logprobs=logprobs(*text)) for text in ("ab", "c", "def", "g")] + [
    choice(finish="stop", delta={"content": "."}, logprobs=logprobs("."))
]
SEVERAL = [choice(index, text=f"{index}{word}") for word in "abc" for index in (0, 1)] + [
    choice(index, "stop", text="!") for index in (0, 1)
]
KINDS: dict[str, tuple[str, dict[str, Any], list[dict[str, Any]]]] = {
    "tools": ("chat", {"tools": [{"type": "function"}]}, TOOLS),
    "grammar": ("chat", {"response_format": {"type": "json_object"}}, TOOLS[:4] + TOOLS[-1:]),
    "logprobs": ("chat", {"logprobs": True, "top_logprobs": 1}, LOGPROBS),
    "several": ("completion", {"n": 2}, SEVERAL),
    "stop": ("completion", {"stop": ["\n\n"], "presence_penalty": 1.0}, [SEVERAL[i] for i in (0, 2, 4, 6)]),
}


def saying(choices: list[dict[str, Any]], break_after: int | None = None, name: str = "x") -> Any:
    """Say this, each choice an event; or break off after so many."""

    async def act(turn: Turn) -> None:
        turn.body.pop("messages", None)  # so that no role comes before what is said here
        await turn.begin()
        for each in choices[:break_after]:
            await turn.event({**HEAD, "id": name, "choices": [each]})
        if break_after is not None:
            await asyncio.sleep(0.01)  # so that the gateway has read what was sent
            turn.die()
            return
        await turn.event({**HEAD, "id": name, "choices": [], "usage": {"completion_tokens": 9}})
        await turn.raw(b"data: [DONE]\n\n")

    return act


def recut(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same answer in other pieces: texts of two events in one."""
    found: list[dict[str, Any]] = []
    for each in choices:
        last = found[-1] if found else None
        if last and "text" in each and last["index"] == each["index"] and last["finish_reason"] is None:
            found[-1] = {**each, "text": last["text"] + each["text"]}
        else:
            found.append(each)
    return found


def gathered(answer: Answer) -> Transcript:
    made = Transcript()
    for event in answer.events:
        made.note(event)
    return made


def test_events_are_read_once_they_are_many() -> None:
    lines = b'data: {"id":"a","choices":[{"index":0,"text":"one"}]}\n\n: comment\n\ndata: [DONE]\n\n'
    made = Transcript()
    made.keep(lines)
    assert not made.pieces
    for _ in range(MOST_UNREAD_BYTES // len(lines)):
        made.keep(lines)
    assert made.whole((0, "text")) == "one" * (MOST_UNREAD_BYTES // len(lines) + 1)
    made.keep(lines)
    made.read()
    assert made.whole((0, "text")) == "one" * (MOST_UNREAD_BYTES // len(lines) + 2)
    assert made.head == {"id": "a"}


def test_what_was_kept_and_is_no_event_is_told_when_it_is_read() -> None:
    made = Transcript()
    made.keep(b"data: {no event}\n\n")
    with pytest.raises(UpstreamError, match="no event of an answer"):
        made.read()


async def test_a_stream_of_which_an_event_cannot_be_read_ends_in_an_error() -> None:
    async def breaks(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        await turn.raw(b"data: {no event}\n\n")
        await asyncio.sleep(0.01)  # so that the gateway has read what was sent
        turn.die()

    fields = {"stream": True, "temperature": 0, "logprobs": True}
    async with (
        upstream("a", act=breaks) as first,
        upstream("b", act=breaks) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**CHAT, **fields}, PATHS["chat"])
        assert b"no event of an answer" in answer.body
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await front.idle()
        assert front.accounts.totals.failed == 1


async def asked(kind: str, first: Upstream, second: Upstream, **fields: Any) -> tuple[Answer, dict[str, int]]:
    path, own, _ = KINDS[kind]
    body = {**(CHAT if path == "chat" else PROMPT), "stream": True, "temperature": 0, **own, **fields}
    async with gateway(first, second) as front:
        answer = await front.post({**body, "stream_options": {"include_usage": True}}, PATHS[path])
        await front.idle()
        totals = front.accounts.totals
        return answer, {"finished": totals.finished, "failed": totals.failed}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", range(1, 9))
async def test_wherever_it_breaks_the_answer_is_whole(kind: str, after: int) -> None:
    choices = KINDS[kind][2]
    after = min(after, len(choices))
    role_only = after == 1 and "role" in choices[0].get("delta", {})  # nothing was the client's by then
    async with upstream("a") as first, upstream("b") as second:
        first.act, second.act = saying(choices, after), saying(recut(choices), name="other")
        answer, counts = await asked(kind, first, second)
        assert counts == {"finished": 1, "failed": 0}
        assert {event["id"] for event in answer.events} == {"other" if role_only else "x"}
        plain = Transcript()
        for each in choices:
            plain.note({**HEAD, "choices": [each]})
        got = gathered(answer)
        assert {key: got.whole(key) for key in got.pieces} == {key: plain.whole(key) for key in plain.pieces}
        assert got.once == plain.once | {("usage",)}
        assert answer.events[-1]["usage"] == {"completion_tokens": 9}
        if after > 1:
            assert len(second.turns) == 1


async def test_another_answer_ends_in_an_error() -> None:
    other = [choice(delta={"content": "I do not. "}), *TOOLS[4:]]
    async with upstream("a") as first, upstream("b") as second:
        first.act, second.act = saying(TOOLS, 6), saying(other)
        answer, counts = await asked("tools", first, second)
        assert counts == {"finished": 0, "failed": 1}
        assert "came out otherwise" in answer.events[-1]["error"]["message"]
        assert "I do not" not in json.dumps(answer.events)


@pytest.mark.parametrize("fields", [{"temperature": 1}, {"temperature": None}])
async def test_a_sampled_answer_is_not_made_again(fields: dict[str, Any]) -> None:
    async with upstream("a") as first, upstream("b") as second:
        first.act, second.act = saying(TOOLS, 6), saying(TOOLS)
        answer, counts = await asked("tools", first, second, **fields)
        assert counts == {"finished": 0, "failed": 1}
        assert answer.events[-1]["error"]["code"] == "interrupted"
        assert not second.turns


async def test_a_seeded_sample_goes_on_as_the_same_sample() -> None:
    async with upstream("a") as first, upstream("b") as second:
        first.act, second.act = saying(TOOLS, 6), saying(TOOLS)
        _, counts = await asked("tools", first, second, temperature=1, seed=3)
        assert counts == {"finished": 1, "failed": 0}


@given(
    text=st.text(alphabet="ab", min_size=1, max_size=12),
    cuts=st.sets(st.integers(0, 12)),
    sent=st.integers(0, 12),
)
def test_however_both_are_cut_the_rest_is_the_rest(text: str, cuts: set[int], sent: int) -> None:
    transcript = Transcript()
    transcript.note({**HEAD, "choices": [choice(text=text[:sent])]})
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    events = transcript.repeated(0, None)
    made = b"".join(
        b"data: " + msgspec.json.encode({"choices": [choice(text=text[start:stop])]}) + b"\n\n"
        for start, stop in pairwise(places)
    )
    shown = events.take(made)
    rest = [json.loads(line[6:])["choices"][0]["text"] for line in shown.split(b"\n") if line]
    assert "".join(rest) == text[sent:]
    assert transcript.whole((0, "text")) == text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, True),
        ({"temperature": "0.0"}, True),
        ({"seed": 3}, True),
        ({}, False),
        ({"temperature": 0.1}, False),
        ({"temperature": []}, False),
        ({"temperature": 0, "stream": False}, False),
    ],
)
def test_what_comes_out_the_same(fields: dict[str, Any], expected: bool) -> None:
    body = msgspec.json.encode({"prompt": "x", "stream": True, **fields})
    assert repeatable(read_request("/v1/completions", [], body, request_id="r")) is expected
