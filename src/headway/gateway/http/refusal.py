"""Errors that the gateway answers with itself, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from headway.core.record import Outcome

_STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    429: "overloaded",
    431: "invalid_request_error",
    500: "internal_error",
    501: "invalid_request_error",
    502: "upstream_error",
    503: "unavailable",
}
RETRY_NO_INSTANCE_S = 5
_OUTCOMES = {429: Outcome.SHED}


class Refusal(Exception):
    """A request is answered with an HTTP error of the gateway's own, nothing of an answer having been sent.

    `code` is the reason for machines, `retry_after_s` whole seconds after which to try again. `outcome` is what
    the request counts as, if it had been taken in.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.outcome = outcome or _OUTCOMES.get(status, Outcome.FAILED)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a refusal pass from one process to another: an exception keeps one argument by itself."""
        return Refusal, (self.status, self.code, self.message), self.__dict__

    @property
    def body(self) -> bytes:
        """`{"type": "error", "error": {"message", "type", "param", "code"}}`."""
        return error_body(self.message, _STATUS_TYPES[self.status], self.code, self.param)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self.body)),
        ]
        if self.status in (408, 413):
            headers.append((b"connection", b"close"))  # what is still to come of the body is not waited for
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.status == 401:
            headers.append((b"www-authenticate", b'Basic realm="headway", charset="UTF-8"'))
        return headers


def refused(refusal: Refusal) -> Response:
    """A refusal as one of the gateway's own pages answers it."""
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return Response(refusal.body, status_code=refusal.status, headers=headers)


def bad_request(message: str, param: str | None = None) -> Refusal:
    """HTTP 400."""
    return Refusal(400, "bad_request", message, param=param)


def too_large(limit_bytes: int) -> Refusal:
    """HTTP 413."""
    return Refusal(
        413, "body_too_large", f"the body is longer than {limit_bytes} bytes; accepted: up to so many"
    )


def url_too_long(limit_bytes: int) -> Refusal:
    """HTTP 414."""
    return Refusal(
        414, "url_too_long", f"the URL is too long; accepted: {limit_bytes} bytes with all headers"
    )


def head_too_large(limit_bytes: int, limit_headers: int) -> Refusal:
    """HTTP 431."""
    return Refusal(
        431,
        "head_too_large",
        f"the request's head is too large; accepted: {limit_bytes} bytes and {limit_headers} headers, with the URL, "
        f"trailers and chunk extensions",
    )


def no_upgrade() -> Refusal:
    """HTTP 501."""
    return Refusal(
        501,
        "no_upgrade",
        "the request asks for a WebSocket, or has a body and the header Upgrade; accepted: HTTP/1.1 without Upgrade "
        "(Java's HttpClient sends it unless its version is HTTP_1_1)",
    )


def stalled(seconds: float) -> Refusal:
    """HTTP 408."""
    return Refusal(
        408, "body_stalled", f"nothing more of the body came for {seconds:g} s; accepted: all of it"
    )


def no_instance(why: str = "no instance is ready") -> Refusal:
    """HTTP 503: nobody is there to serve. An instance that restarts needs longer than one that missed a check."""
    return Refusal(503, "no_instance", f"{why}; try again later", retry_after_s=RETRY_NO_INSTANCE_S)


def closing() -> Refusal:
    """HTTP 503: the gateway is on its way out; behind a load balancer another one is there at once."""
    return Refusal(503, "closing", "the gateway is being stopped", retry_after_s=1)


class _Message(msgspec.Struct):
    message: str


class _Error(msgspec.Struct):
    error: _Message


def message_of(body: bytes) -> str | None:
    """What a server's error says, if it is of OpenAI's shape."""
    try:
        return msgspec.json.decode(body, type=_Error).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error as JSON, for clients of OpenAI's API and of Anthropic's alike: the latter have a type on top."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"type": "error", "error": error})


def error_event(message: str, code: str, *, named: bool) -> bytes:
    """The end of a stream that cannot go on: the error as an event, with a name where events have one, else with the
    end mark behind it."""
    event = b"data: " + error_body(message, _STATUS_TYPES[502], code) + b"\n\n"
    return b"event: error\n" + event if named else event + b"data: [DONE]\n\n"
