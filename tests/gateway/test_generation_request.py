from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import hints as engine_hints
from headway.core.slo import NO_TARGETS, Slo
from headway.gateway.http.api import CHAT
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.generation_request import (
    MAX_FIELDS,
    MAX_XARGS,
    MAX_XARGS_BYTES,
    GenerationRequest,
    outline_of,
    read_request,
)
from headway.gateway.request.resume import resumable
from headway.routing.cache_aware import prompt_blocks

ASKED = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}


def read(body: dict[str, Any] | bytes, path: str = "/v1/completions", /, **options: Any) -> GenerationRequest:
    headers = [
        (name.replace("_", "-").encode(), value.encode())
        for name, value in options.pop("headers", {}).items()
    ]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(path, headers, data, request_id="r1", **options)


def refused(body: dict[str, Any] | bytes, status: int = 400, **options: Any) -> GatewayError:
    with pytest.raises(GatewayError) as raised:
        read(body, **options)
    assert raised.value.status == status
    return raised.value


@pytest.mark.parametrize(
    ("prompt", "answers", "tokens"),
    [
        ("x" * 40, 1, 10),  # about four bytes a token, quotes and all
        ([1, 2, 3], 1, 3),
        (["a" * 38, "b" * 38], 2, 21),
        ([[1, 2], [3]], 2, 3),
        ([[[1], [2]], "a" * 38], 2, 3),  # nonsense, which the instance refuses
        ([], 1, 1),
        (None, 1, 0),
    ],
)
def test_how_much_there_is_to_do(prompt: Any, answers: int, tokens: int) -> None:
    ask = read({"prompt": prompt})
    assert (ask.answers, ask.prompt_tokens) == (answers, tokens)
    assert read({"prompt": prompt, "n": 3}).answers == 3 * answers
    assert read({"prompt": prompt, "n": -3}).answers == answers  # the instance refuses it


def test_embeddings_are_prompts() -> None:
    embeds = {"prompt_embeds": ["aGk=", "aGk="], "n": 2}
    assert read(embeds).answers == read({"prompt": None, **embeds}).answers == 4
    assert read({"prompt": ["a", "b", "c"], **embeds}).answers == 10
    assert read({"prompt_embeds": "aGk="}).answers == 1


def test_what_is_no_utf8_is_refused_wherever_it_is() -> None:
    assert "not a JSON object" in refused(b'{"model": "m", "prompt": "\xff"}').message


