"""Errors inside a stream, in the formats of OpenAI, vLLM, SGLang, Anthropic and this gateway."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

NOT_NOW = (408, 429)
"""Client errors that depend on the moment: the request may be served elsewhere, or later."""

_ERROR = "error"
_REQUESTS_FAULT = frozenset({
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "billing_error", "invalid_prompt", "BadRequestError", "NotFoundError", "UnprocessableEntityError",
})  # fmt: skip
"""Types and codes that, without an HTTP status, mark an error as the client's."""


class StreamError(NamedTuple):
    """An error, and whether the request caused it. An error of the instance itself may be answered by another
    instance.
    """

    message: str
    by_request: bool


class ErrorFields(msgspec.Struct):
    """The fields of an error object."""

    message: object = None
    type: object = None
    code: object = None


class MaybeError(msgspec.Struct):
    """The fields in which an event, or an answer in one piece, says that it is an error.

    | written by | event |
    |---|---|
    | OpenAI, vLLM, SGLang | `{"error": {"message", "type", "code"}}`, with other fields before it or not |
    | Anthropic, this gateway | `{"type": "error", "error": {"message", "type"}}` |
    | OpenAI's responses | `{"type": "error", "message", "code"}` |
    | older vLLM and SGLang | `{"object": "error", "message", "type", "code"}` |
    | text-generation servers | `{"error": "message"}` |
    """

    type: object = None
    kind: object = msgspec.field(default=None, name="object")
    error: ErrorFields | str | None = None
    message: object = None
    code: object = None


def error_of(event: MaybeError) -> StreamError | None:
    """The error in an event; None if there is none. O(1)."""
    error = event.error
    if isinstance(error, str):
        return StreamError(error, by_request=False)
    if error is None and _ERROR not in (event.type, event.kind):
        return None
    return judged(error or ErrorFields(event.message, event.type, event.code))


def judged(error: ErrorFields) -> StreamError:
    """Decide whose fault an error is: by its HTTP status, else by its type or code."""
    code, by_request = error.code, error.type in _REQUESTS_FAULT or error.code in _REQUESTS_FAULT
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else None
    if status is not None:
        by_request = 400 <= status < 500 and status not in NOT_NOW
    return StreamError(str(error.message or error.type or code or "an error without a message"), by_request)
