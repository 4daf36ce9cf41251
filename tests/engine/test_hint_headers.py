"""Hints in headers at vLLM's app, without a server: the plug-in's own ASGI middleware before a route that echoes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headway.core.hints import HINT_HEADERS, MAY_MOVE
from headway.engine.vllm.questions import Endpoint
from headway.gateway.http.api import APIS
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.generation_request import read_request

COMPLETIONS = "/v1/completions"


async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({"body": body.decode(), "headers": dict(request.headers)})


def post(body: bytes, path: str = COMPLETIONS, /, **named: str) -> tuple[int, dict[str, Any]]:
    """Status and answer; the body comes in three pieces."""
    app = Starlette(routes=[Route(each, echo, methods=["POST"]) for each in (*APIS, "/tokenize")])
    Endpoint().attach_router(app)
    size = -(-len(body) // 3)
    coming: list[Any] = [
        {"type": "http.request", "body": body[at : at + size], "more_body": at + size < len(body)}
        for at in range(0, len(body), size)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    headers.append((b"content-length", b"%d" % len(body)))
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run(app(scope, receive, send))
    answer = json.loads(b"".join(message.get("body", b"") for message in sent))
    return sent[0]["status"], answer


def told(body: dict[str, Any], **named: str) -> tuple[dict[str, Any], str | None]:
    """The body that vLLM reads, and its priority header. No other hint header is left."""
    status, seen = post(json.dumps(body).encode(), **named)
    assert status == 200
    assert int(seen["headers"]["content-length"]) == len(seen["body"])
    assert not {name.encode() for name in seen["headers"]} & (HINT_HEADERS - {b"x-vllm-priority"})
    return json.loads(seen["body"]), seen["headers"].get("x-vllm-priority")


@pytest.mark.parametrize("prefix", ["x_slo_", "x_llm_d_slo_"])
def test_targets_and_tenant_in_headers_are_told_to_vllm(prefix: str) -> None:
    named = {f"{prefix}ttft_ms": "250", f"{prefix}tpot_ms": "50", f"{prefix}deadline_ms": "5000"}
    said = {"prompt": "x", "vllm_xargs": {"other": 1}}
    xargs = {"headway_ttft_ms": 250, "headway_tbt_ms": 50, "headway_deadline_ms": 5000}
    expected = {"prompt": "x", "vllm_xargs": {"other": 1, **xargs, "headway_tenant": "blue"}}
    assert told(said, **named, x_tenant="blue") == (expected, None)


def test_a_priority_is_turned_round_once_and_may_come_in_the_body() -> None:
    assert told({"prompt": "x"}, x_dynamo_request_priority="3") == ({"prompt": "x"}, "-3")
    assert told({"priority": "3"}, x_vllm_priority="3") == ({"priority": "3"}, "3")
    assert told({"priority": 2}, x_tenant="a") == (
        {"priority": 2, "vllm_xargs": {"headway_tenant": "a"}},
        "2",
    )


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, {"x_slo_ttft_ms": "soon"}),
        ({}, {"x_llm_d_slo_tpot_ms": "0"}),
        ({}, {"x_slo_deadline_ms": "1e400"}),
        ({}, {"x_slo_tpot_ms": "1", "x_slo_tbt_ms": "2"}),
        ({}, {"x_tenant": "t" * 129}),
        ({}, {"x_vllm_priority": "high"}),
        ({}, {"x_dynamo_request_priority": str(2**70)}),
        ({"priority": 1}, {"x_vllm_priority": "2"}),
        ({"vllm_xargs": {"headway_ttft_ms": 250}}, {"x_slo_ttft_ms": "300"}),
        ({"vllm_xargs": {"headway_tenant": "a"}}, {"x_tenant": "b"}),
        ({"vllm_xargs": {"headway_tbt_ms": True}}, {"x_tenant": "b"}),
    ],
)
def test_what_the_gateway_refuses_a_single_server_refuses_with_the_same_words(
    path: str, body: dict[str, Any], named: dict[str, str]
) -> None:
    data = json.dumps(body).encode()
    with pytest.raises(GatewayError) as refused:
        read_request(
            path,
            [(key.replace("_", "-").encode(), named[key].encode()) for key in named],
            data,
            request_id="r",
        )
    status, answer = post(data, path, **named)
    assert status == refused.value.status == 400
    assert answer["type"] == "error"
    assert answer["error"]["message"] == refused.value.message
    assert answer["error"]["param"] == refused.value.param


@pytest.mark.parametrize("path", APIS)
def test_what_the_gateway_tells_its_instance_a_single_server_tells_itself(path: str) -> None:
    named = {"x-slo-ttft-ms": "333.3", "x-slo-tbt-ms": "7", "x-tenant": "José", "x-vllm-priority": "-4"}
    body = {"model": "m", "vllm_xargs": {"headway_deadline_ms": "9000"}}
    headers = [(key.encode(), value.encode()) for key, value in named.items()]
    ask = read_request(path, headers, json.dumps(body).encode(), request_id="r")
    by_gateway = json.loads(ask.body(hints=ask.hints(ask.slo, may_move=False), request_id=False, ids=False))[
        "vllm_xargs"
    ]
    status, seen = post(
        json.dumps(body).encode(), path, **{key.replace("-", "_"): named[key] for key in named}
    )
    assert status == 200
    assert {**json.loads(seen["body"])["vllm_xargs"], MAY_MOVE: 0} == by_gateway
    assert seen["headers"]["x-vllm-priority"] == "-4"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"vllm_xargs": [1]}', b'{"priority": "high"}'])
def test_hints_beside_a_body_that_cannot_be_read_are_not_dropped_in_silence(body: bytes) -> None:
    status, answer = post(body or b" ", x_tenant="blue")
    assert status == 400
    assert "accepted: a JSON object" in answer["error"]["message"]
    assert post(b'\xef\xbb\xbf{"prompt": "x"}', x_tenant="blue")[0] == 200


@pytest.mark.parametrize(
    ("path", "named"), [(COMPLETIONS, {}), ("/tokenize", {"x_tenant": "a", "x_slo_ttft_ms": "?"})]
)
def test_other_requests_pass_as_they_came(path: str, named: dict[str, str]) -> None:
    status, seen = post(b'{"prompt":  "x"', path, **named)
    assert (status, seen["body"]) == (200, '{"prompt":  "x"')
    assert ("x-tenant" in seen["headers"]) is bool(named)