@pytest.mark.parametrize("where", ["prompt", "messages", "stream_options"])
def test_what_is_nested_too_deeply_is_refused(where: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert "not a JSON object" in refused(f'{{"model": "m", "{where}": {deep}}}'.encode()).message


def test_bodies_of_many_fields_and_long_extra_arguments_are_refused() -> None:
    fields = {f"field_{number}": 1 for number in range(MAX_FIELDS)}
    assert len(read(fields).fields) == MAX_FIELDS
    assert f"{MAX_FIELDS + 1} fields" in refused({**fields, "prompt": "x"}).message
    longest = "x" * (MAX_XARGS_BYTES - len('{"a": ""}'))
    assert read({"prompt": "x", "vllm_xargs": {"a": longest}}).xargs == {"a": longest}
    assert "vllm_xargs has" in refused({"prompt": "x", "vllm_xargs": {"a": longest + "x"}}).message
    many = {f"key_{number}": 1 for number in range(MAX_XARGS)}
    assert read({"prompt": "x", "vllm_xargs": many}).xargs == many
    more = refused({"prompt": "x", "vllm_xargs": {**many, "a": 1}})
    assert (more.status, more.param) == (400, "vllm_xargs")
    assert f"{MAX_XARGS + 1} keys; accepted: up to {MAX_XARGS}" in more.message


def test_only_the_beginning_of_a_long_prompt_is_named() -> None:
    blocks = read({"prompt": "x" * 2**22}).prefix_blocks()
    assert blocks == prompt_blocks(b'"' + b"x" * 2**22, within=b"\n\n")
    assert blocks == read({"prompt": "x" * 2**22 + "y"}).prefix_blocks()


def test_a_stream_with_long_stop_texts_is_not_looked_at_to_be_resumed() -> None:
    stream = {"prompt": "x", "stream": True}
    assert resumable(read({**stream, "stop": ["a"] * 100}))
    assert not resumable(read({**stream, "stop": ["a"] * 10_000}))
    assert not resumable(read({**stream, "unknown": " " * 10_000}))
    assert resumable(read({**stream, "prompt": "x" * 10_000, "user": "y" * 10_000}))


def test_limits_of_answers() -> None:
    assert read({"prompt": "x"}).max_tokens == 16
    assert read({"prompt": "x", "max_tokens": 5}).max_tokens == 5
    assert read(ASKED, "/v1/chat/completions").max_tokens is None
    assert read({**ASKED, "max_tokens": 5}, "/v1/chat/completions").max_tokens == 5
    assert (
        read({**ASKED, "max_tokens": 5, "max_completion_tokens": 4}, "/v1/chat/completions").max_tokens == 4
    )


@pytest.mark.parametrize("two", [2, 2.0, "2"])
def test_whole_numbers_may_be_written_as_vllm_reads_them(two: Any) -> None:
    ask = read({"prompt": "x", "n": two, "max_tokens": two, "priority": two})
    assert (ask.answers, ask.max_tokens, ask.priority) == (2, 2, 2)
    assert json.loads(ask.body(hints=None, request_id=False, ids=False))["max_tokens"] == two


@pytest.mark.parametrize("yes", [True, 1, 1.0, "1", "true", "True", "t", "yes", "Y", "on"])
@pytest.mark.parametrize("no", [False, 0, 0.0, "0", "false", "F", "no", "n", "OFF"])
def test_booleans_are_what_vllm_takes_for_them(yes: object, no: object) -> None:
    ask = read(
        {"prompt": "x", "stream": yes, "return_token_ids": no, "stream_options": {"include_usage": no}}
    )
    assert (ask.stream, ask.wants_ids, ask.wants_usage) == (True, False, False)


@pytest.mark.parametrize("number", [16, 16.0, "16", " 16 ", "16.0", "1_6"])
def test_numbers_are_what_vllm_takes_for_them(number: object) -> None:
    assert read({"prompt": "x", "max_tokens": number}).max_tokens == 16
    assert read({"prompt": "x", "max_tokens": 2, "n": True}).answers == 1


def test_what_the_client_wants_of_a_stream() -> None:
    ask = read(
        {"prompt": "x", "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    )
    assert (ask.stream, ask.wants_usage, ask.wants_ids, ask.one_answer) == (True, True, True, True)
    ask = read({"prompt": "x", "stream": None, "stream_options": None, "n": None})
    assert (ask.stream, ask.wants_usage, ask.wants_ids, ask.one_answer) == (False, False, False, True)


# ---- targets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["x-slo-", "x-llm-d-slo-"])
@pytest.mark.parametrize("tbt", ["tpot-ms", "tbt-ms"])
def test_targets_may_come_in_headers(prefix: str, tbt: str) -> None:
    headers = {f"{prefix}ttft-ms": "250", f"{prefix}{tbt}": "12.5", f"{prefix}deadline-ms": " 30000 "}
    assert read({"prompt": "x"}, headers=headers).slo == Slo(ttft_s=0.25, tbt_s=0.0125, deadline_s=30)


def test_targets_may_come_in_the_body_and_the_others_by_default() -> None:
    default = Slo(ttft_s=1, tbt_s=0.1)
    xargs = {"headway_ttft_ms": 250, "headway_deadline_ms": "5000", "headway_tenant": "blue", "other": [1]}
    ask = read({"prompt": "x", "vllm_xargs": xargs}, default_slo=default)
    assert ask.slo == Slo(ttft_s=0.25, tbt_s=0.1, deadline_s=5)
    assert (ask.tenant, ask.priority, ask.may_move) == ("blue", None, True)
    assert read({"prompt": "x"}, default_slo=default).slo is default
    assert read({"prompt": "x"}).slo is NO_TARGETS


def test_both_may_say_the_same_and_not_two_things() -> None:
    body = {"prompt": "x", "vllm_xargs": {"headway_ttft_ms": 250}}
    assert read(body, headers={"x-slo-ttft-ms": "250.0"}).slo.ttft_s == 0.25
    refusal = refused(body, headers={"x-slo-ttft-ms": "300"})
    assert "250" in refusal.message
    assert "300" in refusal.message
    assert (
        refused({"prompt": "x"}, headers={"x-slo-tpot-ms": "1", "x-slo-tbt-ms": "2"}).param == "x-slo-tbt-ms"
    )
    assert refused({"prompt": "x", "priority": 1}, headers={"x-vllm-priority": "2"}).param == "priority"
    assert (
        refused({"prompt": "x", "vllm_xargs": {"headway_tenant": "a"}}, headers={"x-tenant": "b"}).param
        == "headway_tenant"
    )


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "", "604800001", "1e400"])
@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-deadline-ms"])
def test_no_target_out_of_range_is_read_as_another(name: str, value: str) -> None:
    refusal = refused({"prompt": "x"}, headers={name: value})
    assert refusal.message.startswith(f"{name} is {value!r}; accepted: milliseconds in (0, 6.048e+08]")


@pytest.mark.parametrize(("said", "counted"), [("-3", 0), ("0", 0), ("3", 3)])
def test_a_tenants_key_puts_nobody_before_the_others(said: str, counted: int) -> None:
    ask = read({"prompt": "x"}, headers={"x-vllm-priority": said}, key_tenant="blue")
    assert ask.priority == counted
    assert json.loads(ask.body(hints=None, request_id=False, ids=False))["priority"] == counted


def test_priorities_are_turned_round_once() -> None:
    assert read({"prompt": "x"}, headers={"x-vllm-priority": "-3"}).priority == -3
    assert read({"prompt": "x"}, headers={"x-dynamo-request-priority": "3"}).priority == -3
    assert read({"prompt": "x", "priority": 7}).priority == 7
    assert read({"prompt": "x", "priority": 0}).priority == 0
    assert "whole number" in refused({"prompt": "x"}, headers={"x-vllm-priority": "high"}).message
    assert (
        "whole number" in refused({"prompt": "x"}, headers={"x-dynamo-request-priority": str(2**70)}).message
    )


def test_a_key_says_whose_request_it_is() -> None:
    assert read({"prompt": "x"}, key_tenant="blue").tenant == "blue"
    assert read({"prompt": "x"}, headers={"x-tenant": "blue"}, key_tenant="blue").tenant == "blue"
    assert (
        refused({"prompt": "x"}, 403, headers={"x-tenant": "red"}, key_tenant="blue").code == "wrong_tenant"
    )
    assert "up to 128" in refused({"prompt": "x"}, headers={"x-tenant": "t" * 129}).message
    assert "printable" in refused({"prompt": "x", "vllm_xargs": {"headway_tenant": "a\nb"}}).message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON object"),
        (b"[]", "no JSON object"),
        (b'{"prompt": }', "no JSON object"),
        (b"\xff", "no JSON object"),
        ({"prompt": "x", "stream": "maybe"}, 'stream is "maybe"; accepted: true or false'),
        ({"prompt": "x", "stream": 2}, "stream is 2; accepted: true or false"),
        ({"prompt": "x", "stream": [1]}, "stream is [1]; accepted: true or false"),
        ({"prompt": "x", "n": "two"}, 'n is "two"; accepted: a whole number'),
        ({"prompt": "x", "n": 2**63}, f"n is {2**63}; accepted: a whole number of 64 bits"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens is 1.5; accepted: a whole number"),
        ({"prompt": "x", "vllm_xargs": [1]}, "vllm_xargs is [1]; accepted: an object"),
        (
            {"prompt": "x", "vllm_xargs": {"headway_tbt_ms": True}},
            "headway_tbt_ms is True; accepted: milliseconds",
        ),
    ],
)
def test_clear_words_for_what_cannot_be_read(body: dict[str, Any] | bytes, words: str) -> None:
    assert words.replace("no JSON", "not a JSON") in refused(body).message


