"""What the gateway itself serves, as an OpenAPI 3.1 description."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.gateway.book.dashboard_state import DashboardState
from headway.gateway.book.explain import Explained
from headway.gateway.book.shadow_board import ShadowReply
from headway.gateway.openapi_schemas import DEADLINE, NUMBER, SCHEMAS, TBT, TENANT, TTFT, Json

_ABOUT = """\
One address in front of several vLLM instances, which holds latency targets as load rises.

The gateway speaks OpenAI's API, and Anthropic's as far as vLLM does. A request may say in how many milliseconds its
first token, each further token and its whole answer are wanted, as headers or as `vllm_xargs` in the body; given in
both, they must agree. What is asked of a path that is not described here goes to an instance of vLLM as it is, and
so does what the body holds besides; what changes an instance (`/v1/load_lora_adapter`, `/pause` and the like) goes to
all of them.

An answer that streams and cannot be finished ends with an event of the shape of an error, and `data: [DONE]` where
events have no names.
"""


def openapi_route() -> Route:
    """`GET /openapi.json`."""

    async def description(_request: Request) -> Response:
        return Response(_body(), media_type="application/json")

    return Route("/openapi.json", description)


@cache
def _body() -> bytes:
    return json.dumps(describe(), indent=1).encode()


def describe() -> Json:
    """The description: a new dictionary each time, ready for JSON."""
    (state, explained, shadow), components = msgspec.json.schema_components(
        [DashboardState, Explained, ShadowReply], ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headway gateway",
            "version": metadata.version("headway"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"basic": []}],
        "paths": {**_paths(state), **_explain_paths(explained, shadow)},
        "components": {
            "schemas": {**SCHEMAS, **components},
            "parameters": _PARAMETERS,
            "headers": _RESPONSE_HEADERS,
            "responses": _ERRORS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key, where keys are set."},
                "basic": {"type": "http", "scheme": "basic", "description": "Any name, the key as password."},
            },
        },
    }


def _paths(state: Json) -> Json:
    json_state = _answer("Instances, queues, goodput and the last refusals.", "application/json", state)
    page = _answer("The page people look at.", "text/html", {"type": "string"})
    this = _answer("This description.", "application/json", {"type": "object"})
    metrics = _answer("Prometheus's text format.", "text/plain", {"type": "string"})
    models = _answer("What an instance answers.", "application/json", _ref("ModelList"))
    return {
        "/v1/completions": {
            "post": _generation("completion", "Continue a prompt", "CompletionRequest", "Completion")
        },
        "/v1/chat/completions": {
            "post": _generation("chat", "Answer a conversation", "ChatRequest", "ChatCompletion")
        },
        "/v1/responses": {
            "post": _generation("response", "Answer an input", "ResponseRequest", "Response", named=True)
        },
        "/v1/messages": {
            "post": _generation(
                "message",
                "Answer a conversation, in Anthropic's words",
                "MessageRequest",
                "Message",
                named=True,
            )
        },
        "/v1/models": {"get": _read("models", "The models served", models, keyed=True, busy=True)},
        "/health": {"get": _read("health", "Whether the gateway is alive", _empty("It is."), keyed=False)},
        "/ready": {
            "get": _read(
                "ready", "Whether an instance takes requests", _empty("One does."), keyed=False, busy=True
            )
        },
        "/metrics": {"get": _read("metrics", "Figures for Prometheus", metrics, keyed=True)},
        "/dashboard": {"get": _read("dashboard", "The live page", page, keyed=True)},
        "/dashboard/state": {"get": _read("state", "What the live page shows", json_state, keyed=True)},
        "/openapi.json": {"get": _read("description", "This description", this, keyed=True)},
    }


def _explain_paths(explained: Json, shadow: Json) -> Json:
    """Why one request took as long as it did, by its id; and what another policy would have come to."""
    report = _answer("The last report of a shadow, if there is one.", "application/json", shadow)
    answer = _answer("What the gateway saw, and what its instances say.", "application/json", explained)
    listed = _answer("The last requests, newest first.", "application/json", {"type": "object"})
    one = _read("explain", "Why a request took as long as it did", answer, keyed=True)
    one["responses"]["404"] = _ref(_BY_STATUS["404"], "responses")
    identified = {
        "name": "request_id",
        "in": "path",
        "required": True,
        "description": "The answer's id, its `x-request-id`, or the client's own.",
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "/explain": {"get": _read("last", "The last requests that ended", listed, keyed=True)},
        "/explain/{request_id}": {"get": {**one, "parameters": [identified]}},
        "/shadow": {"get": _read("shadow", "What another policy would have come to", report, keyed=True)},
    }


def _generation(name: str, summary: str, request: str, answer: str, *, named: bool = False) -> Json:
    """A POST that makes tokens, whole or as server-sent events, which may have names."""
    end = "one that says so" if named else "`[DONE]`"
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_ref(parameter, "parameters") for parameter in _PARAMETERS],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
        "responses": {
            "200": {
                "description": f"The answer: whole, or with `stream` as server-sent events that end in {end}.",
                "headers": {"x-request-id": _ref("RequestId", "headers")},
                "content": {
                    "application/json": {"schema": _ref(answer)},
                    "text/event-stream": {"schema": {"description": "Events, each with one line of `data`."}},
                },
            },
            **{status: _ref(error, "responses") for status, error in _BY_STATUS.items()},
        },
    }


def _read(name: str, summary: str, answer: Json, *, keyed: bool, busy: bool = False) -> Json:
    """A GET; `keyed` if it wants a key where keys are set, `busy` if it may say that no instance is ready."""
    errors = (["401", "403"] if keyed else []) + (["503"] if busy else [])
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": answer,
            **{status: _ref(_BY_STATUS[status], "responses") for status in errors},
        },
        **({} if keyed else {"security": []}),
    }


def _answer(description: str, media_type: str, schema: Json) -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _empty(description: str) -> Json:
    return {"description": description}


def _ref(name: str, kind: str = "schemas") -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _error(description: str, *headers: str) -> Json:
    named = {"Retry-After": "RetryAfter"}
    return {
        "description": description,
        "content": {"application/json": {"schema": _ref("Error")}},
        **({"headers": {header: _ref(named[header], "headers") for header in headers}} if headers else {}),
    }


def _header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


_PARAMETERS: Json = {
    "Ttft": _header("x-slo-ttft-ms", TTFT, "Target for the first token; also as `x-llm-d-slo-ttft-ms`."),
    "Tpot": _header(
        "x-slo-tpot-ms", TBT, "Target for each further token; also as `x-slo-tbt-ms`, `x-llm-d-slo-tpot-ms`."
    ),
    "Deadline": _header(
        "x-slo-deadline-ms", DEADLINE, "Target for the whole answer; also as `x-llm-d-slo-deadline-ms`."
    ),
    "Tenant": _header("x-tenant", TENANT, "Who asks, for the accounts; a key's own tenant goes before it."),
    "Priority": _header(
        "X-Vllm-Priority",
        NUMBER,
        "Lower runs earlier; `x-dynamo-request-priority` is the same the other way round.",
    ),
}

_RESPONSE_HEADERS: Json = {
    "RetryAfter": {
        "description": "Seconds after which to try again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "RequestId": {"description": "The request's id, as in the access log.", "schema": {"type": "string"}},
}

_ERRORS: Json = {
    "BadRequest": _error("The request is not acceptable; the message says what is."),
    "NoKey": _error("No key, or an unknown one."),
    "OtherTenant": _error("The tenant named, or what was asked for, is not the key's."),
    "NotFound": _error("No such model, or no such request."),
    "TooLarge": _error("The body is larger than the gateway takes."),
    "Unprocessable": _error("An instance understood the request and cannot serve it."),
    "Overloaded": _error(
        "Too much for now: the queue is full, or the request's time ran out in it.", "Retry-After"
    ),
    "Failed": _error("An instance failed the request."),
    "BadInstance": _error("An instance was lost, or answered what is no answer."),
    "NoInstance": _error("No instance is ready.", "Retry-After"),
}
_BY_STATUS = {
    "400": "BadRequest",
    "401": "NoKey",
    "403": "OtherTenant",
    "404": "NotFound",
    "413": "TooLarge",
    "422": "Unprocessable",
    "429": "Overloaded",
    "500": "Failed",
    "502": "BadInstance",
    "503": "NoInstance",
}
