from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.hints import PROGRAM
from headway.gateway.http.keys import Keys
from headway.gateway.request.generation_request import read_request
from headway.gateway.request.program import KnownPrograms, of_tenant, program_of
from tests.gateway.front import CHAT, PROMPT, gateway
from tests.gateway.upstream import upstream

UUID = "0b9c0a3e-1f7d-4a53-9c39-6a2d0f1c7a11"

BY_HEADER = [
    ({"X-Program-Id": "p"}, "p"),
    ({"X-Dynamo-Session-Id": "run:researcher"}, "run:researcher"),
    ({"X-Claude-Code-Session-Id": UUID}, UUID),
    ({"X-Claude-Code-Session-Id": UUID, "X-Claude-Code-Agent-Id": "a1"}, f"{UUID}/a1"),
    ({"session-id": "c", "thread-id": "c"}, "c"),
    ({"session-id": "c", "thread-id": "t"}, "c/t"),
    ({"thread-id": "t"}, "t"),
    ({"session_id": "old"}, "old"),
    ({"conversation_id": "old"}, "old"),
    ({"X-Session-Id": "s"}, "s"),
    # Dynamo's own name before what an agent says by itself.
    ({"X-Session-Id": "s", "X-Dynamo-Session-Id": "d"}, "d"),
    ({"X-Claude-Code-Agent-Id": "a1"}, ""),
    ({"X-Session-Id": "  "}, ""),
    ({"X-Session-Id": "günther"}, "günther"),
]
BY_BODY = [
    ({"vllm_xargs": {PROGRAM: "h"}}, "h"),
    ({"vllm_xargs": {"agentic_context": {"program_id": "p", "session_id": "s"}}}, "p"),
    ({"vllm_xargs": {"agentic_context": {"session_id": "s", "agent_id": "coder"}}}, "s/coder"),
    ({"vllm_xargs": {"agentic_context": '{"program_id": "p"}'}}, "p"),
    ({"vllm_xargs": {"agentic_context": "no JSON"}}, ""),
    ({"vllm_xargs": {"agentic_context": {"program_id": 7}}}, ""),
    ({"vllm_xargs": {"agentic_context": "[1]"}}, ""),
    ({"nvext": {"agent_context": {"session_id": "s", "trajectory_id": "s:planner"}}}, "s:planner"),
    ({"nvext": {"agent_context": {"session_id": "s"}}}, "s"),
    ({"nvext": {"agent_hints": {"priority": 5, "session_id": "s"}}}, "s"),
    ({"nvext": {"agent_hints": {"priority": 5}}}, ""),
    ({"nvext": [1]}, ""),
    ({"metadata": {"user_id": f"user_7f_account__session_{UUID}"}}, UUID),
    ({"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}}, UUID),
    ({"metadata": {"user_id": "somebody"}}, ""),
    ({"metadata": {"user_id": "{"}}, ""),
    ({"metadata": {"user_id": '{"a":' * 10_000}}, ""),
    ({"vllm_xargs": {"agentic_context": "[" * 10_000}}, ""),
    ({}, ""),
]


def read(body: dict[str, Any], headers: dict[str, str], **options: Any) -> Any:
    given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    data = json.dumps({**PROMPT, **body}).encode()
    return read_request("/v1/completions", given, data, request_id="r", **options)


@pytest.mark.parametrize(("headers", "program"), BY_HEADER)
def test_headers_name_a_program(headers: dict[str, str], program: str) -> None:
    assert read({}, headers).program == program


@pytest.mark.parametrize(("body", "program"), BY_BODY)
def test_a_body_names_a_program(body: dict[str, Any], program: str) -> None:
    assert read(body, {}).program == program


def test_the_extra_argument_goes_before_a_header_and_that_before_the_rest() -> None:
    body = {"nvext": {"agent_context": {"session_id": "n"}}, "vllm_xargs": {PROGRAM: "x"}}
    assert read(body, {"x-session-id": "h"}).program == "x"
    assert read({"nvext": body["nvext"]}, {"x-session-id": "h"}).program == "h"


def test_an_instance_gets_one_name_and_no_object_that_vllm_refuses() -> None:
    context = {"agentic_context": {"program_id": "p"}, "other": 1}
    request = read({"vllm_xargs": context}, {})
    told = json.loads(
        request.body(hints=request.hints(request.slo, may_move=False), request_id=False, ids=False)
    )
    assert told["vllm_xargs"] == {"other": 1, PROGRAM: "p", "headway_may_move": 0}
    plain = json.loads(request.body(hints=None, request_id=False, ids=False))
    assert plain["vllm_xargs"] == {"other": 1}


def test_two_tenants_equal_names_are_two_programs() -> None:
    names = {read({}, {"x-session-id": "s"}, key_tenant=tenant).program for tenant in ("", "a", "b", "a/s")}
    assert names == {"s", "a/s", "b/s", "a%2Fs/s"}
    assert of_tenant("b/c", "a") != of_tenant("c", "a/b")
    # A tenant that is a label alone has no programs of its own.
    assert read({}, {"x-session-id": "s", "x-tenant": "a"}, names_tenants=False).program == "s"


@given(st.text(max_size=600), st.text(max_size=600), st.sampled_from(["", "a", "x" * 128]))
def test_names_are_short_and_printable_and_as_many_as_were_given(one: str, two: str, tenant: str) -> None:
    first, second = (of_tenant(program_of([], {PROGRAM: each}, None, None), tenant) for each in (one, two))
    assert all(len(each) <= 256 and each.isprintable() for each in (first, second))
    assert (first == second) == (one.strip() == two.strip())


def turn(known: KnownPrograms, *blocks: int, named: str = "", **ids: str | None) -> str:
    return known.of_turn(named, "", blocks, **{"response": None, "previous": None, **ids})


def test_a_conversation_that_grows_is_a_program_from_its_second_turn_on() -> None:
    known = KnownPrograms()
    assert turn(known, 1, 2) == ""
    first = turn(known, 1, 2, 3)
    assert first.startswith("~")
    assert turn(known, 1, 2, 3, 4, 5) == first
    assert turn(known, 9, 10) == ""
    assert turn(known, 9, 10, 11) not in ("", first)


def test_prompts_that_begin_alike_are_no_program() -> None:
    # Two that end with the same whole block: what goes on from it may belong to either.
    known = KnownPrograms()
    assert [turn(known, 1, 2), turn(known, 1, 2), turn(known, 1, 2, 3), turn(known, 1, 2, 4)] == [""] * 4
    assert turn(known, 1, 2, 3, 5).startswith("~")


def test_a_response_that_goes_on_from_another_is_of_its_program() -> None:
    known = KnownPrograms()
    assert turn(known, response="resp_1") == "resp_1"
    assert turn(known, response="resp_2", previous="resp_1") == "resp_1"
    assert turn(known, response="resp_3", previous="resp_2") == "resp_1"
    assert turn(known, response=None, previous="resp_9") == ""
    assert turn(known, named="mine", response="resp_4") == "mine"
    assert turn(known, previous="resp_4") == "mine"


def test_tenants_share_no_inferred_program() -> None:
    known = KnownPrograms()
    assert known.of_turn("", "a", (1, 2), response=None, previous=None) == ""
    assert known.of_turn("", "b", (1, 2, 3), response=None, previous=None) == ""
    assert known.of_turn("", "a", (1, 2, 4), response=None, previous=None).startswith("a/~")


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KnownPrograms, "MOST", 10)
    known = KnownPrograms()
    for number in range(100):
        turn(known, number, response=f"resp_{number}", previous=None)
        turn(known, 1000 + number)
    assert len(known._of_response) == len(known._of_end) == 10


async def test_a_program_is_told_to_the_instance_and_of_the_request() -> None:
    keys = Keys({b"k": "blue"})
    async with upstream("a", headway=True) as one, gateway(one, keys=keys) as front:
        named = {"Authorization": "Bearer k", "x_session_id": "s", "x_request_id": "mine"}
        assert (await front.post(CHAT, "/v1/chat/completions", **named)).status == 200
        [asked] = one.bodies
        assert asked["vllm_xargs"][PROGRAM] == "blue/s"
        seen = (await front.get("/explain/mine", Authorization="Bearer k")).json["gateway"]
        assert seen["program"] == "blue/s"
