"""The gateway's OpenAPI 3.1 description.

vLLM checks requests itself and accepts more than is described here, so all objects allow further fields.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.core import hints
from headway.core.slo import MAX_TARGET_S
from headway.gateway.batch.objects import Status
from headway.gateway.book.dashboard_state import DashboardState
from headway.gateway.book.explain import Explained
from headway.gateway.book.scale_board import ScaleReply
from headway.gateway.book.shadow_board import ShadowReply
from headway.gateway.http.api import APIS
from headway.gateway.request.generation_request import MAX_ID_CHARACTERS

Json = dict[str, Any]


def _target_ms(meaning: str) -> Json:
    return {"type": "number", "minimum": 0.001, "maximum": MAX_TARGET_S * 1000, "description": meaning}


def _object(*required: str, **properties: Json) -> Json:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **needed, "properties": properties}


def _array(items: Json, **limits: int) -> Json:
    return {"type": "array", "items": items, **limits}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer"}
_ANY_OBJECT: Json = {"type": "object"}
_TTFT = _target_ms("Milliseconds until the first token.")
_TBT = _target_ms("Mean milliseconds between tokens.")
_DEADLINE = _target_ms("Milliseconds until the whole answer.")
_TENANT: Json = {"type": "string", "maxLength": hints.MAX_TENANT_CHARACTERS}
_NUMBER: Json = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}

_CONVERSATION = _array(
    _object("role", role=_TEXT, content={"type": ["string", "array", "null"], "items": _ANY_OBJECT}),
    minItems=1,
)
_GENERATION: Json = {
    "model": {"type": "string", "description": "One of /v1/models; without it, the one that is served."},
    "stream": {"type": "boolean", "default": False},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "The most tokens of an answer."},
    "request_id": {
        "type": "string",
        "maxLength": MAX_ID_CHARACTERS,
        "description": "The request's id, of printable characters; goes before the header `X-Request-Id`.",
    },
    "priority": {**_NUMBER, "description": "Lower runs earlier."},
    "vllm_xargs": {
        "type": "object",
        "description": "Further arguments for vLLM; those that begin with `headway_` are Headway's.",
        "properties": {hints.TTFT: _TTFT, hints.TBT: _TBT, hints.DEADLINE: _DEADLINE, hints.TENANT: _TENANT},
    },
}
_TOKENS = _array({"type": "integer", "minimum": 0}, minItems=1)
_PROMPT: Json = {
    "description": "A text, or token ids; several of either are several requests in one.",
    "anyOf": [_TEXT, _array(_TEXT, minItems=1), _TOKENS, _array(_TOKENS, minItems=1)],
}
_INPUT: Json = {
    "description": "A text, or the items of a conversation.",
    "anyOf": [{"type": "string", "minLength": 1}, _array(_ANY_OBJECT, minItems=1)],
}
_PREVIOUS: Json = {
    "type": "string",
    "description": "A stored response that this one goes on from; it is asked for where that one is.",
}
_SYSTEM: Json = {"type": ["string", "array"], "items": _ANY_OBJECT}
_USAGE = {
    **_object(prompt_tokens=_COUNT, completion_tokens={"type": ["integer", "null"]}),
    "type": ["object", "null"],
}
_OUTPUT_USAGE = {**_object(input_tokens=_COUNT, output_tokens=_COUNT), "type": ["object", "null"]}
_CHOICES = _array({"type": "object", "required": ["index"]})
_ANSWER = _object("id", "choices", id=_TEXT, object=_TEXT, model=_TEXT, choices=_CHOICES, usage=_USAGE)
_MODELS = _array(_object("id", id=_TEXT, max_model_len={"type": ["integer", "null"]}))
_ERROR = _object(
    "message",
    "type",
    message=_TEXT,
    type={"type": ["string", "null"]},
    param={"type": ["string", "null"]},
    code={"type": ["string", "integer", "null"]},
)

_FILE = _object("id", "bytes", "purpose", id=_TEXT, bytes=_COUNT, filename=_TEXT, purpose=_TEXT)
_BATCH = _object(
    "id",
    "status",
    "request_counts",
    id=_TEXT,
    status={"enum": [str(status) for status in Status]},
    request_counts=_object("total", "completed", "failed", total=_COUNT, completed=_COUNT, failed=_COUNT),
    output_file_id={"type": ["string", "null"]},
    error_file_id={"type": ["string", "null"]},
    headway={
        "type": ["object", "null"],
        "description": "Whether the window will be kept, at the recent rate.",
    },
)


def _generation_fields(*names: str) -> Json:
    return {name: _GENERATION[name] for name in names}


_SCHEMAS: Json = {
    "CompletionRequest": _object("prompt", **_GENERATION, prompt=_PROMPT),
    "ChatRequest": _object("messages", **_GENERATION, messages=_CONVERSATION),
    "ResponseRequest": _object(
        "input",
        **_generation_fields("model", "stream", "request_id", "priority", "vllm_xargs"),
        input=_INPUT,
        max_output_tokens=_GENERATION["max_tokens"],
        previous_response_id=_PREVIOUS,
    ),
    "MessageRequest": _object(
        "model",
        "messages",
        "max_tokens",
        **_generation_fields("model", "stream", "max_tokens", "vllm_xargs"),
        messages=_CONVERSATION,
        system=_SYSTEM,
    ),
    "Response": {**_object(id=_TEXT, usage=_OUTPUT_USAGE), "required": ["id", "status", "output"]},
    "Message": {**_object(id=_TEXT, usage=_OUTPUT_USAGE), "required": ["id", "content"]},
    "Completion": _ANSWER,
    "ChatCompletion": _ANSWER,
    "ModelList": _object("data", data=_MODELS),
    "File": _FILE,
    "FileList": _object("data", "has_more", data=_array(_FILE), has_more={"type": "boolean"}),
    "RemovedFile": _object("id", "deleted", id=_TEXT, deleted={"type": "boolean"}),
    "BatchRequest": _object(
        "input_file_id",
        "endpoint",
        "completion_window",
        input_file_id=_TEXT,
        endpoint={"enum": [*APIS]},
        completion_window={"type": "string", "pattern": "^[1-9][0-9]*[smhd]$"},
        metadata={"type": ["object", "null"], "additionalProperties": _TEXT},
    ),
    "Batch": _BATCH,
    "BatchList": _object("data", "has_more", data=_array(_BATCH), has_more={"type": "boolean"}),
    "Error": _object("error", error=_ERROR),
}

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


def openapi_route(*, batches: bool = False, scale: bool = False) -> Route:
    """`GET /openapi.json`; `batches` and `scale` say whether files, batches and scaling advice are served."""

    async def description(_request: Request) -> Response:
        return Response(_body(batches, scale), media_type="application/json")

    return Route("/openapi.json", description)


@cache
def _body(batches: bool, scale: bool) -> bytes:
    return json.dumps(describe(batches=batches, scale=scale), indent=1).encode()


def describe(*, batches: bool = False, scale: bool = False) -> Json:
    """The description: a new dictionary each time, ready for JSON."""
    (state, explained, shadow, scaled), components = msgspec.json.schema_components(
        [DashboardState, Explained, ShadowReply, ScaleReply], ref_template="#/components/schemas/{name}"
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
        "paths": {
            **_paths(state),
            **_explain_paths(explained, shadow),
            **({"/v1/scale": {"get": _scale(scaled)}} if scale else {}),
            **(_batch_paths() if batches else {}),
        },
        "components": {
            "schemas": {**_SCHEMAS, **components},
            "parameters": _PARAMETERS,
            "headers": _RESPONSE_HEADERS,
            "responses": dict(_ERRORS_BY_STATUS.values()),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A key, where keys are set."},
                "basic": {"type": "http", "scheme": "basic", "description": "Any name, the key as password."},
            },
        },
    }


def _paths(state: Json) -> Json:
    json_state = _answer("Instances, queues, goodput and the last refusals.", "application/json", state)
    page = _answer("The page people look at.", "text/html", _TEXT)
    this = _answer("This description.", "application/json", _ANY_OBJECT)
    metrics = _answer("Prometheus's text format.", "text/plain", _TEXT)
    models = _answer("What an instance answers.", "application/json", _ref("ModelList"))
    alive, takes = {"description": "It is."}, {"description": "One does."}
    in_anthropics = "Answer a conversation, in Anthropic's words"
    posts = {
        "/v1/completions": _generation("completion", "Continue a prompt", "CompletionRequest", "Completion"),
        "/v1/chat/completions": _generation("chat", "Answer a conversation", "ChatRequest", "ChatCompletion"),
        "/v1/responses": _generation(
            "response", "Answer an input", "ResponseRequest", "Response", named=True
        ),
        "/v1/messages": _generation("message", in_anthropics, "MessageRequest", "Message", named=True),
    }
    gets = {
        "/v1/models": _read("models", "The models served", models, busy=True),
        "/health": _read("health", "Whether the gateway is alive", alive, keyed=False),
        "/ready": _read("ready", "Whether an instance takes requests", takes, keyed=False, busy=True),
        "/metrics": _read("metrics", "Figures for Prometheus", metrics),
        "/dashboard": _read("dashboard", "The live page", page),
        "/dashboard/state": _read("state", "What the live page shows", json_state),
        "/openapi.json": _read("description", "This description", this),
    }
    return {path: {"post": each} for path, each in posts.items()} | {
        path: {"get": each} for path, each in gets.items()
    }


def _explain_paths(explained: Json, shadow: Json) -> Json:
    """The paths that explain a request, and that report on other policies."""
    report = _answer("The last report of a shadow, if there is one.", "application/json", shadow)
    answer = _answer("What the gateway saw, and what its instances say.", "application/json", explained)
    listed = _answer("The last requests, newest first.", "application/json", {"type": "object"})
    one = _read("explain", "Why a request took as long as it did", answer)
    one["responses"]["404"] = _ref(_ERRORS_BY_STATUS["404"][0], "responses")
    identified = {
        "name": "request_id",
        "in": "path",
        "required": True,
        "description": "The answer's id, its `x-request-id`, or the client's own.",
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "/explain": {"get": _read("last", "The last requests that ended", listed)},
        "/explain/{request_id}": {"get": {**one, "parameters": [identified]}},
        "/shadow": {"get": _read("shadow", "What another policy would have come to", report)},
    }


def _scale(reply: Json) -> Json:
    """The path with the recommended number of instances."""
    answer = _answer("How many, between what bounds, and why.", "application/json", reply)
    return _read("scale", "How many instances there should be", answer)


def _batch_paths() -> Json:
    """OpenAI's Files and Batch API."""

    def one(name: str, summary: str, schema: str, *at: str) -> Json:
        described = _read(name, summary, _answer("As OpenAI's API has it.", "application/json", _ref(schema)))
        for status in ("400", "404"):
            described["responses"][status] = _ref(_ERRORS_BY_STATUS[status][0], "responses")
        named = [{"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in at]
        return {**described, **({"parameters": named} if named else {})}

    form = _object("file", "purpose", file={"type": "string", "format": "binary"}, purpose={"const": "batch"})
    upload = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    asked = {"required": True, "content": {"application/json": {"schema": _ref("BatchRequest")}}}
    content = one("file_content", "A file's bytes", "File", "file_id")
    content["responses"]["200"] = _answer("The bytes.", "application/octet-stream", {"type": "string"})
    return {
        "/v1/files": {
            "post": {**one("upload", "Upload a file of requests", "File"), "requestBody": upload},
            "get": one("files", "The files there are", "FileList"),
        },
        "/v1/files/{file_id}": {
            "get": one("file", "A file", "File", "file_id"),
            "delete": one("remove_file", "Remove a file", "RemovedFile", "file_id"),
        },
        "/v1/files/{file_id}/content": {"get": content},
        "/v1/batches": {
            "post": {**one("create_batch", "Have a file's requests answered", "Batch"), "requestBody": asked},
            "get": one("batches", "The batches there are", "BatchList"),
        },
        "/v1/batches/{batch_id}": {"get": one("batch", "A batch", "Batch", "batch_id")},
        "/v1/batches/{batch_id}/cancel": {"post": one("cancel_batch", "End a batch", "Batch", "batch_id")},
    }


def _generation(name: str, summary: str, request: str, answer: str, *, named: bool = False) -> Json:
    """A POST that generates tokens, whole or as server-sent events, which may have names."""
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
            **{status: _ref(name, "responses") for status, (name, _) in _ERRORS_BY_STATUS.items()},
        },
    }