FIVE = {"prompt": ["a"] * 5, "n": 2}


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        (json.dumps(FIVE).encode(), 10),
        (json.dumps(FIVE).encode("utf-16"), 10),
        (json.dumps(FIVE).encode("utf-8-sig"), 10),
        (json.dumps({**FIVE, "other": float("nan")}).encode(), 10),
        (json.dumps({**FIVE, "other": "\ud800"}).encode(), 10),
        (json.dumps({**FIVE, "sampling_params": None}).encode(), 10),
        (json.dumps({"messages": [[]] * 3, "sampling_params": {"n": 4}}).encode(), 12),
        (b"", 1),
        (b"[1, 2]", 1),
        (b"[" * 100_000, 1),
        (b'{"input": ["a", "b", "c"]}', 3),
        (b'{"input": [[1, 2], [3]], "n": 2}', 4),
        (b'{"input": [1, 2, 3]}', 1),
        (b'{"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}', 1),
        (b'{"query": "a", "documents": ["b", {"content": []}]}', 2),
        (b'{"text_1": "a", "text_2": ["b", "c", "d"]}', 3),
        (b'{"inputs": [{"content": []}, {"content": []}]}', 2),
        (b'{"items": [[1], [2, 3]], "query": [4, 5, 6]}', 2),
        (b'{"texts": "no list", "images": null}', 1),
    ],
)
def test_sequences_are_counted_wherever_vllm_finds_some(body: bytes, sequences: int) -> None:
    assert outline_of(body).sequences == sequences


