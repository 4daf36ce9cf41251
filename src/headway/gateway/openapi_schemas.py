"""The schemas of the gateway's OpenAPI description: what requests, answers and errors look like.

vLLM checks requests itself and takes more than is told here, so nothing is closed to further fields.
"""

from __future__ import annotations

from typing import Any

from headway.core import hints
from headway.core.slo import MAX_TARGET_S
from headway.gateway.request.generation_request import MAX_ID_CHARACTERS

Json = dict[str, Any]


def _target_ms(meaning: str) -> Json:
    return {"type": "number", "minimum": 0.001, "maximum": MAX_TARGET_S * 1000, "description": meaning}


TTFT = _target_ms("Milliseconds until the first token.")
TBT = _target_ms("Mean milliseconds between tokens.")
DEADLINE = _target_ms("Milliseconds until the whole answer.")
TENANT: Json = {"type": "string", "maxLength": hints.MAX_TENANT_CHARACTERS}
NUMBER: Json = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}

_MESSAGE: Json = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string"},
        "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
    },
}
_XARGS: Json = {
    "type": "object",
    "description": "Further arguments for vLLM; those that begin with `headway_` are Headway's.",
    "properties": {
        hints.TTFT: TTFT,
        hints.TBT: TBT,
        hints.DEADLINE: DEADLINE,
        hints.TENANT: TENANT,
    },
}
_GENERATION: Json = {
    "model": {"type": "string", "description": "One of /v1/models; without it, the one that is served."},
    "stream": {"type": "boolean", "default": False},
    "max_tokens": {"type": "integer", "minimum": 1, "description": "The most tokens of an answer."},
    "request_id": {
        "type": "string",
        "maxLength": MAX_ID_CHARACTERS,
        "description": "The request's id, of printable characters; goes before the header `X-Request-Id`.",
    },
    "priority": {**NUMBER, "description": "Lower runs earlier."},
    "vllm_xargs": _XARGS,
}
_TOKENS: Json = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_USAGE: Json = {
    "type": ["object", "null"],
    "properties": {"prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": ["integer", "null"]}},
}
_OUTPUT_USAGE: Json = {
    "type": ["object", "null"],
    "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}},
}
_ANSWER: Json = {
    "type": "object",
    "required": ["id", "choices"],
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string"},
        "model": {"type": "string"},
        "choices": {"type": "array", "items": {"type": "object", "required": ["index"]}},
        "usage": _USAGE,
    },
}

SCHEMAS: Json = {
    "CompletionRequest": {
        "type": "object",
        "required": ["prompt"],
        "properties": {
            **_GENERATION,
            "prompt": {
                "description": "A text, or token ids; several of either are several requests in one.",
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    _TOKENS,
                    {"type": "array", "items": _TOKENS, "minItems": 1},
                ],
            },
        },
    },
    "ChatRequest": {
        "type": "object",
        "required": ["messages"],
        "properties": {**_GENERATION, "messages": {"type": "array", "items": _MESSAGE, "minItems": 1}},
    },
    "ResponseRequest": {
        "type": "object",
        "required": ["input"],
        "properties": {
            **{
                name: _GENERATION[name]
                for name in ("model", "stream", "request_id", "priority", "vllm_xargs")
            },
            "input": {
                "description": "A text, or the items of a conversation.",
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": {"type": "object"}, "minItems": 1},
                ],
            },
            "max_output_tokens": _GENERATION["max_tokens"],
            "previous_response_id": {
                "type": "string",
                "description": "A stored response that this one goes on from; it is asked for where that one is.",
            },
        },
    },
    "MessageRequest": {
        "type": "object",
        "required": ["model", "messages", "max_tokens"],
        "properties": {
            **{name: _GENERATION[name] for name in ("model", "stream", "max_tokens", "vllm_xargs")},
            "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
            "system": {"type": ["string", "array"], "items": {"type": "object"}},
        },
    },
    "Response": {
        "type": "object",
        "required": ["id", "status", "output"],
        "properties": {"id": {"type": "string"}, "usage": _OUTPUT_USAGE},
    },
    "Message": {
        "type": "object",
        "required": ["id", "content"],
        "properties": {"id": {"type": "string"}, "usage": _OUTPUT_USAGE},
    },
    "Completion": _ANSWER,
    "ChatCompletion": _ANSWER,
    "ModelList": {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["id"],
                    "properties": {
                        "id": {"type": "string"},
                        "max_model_len": {"type": ["integer", "null"]},
                    },
                },
            }
        },
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": ["string", "null"]},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer", "null"]},
                },
            }
        },
    },
}