def _read(name: str, summary: str, answer: Json, *, keyed: bool = True, busy: bool = False) -> Json:
    """A GET; `keyed` if it requires a key where keys are set, `busy` if it may report that no instance is ready."""
    errors = (["401", "403"] if keyed else []) + (["503"] if busy else [])
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": answer,
            **{status: _ref(_ERRORS_BY_STATUS[status][0], "responses") for status in errors},
        },
        **({} if keyed else {"security": []}),
    }


def _answer(description: str, media_type: str, schema: Json) -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _ref(name: str, kind: str = "schemas") -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _error(description: str, *, retry: bool = False) -> Json:
    headers = {"headers": {"Retry-After": _ref("RetryAfter", "headers")}} if retry else {}
    return {**_answer(description, "application/json", _ref("Error")), **headers}


def _header(name: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


_TPOT_TOO = "also as `x-slo-tbt-ms`, `x-llm-d-slo-tpot-ms`"
_PRIORITY_TOO = "`x-dynamo-request-priority` is the same the other way round"
_PARAMETERS: Json = {
    "Ttft": _header("x-slo-ttft-ms", _TTFT, "Target for the first token; also as `x-llm-d-slo-ttft-ms`."),
    "Tpot": _header("x-slo-tpot-ms", _TBT, f"Target for each further token; {_TPOT_TOO}."),
    "Deadline": _header(
        "x-slo-deadline-ms", _DEADLINE, "Target for the whole answer; also as `x-llm-d-slo-deadline-ms`."
    ),
    "Tenant": _header(
        "x-tenant", _TENANT, "The tenant, for the accounts; a key's own tenant goes before it."
    ),
    "Priority": _header("X-Vllm-Priority", _NUMBER, f"Lower runs earlier; {_PRIORITY_TOO}."),
}

_RESPONSE_HEADERS: Json = {
    "RetryAfter": {
        "description": "Seconds after which to try again.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "RequestId": {"description": "The request's id, as in the access log.", "schema": {"type": "string"}},
}

_ERRORS_BY_STATUS = {
    "400": ("BadRequest", _error("The request is not acceptable; the message says what is.")),
    "401": ("NoKey", _error("No key, or an unknown one.")),
    "403": ("OtherTenant", _error("The tenant named, or what was asked for, is not the key's.")),
    "404": ("NotFound", _error("No such model, or no such request.")),
    "413": ("TooLarge", _error("The body is larger than the gateway takes.")),
    "422": ("Unprocessable", _error("An instance understood the request and cannot serve it.")),
    "429": (
        "Overloaded",
        _error("Too much for now: the queue is full, or the request's time ran out in it.", retry=True),
    ),
    "500": ("Failed", _error("An instance failed the request.")),
    "502": ("BadInstance", _error("An instance was lost, or answered what is no answer.")),
    "503": ("NoInstance", _error("No instance is ready.", retry=True)),
}
