"""Responses and messages whose instance breaks: made again elsewhere, in events that follow the first ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.front import Answer, gateway
from tests.gateway.named_upstream import as_bytes
from tests.gateway.test_named_apis import BODIES, MESSAGES, PATHS, events_of, say
from tests.gateway.upstream import Turn, upstream

TOKENS = 6


def saying(path: str, *, events: int | None = None, other_ids: bool = False, words: int = 1) -> Any:
    """Say so many of the events, and break off; all of them with None. `words`: of so many tokens each."""

    async def act(turn: Turn) -> None:
        said = [dict(event) for event in gathered(events_of(path, TOKENS), words)]
        for event in said[:events]:
            data = as_bytes(event)
            if other_ids:
                for old in (b"chatcmpl-1", b"resp_1", b"msg_1"):
                    data = data.replace(old, b"other-" + old)
            await say(turn, data)
        if events is not None:
            await asyncio.sleep(0.01)  # so that the gateway has read what was sent
            turn.die()

    return act


def gathered(events: list[dict[str, Any]], words: int) -> list[dict[str, Any]]:
    """The same with the texts of several deltas in one."""
    found: list[dict[str, Any]] = []
    for event in events:
        last = found[-1] if found else {}
        if words > 1 and event["type"] == last.get("type") and "delta" in event:
            if isinstance(event["delta"], str):
                found[-1] = {**last, "delta": last["delta"] + event["delta"]}
            else:
                text = last["delta"]["text"] + event["delta"]["text"]
                found[-1] = {**last, "delta": {**last["delta"], "text": text}}
        else:
            found.append(event)
    return found


def heard(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines]


def without_numbers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "sequence_number"} for event in events]


@PATHS
@pytest.mark.parametrize("words", [1, TOKENS])
@pytest.mark.parametrize("after", [2, 4, 5, 7, 9, 10])
async def test_wherever_it_breaks_the_events_go_on(path: str, after: int, words: int) -> None:
    plain = events_of(path, TOKENS)
    async with (
        upstream("a", act=saying(path, events=after)) as first,
        upstream("b", act=saying(path, other_ids=True, words=words)) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**BODIES[path], "stream": True, "temperature": 0}, path)
        await front.idle()
        assert front.accounts.totals.finished == 1
        got = heard(answer)
        if not front.accounts.retried:
            assert b"other-" not in answer.body
            assert without_numbers(gathered(got, 9)) == without_numbers(gathered(plain, 9))
        if path != MESSAGES and not front.accounts.retried:
            assert [event["sequence_number"] for event in got] == [*range(len(got))]


@PATHS
async def test_a_sampled_one_ends_in_an_error(path: str) -> None:
    async with (
        upstream("a", act=saying(path, events=7)) as first,
        upstream("b", act=saying(path)) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**BODIES[path], "stream": True}, path)
        assert heard(answer)[-1]["error"]["code"] == "interrupted"
        assert not second.turns


@PATHS
async def test_one_that_comes_out_otherwise_ends_in_an_error(path: str) -> None:
    async def otherwise(turn: Turn) -> None:
        for event in events_of(path, TOKENS):
            await say(turn, as_bytes(event).replace(b"x ", b"y "))

    async with (
        upstream("a", act=saying(path, events=7)) as first,
        upstream("b", act=otherwise) as second,
        gateway(first, second) as front,
    ):
        answer = await front.post({**BODIES[path], "stream": True, "temperature": 0}, path)
        assert "came out otherwise" in heard(answer)[-1]["error"]["message"]
        assert b"y " not in answer.body
        assert len(second.turns) == 1