@pytest.mark.parametrize("n", ["two", 2**63, float("nan")])
def test_sequences_that_cannot_be_counted_are_refused(n: object) -> None:
    with pytest.raises(GatewayError, match="accepted: a whole number"):
        outline_of(json.dumps({**FIVE, "n": n}).encode())


# ---- bodies -------------------------------------------------------------------------------------------------------


def body_of(ask: GenerationRequest, **options: Any) -> dict[str, Any]:
    given = {"hints": None, "request_id": False, "ids": False, **options}
    decoded: dict[str, Any] = json.loads(ask.body(**given))
    return decoded


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(extra=st.dictionaries(st.text(min_size=1, max_size=6).map(lambda name: f"x_{name}"), JSON, max_size=4))
def test_what_is_not_headways_goes_on_as_it_came(extra: dict[str, Any]) -> None:
    body = {"model": "m", "prompt": "a\u2028b", "max_tokens": 3, **extra}
    assert body_of(read(body)) == body


def test_what_an_instance_is_told() -> None:
    ask = read(
        {"prompt": "x", "vllm_xargs": {"other": 1, "headway_ttft_ms": 900}},
        headers={"x-slo-tbt-ms": "50", "x-tenant": "blue", "x-vllm-priority": "4"},
    )
    hints = ask.hints(ask.slo.after(0.4), may_move=True)
    targets_ms = {"headway_ttft_ms": 500, "headway_tbt_ms": 50}
    assert hints == {**targets_ms, "headway_tenant": "blue", "headway_may_move": 1}
    sent = body_of(ask, hints=hints, request_id=True, ids=True)
    assert sent == {
        "prompt": "x",
        "vllm_xargs": {"other": 1, **hints},
        "priority": 4,
        "request_id": "r1",
        "return_token_ids": True,
    }
    assert "headway_ttft_ms" in body_of(ask)["vllm_xargs"]


def test_a_request_id_of_the_clients_stays() -> None:
    ask = read({"prompt": "x", "request_id": "mine"})
    assert ask.request_id == "mine"
    assert body_of(ask, request_id=True)["request_id"] == "mine"


def test_a_request_id_is_short_and_can_be_written_down() -> None:
    assert read({"prompt": "x", "request_id": "ü" * 256}).request_id == "ü" * 256
    for name in ("r" * 257, "r" * 10**6, "a\nb", "\u2028", "\x00"):
        refusal = refused({"prompt": "x", "request_id": name})
        assert refusal.param == "request_id"
        assert refusal.message.endswith("; accepted: up to 256 printable characters")
        assert len(refusal.message) < 120


