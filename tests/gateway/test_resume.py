"""Instances that break in the middle of a stream: the client gets the answer it would have got."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from headway.engine.servers.generation_config import NO_LIMIT
from headway.gateway.request.generation_request import GenerationRequest, read_request
from headway.gateway.request.resume import resumable
from tests.gateway.fleets import QUICK
from tests.gateway.front import CHAT, PROMPT, Answer, Front, gateway
from tests.gateway.upstream import SPLIT, Turn, Upstream, answer_ids, prompt_ids, text_of, upstream

LIMIT = 24
PATHS = {"completion": "/v1/completions", "chat": "/v1/chat/completions"}
BODIES = {"completion": PROMPT, "chat": CHAT}
IDS = {
    "completion": answer_ids(prompt_ids("one two three"), LIMIT),
    "chat": answer_ids([1, *prompt_ids("one two three")], LIMIT),
}


def streamed(kind: str, **fields: Any) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": LIMIT}
    return {**BODIES[kind], **options, "request_id": "r", **fields}


def breaking(instance: Upstream, after: int, how: str = "abort") -> None:
    """Have an instance break its first stream after so many tokens."""

    async def act(turn: Turn) -> None:
        if len(instance.turns) > 1:
            await turn.answer()
            return
        await turn.begin()
        for _ in range(after):
            await turn.token()
        if how == "abort":
            await asyncio.sleep(0.01)  # so that the gateway has read what was sent
            turn.die()
        elif how == "half":
            await turn.raw(b'data: {"id":"r","choi')
            await asyncio.sleep(0.01)
            turn.die()
        elif how == "line":
            write = turn.raw
            turn.raw = lambda data: write(data[:-1])  # type: ignore[method-assign]
            await turn.token()
            await asyncio.sleep(0.01)
            turn.die()
        elif how == "error":
            await turn.raw(b'data: {"error": {"message": "EngineCore died", "type": "x", "code": 500}}\n\n')
            await turn.raw(b"data: [DONE]\n\n")
        elif how == "handed_off":
            await turn.event(
                {**turn.head, "choices": [turn._choice("", [], "abort", "headway:handed_off", first=False)]}
            )
            await turn.end()

    instance.act = act


async def whole(kind: str, **fields: Any) -> Answer:
    """The answer of an instance that does not break."""
    async with upstream() as instance, gateway(instance) as front:
        return await front.post(streamed(kind, **fields), PATHS[kind])


def shapes(answer: Answer) -> set[str]:
    """The kinds of events in an answer, without the texts, which may be cut differently."""
    found = set()
    for event in answer.events:
        choices = [
            {**choice, "text": "", "delta": sorted(choice.get("delta", ()))} for choice in event["choices"]
        ]
        found.add(json.dumps({**event, "choices": choices}, sort_keys=True))
    return found


@pytest.mark.parametrize("kind", PATHS)
async def test_the_answer_holds_characters_of_several_tokens(kind: str) -> None:
    """So that a break can fall inside one."""
    assert {*SPLIT} <= {*IDS[kind]}
    assert (await whole(kind)).text == text_of(IDS[kind])


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("after", range(1, LIMIT))
async def test_wherever_it_breaks_the_stream_is_the_same(kind: str, after: int) -> None:
    plain = await whole(kind)
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        breaking(first, after)
        answer = await front.post(streamed(kind), PATHS[kind])
        assert answer.text == plain.text
        assert {event["created"] for event in answer.events} == {1001}
        assert answer.events[-1] == plain.events[-1]
        assert shapes(answer) == shapes(plain)
        (rest,) = second.bodies
        assert "messages" not in rest
        sent = len(rest["prompt"]) - len(first.turns[0].prompt)
        assert rest["prompt"] == [*first.turns[0].prompt, *IDS[kind][:sent]]
        assert rest["max_tokens"] == LIMIT - sent
        # No more than the tokens of one character are made again.
        assert after - 2 <= sent <= after
        await front.idle()
        entry = front.accounts.totals
        assert (entry.finished, front.accounts.resumed) == (1, 1)


@pytest.mark.parametrize("how", ["abort", "half", "line", "error", "handed_off"])
@pytest.mark.parametrize("kind", PATHS)
async def test_however_it_breaks_the_text_is_whole(kind: str, how: str) -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        breaking(first, 5, how)
        answer = await front.post(streamed(kind), PATHS[kind])
        assert answer.text == text_of(IDS[kind])
        assert answer.events[-1]["usage"]["completion_tokens"] == LIMIT
        assert b"\ndata: " not in answer.body.replace(b"\n\n", b"")


@pytest.mark.parametrize("after", [0, 5])
async def test_an_error_is_an_event_of_its_own(after: int) -> None:
    """Whatever of the last event was still on its way: two data lines without a line between are one event."""
    async with upstream("a") as first, gateway(first, resume=False) as front:
        breaking(first, after, "line")
        *_, last, error, done = (await front.post(streamed("chat"), PATHS["chat"])).body.split(b"\n\n")[:-1]
        assert (last[:7], error[:22], done) == (b"data: {", b'data: {"type":"error",', b"data: [DONE]")
        assert b"\n" not in last + error


async def test_an_answer_that_quotes_the_end_mark_goes_on_too() -> None:
    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        choice = {"index": 0, "delta": {"content": "data: [DONE]"}, "finish_reason": None, "token_ids": [5]}
        await turn.event({**turn.head, "choices": [choice]})
        await asyncio.sleep(0.01)  # so that the gateway has read what was sent
        turn.die()

    async with upstream("a", act=act) as first, upstream("b") as second, gateway(first, second) as front:
        answer = await front.post(streamed("chat"), PATHS["chat"])
        assert answer.events[-1]["usage"]["completion_tokens"] == LIMIT
        assert len(second.turns) == 1
        await front.idle()
        assert (front.accounts.totals.finished, front.accounts.resumed) == (1, 1)


async def test_a_second_break_is_survived_too() -> None:
    async with (
        upstream("a") as first,
        upstream("b") as second,
        upstream("c") as third,
        gateway(first, second, third) as front,
    ):
        breaking(first, 3)
        breaking(second, 4)
        answer = await front.post(streamed("chat"), PATHS["chat"])
        assert answer.text == text_of(IDS["chat"])
        assert len(third.turns) == 1
        assert answer.events[-1]["usage"] == {"prompt_tokens": 4, "total_tokens": 28, "completion_tokens": 24}


async def test_a_base_url_may_end_in_v1() -> None:
    inside = IDS["completion"].index(191) + 1
    async with upstream("a") as first, upstream("b") as second:
        for instance in (first, second):
            instance.url += "/v1/"
        async with gateway(first, second) as front:
            breaking(first, inside)
            assert (await front.post(streamed("completion"))).text == text_of(IDS["completion"])


@pytest.mark.parametrize("fault", [500, 429])
@pytest.mark.parametrize("kind", PATHS)
async def test_who_cannot_say_what_text_tokens_are_gets_no_half_character(kind: str, fault: int) -> None:
    """It would make another text of the rest of it, so the answer goes on with who can."""
    inside = IDS[kind].index(191) + 1
    async with (
        upstream("a") as first,
        upstream("b") as second,
        upstream("c", detokenize_fault=fault) as third,
        gateway(first, second, third) as front,
    ):
        breaking(first, inside)
        answer = await front.post(streamed(kind), PATHS[kind])
        assert answer.text == text_of(IDS[kind])
        assert front.accounts.resumed == 2
        assert not third.turns
        (rest,) = second.bodies
        assert len(rest["prompt"]) == len(first.turns[0].prompt) + inside - 2


async def test_who_does_not_offer_text_of_tokens_goes_on_from_all_of_them() -> None:
    async with upstream("a") as first, upstream("b", detokenize_fault=404) as second:
        async with gateway(first, second) as front:
            breaking(first, 4)
            await front.post(streamed("completion"), PATHS["completion"])
        assert len(second.bodies[0]["prompt"]) == len(first.turns[0].prompt) + 4


@pytest.mark.parametrize("least", [20, "20"])
async def test_sampled_and_forced_lengths_are_carried_on(least: int | str) -> None:
    fields = {"temperature": 0.7, "min_tokens": least, "ignore_eos": True, "stop": ["#"]}
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        breaking(first, 6)
        await front.post(streamed("completion", **fields), PATHS["completion"])
        (rest,) = second.bodies
        assert {name: rest[name] for name in fields} == {
            **fields,
            "min_tokens": 20 - (LIMIT - rest["max_tokens"]),
        }


@pytest.mark.parametrize("limit", [20, NO_LIMIT])
async def test_a_chat_without_a_limit_keeps_to_its_models(limit: int) -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        front.fleet.member("a").answer_limit = limit
        breaking(first, 7)
        body = streamed("chat")
        del body["max_tokens"]
        await front.post(body, PATHS["chat"])
        (rest,) = second.bodies
        sent = len(rest["prompt"]) - len(first.turns[0].prompt)
        assert rest["max_tokens"] == min(limit - sent, 400 - len(rest["prompt"]))


async def test_a_chat_whose_limit_is_not_known_does_not_go_on() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        body = streamed("chat")
        del body["max_tokens"]
        answer = await broken(front, first, body, PATHS["chat"])
        assert "generation_config.json is not known" in answer.events[-1]["error"]["message"]
        assert not second.turns


async def test_a_client_that_asked_for_ids_keeps_getting_them() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        breaking(first, 3)
        answer = await front.post(streamed("completion", return_token_ids=True), PATHS["completion"])
        choices = [choice for event in answer.events for choice in event["choices"]]
        assert [token for choice in choices for token in choice["token_ids"]] == IDS["completion"]
        assert choices[0]["prompt_token_ids"] == prompt_ids("one two three")


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("kind", PATHS)
async def test_only_the_end_mark_was_missing(kind: str, counted: bool, usage: bool) -> None:
    """All tokens came, and what follows them is known without another instance."""
    body = streamed(kind, stream_options={"include_usage": usage})

    async def act(turn: Turn) -> None:
        await turn.begin()
        for left in range(LIMIT, 0, -1):
            await turn.token(finish="length" if left == 1 else None)
        if usage and counted:
            await turn.event({**turn.head, "choices": [], "usage": turn._usage(LIMIT)})
        await asyncio.sleep(0.01)
        turn.die()

    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        plain = await front.post(body, PATHS[kind])
        first.act = second.act = act
        answer = await front.post(body, PATHS[kind])
        assert len(first.turns) + len(second.turns) == 2
        heads = {event["created"] for event in answer.events}
        assert heads == {1001}
        assert answer.body == plain.body
        assert front.accounts.totals.finished == 2


@pytest.mark.parametrize("answers", [1, 2])
async def test_nothing_was_missing_but_the_end_of_the_body(answers: int) -> None:
    body = streamed("completion", n=answers)

    async def act(turn: Turn) -> None:
        await turn.begin()
        for index in range(answers):
            await turn.event({"choices": [{"index": index, "text": "x", "finish_reason": "stop"}]})
        await turn.end()
        await asyncio.sleep(0.01)
        turn.die()

    async with upstream(act=act) as instance, gateway(instance) as front:
        assert (await front.post(body, PATHS["completion"])).body.count(b"data: [DONE]\n\n") == 1
        assert front.accounts.totals.finished == len(instance.turns) == 1


async def broken(front: Front, first: Upstream, body: dict[str, Any], path: str) -> Answer:
    breaking(first, 4)
    answer = await front.post(body, path)
    assert answer.status == 200
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    await front.idle()
    assert front.accounts.totals.failed == 1
    return answer


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["ab"]},
        {"logprobs": 1},
        {"presence_penalty": 0.5},
        {"response_format": {"type": "json_object"}},
        {"bad_words": ["x"]},
        {"something_new": 1},
    ],
)
async def test_what_cannot_go_on_ends_in_a_clear_error(fields: dict[str, Any]) -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        answer = await broken(front, first, streamed("completion", **fields), PATHS["completion"])
        error = answer.events[-1]["error"]
        assert error["type"] == "upstream_error"
        assert error["code"] == "interrupted"
        assert "its tokens are not known" in error["message"]
        assert not second.turns
        assert "return_token_ids" not in first.bodies[0]


@pytest.mark.parametrize("silent", [False, True])
async def test_a_server_that_freezes_is_left_before_its_health_is_overdue(silent: bool) -> None:
    """Only where its streams are silent too: a slow answer to a question about its health is no end of it."""
    options = replace(QUICK, timeout_s=60.0, silent_s=0.3)

    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        first.health_after_s = 3600
        while silent or len(turn.sent) < 10:
            await asyncio.sleep(0.1)
            if not silent:
                await turn.token()
        first.health_after_s = 0
        await turn.token(finish="length")
        await turn.end()

    async with (
        upstream("a", act=act) as first,
        upstream("b") as second,
        gateway(first, second, fleet_options=options) as front,
    ):
        answer = await front.post(streamed("completion"))
        assert len(second.turns) == silent
        assert answer.text == text_of(IDS["completion"][: LIMIT if silent else 11])


async def test_no_resume_is_no_resume() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second, resume=False) as front:
        answer = await broken(front, first, streamed("chat"), PATHS["chat"])
        assert "error" in answer.events[-1]
        assert "return_token_ids" not in first.bodies[0]


async def test_nobody_is_left_to_go_on() -> None:
    async with upstream("a") as only, gateway(only) as front:

        async def act(turn: Turn) -> None:
            await turn.begin()
            await turn.token()
            only.sick = True
            while front.fleet.names():
                await asyncio.sleep(0.01)
            turn.die()

        only.act = act
        answer = await front.post(streamed("chat"), PATHS["chat"])
        assert "no instance is ready" in answer.events[-1]["error"]["message"]
        assert front.accounts.totals.failed == 1


async def test_pictures_and_parsed_answers_do_not_go_on() -> None:
    picture = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        body = streamed("chat", messages=[{"role": "user", "content": picture}])
        answer = await broken(front, first, body, PATHS["chat"])
        assert "more than text" in answer.events[-1]["error"]["message"]
        assert not second.turns


async def test_a_parsed_answer_does_not_go_on() -> None:
    async def act(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        delta = {"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None, "token_ids": [5]}
        await turn.event({**turn.head, "choices": [delta]})
        await asyncio.sleep(0.01)
        turn.die()

    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        first.act = act
        answer = await front.post(streamed("chat"), PATHS["chat"])
        assert "made by a parser" in answer.events[-1]["error"]["message"]
        assert not second.turns


def an_ask(**fields: Any) -> GenerationRequest:
    body = msgspec.json.encode({"model": "m", "prompt": "x", "stream": True, **fields})
    return read_request("/v1/completions", [], body, request_id="r")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"stream": False}, False),
        ({"n": 2}, False),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": ["a"]}, True),
        ({"stop": None}, True),
        ({"stop": []}, True),
        ({"stop": "\n"}, True),
        ({"stop": ["\n", "."]}, True),
        ({"stop": "\n\n"}, False),
        ({"echo": False, "logprobs": None, "best_of": 0, "frequency_penalty": 0.0}, True),
        ({"echo": True}, False),
        ({"logprobs": 0}, False),
        ({"prompt_logprobs": 0}, False),
        ({"logprobs": False}, True),
        ({"frequency_penalty": 0.1}, False),
        ({"response_format": {"type": "text"}}, True),
        ({"tools": []}, True),
        ({"tools": [{"type": "function"}]}, False),
        ({"tool_choice": "none"}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, True),
        ({"tools": [{"type": "function"}], "tool_choice": "none", "logprobs": 1}, False),
        ({"seed": 3}, False),
        ({"seed": 3, "temperature": 0}, True),
        ({"repetition_penalty": 1.3, "logit_bias": {"3": 1.0}, "top_k": 4}, True),
    ],
)
def test_what_can_go_on(fields: dict[str, Any], expected: bool) -> None:
    assert resumable(an_ask(**fields)) is expected


@pytest.mark.parametrize("stop", [b"1e999", b'["a", 1e999]'])
def test_a_stop_text_that_cannot_be_read_is_the_instances_to_refuse(stop: bytes) -> None:
    body = b'{"prompt": "one", "stream": true, "stop": ' + stop + b"}"
    assert not resumable(read_request("/v1/completions", [], body, request_id="r"))