@pytest.mark.parametrize(
    ("body", "may_move", "expected"),
    [
        ({"prompt": "x"}, True, True),
        ({"prompt": "x"}, False, False),
        ({"prompt": "x", "n": 2}, True, False),
        ({"prompt": ["x", "y"]}, True, False),
        ({"prompt": "x", "vllm_xargs": {"headway_may_move": 0}}, True, False),
        ({"prompt": "x", "vllm_xargs": {"headway_may_move": 1}}, True, True),
    ],
)
def test_only_one_job_alone_may_move(body: dict[str, Any], may_move: bool, expected: bool) -> None:
    ask = read(body)
    hints = ask.hints(NO_TARGETS, may_move=may_move)
    assert hints["headway_may_move"] == expected
    # The engine reads it as it is meant.
    sent = {**ask.xargs, **hints}
    assert engine_hints.read_hints(sent).may_move is expected


@given(
    slo=st.builds(
        Slo,
        ttft_s=st.none() | st.floats(0.001, 600000),
        tbt_s=st.none() | st.floats(0.001, 600000),
        deadline_s=st.none() | st.floats(0.001, 600000),
    ),
    spent_s=st.floats(0, 1e6),
)
def test_the_engine_accepts_what_is_left_of_any_targets(slo: Slo, spent_s: float) -> None:
    ask = read({"prompt": "x"})
    left = slo.after(spent_s)
    told = engine_hints.read_hints(msgspec.json.decode(msgspec.json.encode(ask.hints(left, may_move=False))))
    for name in ("ttft_s", "tbt_s", "deadline_s"):
        assert getattr(told.slo, name) == pytest.approx(getattr(left, name))
    assert told.may_move is False


LONG = "word " * 2000
FIRST = [{"role": "system", "content": LONG}, {"role": "user", "content": "Why?"}]
NEXT = [*FIRST, {"role": "assistant", "content": "Because."}, {"role": "user", "content": LONG}]


def test_the_next_turn_of_a_chat_begins_as_the_one_before() -> None:
    first, following = (read({"model": "m", "messages": messages}, CHAT.path) for messages in (FIRST, NEXT))
    assert len(first.prefix_blocks()) == 4
    assert following.prefix_blocks()[:4] == first.prefix_blocks()
    assert len(following.prefix_blocks()) > 4


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"tools": [{"type": "function"}]}, {"cache_salt": "a"}, {"messages": NEXT[1:]}]
)
def test_what_stands_before_a_prompt_is_part_of_its_beginning(other: dict[str, Any]) -> None:
    body = {"model": "m", "messages": FIRST}
    blocks = [read(each, CHAT.path).prefix_blocks() for each in (body, {**body, **other})]
    assert not set(blocks[0]) & set(blocks[1])


@pytest.mark.parametrize("nested", [False, True])
def test_prompts_of_token_ids_share_blocks_too(nested: bool) -> None:
    shared = [12_345] * 3000
    prompts = [[*shared, *rest] for rest in ([7] * 2000, [8] * 2000)]
    blocks = [read({"prompt": [ids] if nested else ids}).prefix_blocks() for ids in prompts]
    assert sum(map(int.__eq__, *blocks)) == 6  # 3,000 times 7 bytes, 512 times 6 a block
    assert blocks[0][-1] != blocks[1][-1]
    assert read({}).prefix_blocks() == read({"prompt": "short"}).prefix_blocks() == ()


def test_tools_are_part_of_a_chats_prompt() -> None:
    chat = {"model": "m", "messages": FIRST}
    with_tools = {**chat, "tools": [{"type": "function", "function": {"description": LONG}}]}
    assert read(with_tools, CHAT.path).prompt_tokens > 1.9 * read(chat, CHAT.path).prompt_tokens
    assert len(read(with_tools, CHAT.path).prefix_blocks()) == 9
