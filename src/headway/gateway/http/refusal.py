"""Errors with which the gateway itself answers, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from headway.core.record import Outcome

_STATUS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "overloaded",
    500: "internal_error",
    502: "upstream_error",
    503: "unavailable",
}
"""All other statuses are an `invalid_request_error`."""
RETRY_NO_INSTANCE_S = 5


class GatewayError(Exception):
    """A request is answered with an HTTP error of the gateway's own, before any of an answer was sent.

    `code` is the machine-readable reason, `retry_after_s` whole seconds until a retry. `outcome` is what the request
    counts as, if it was taken in.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.outcome = Outcome.SHED if status == 429 else Outcome.FAILED

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, for which an exception keeps only one argument by itself."""
        return GatewayError, (self.status, self.code, self.message), self.__dict__

    @property
    def body(self) -> bytes:
        """`{"type": "error", "error": {"message", "type", "param", "code"}}`."""
        return error_body(
            self.message, _STATUS_TYPES.get(self.status, "invalid_request_error"), self.code, self.param
        )

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer."""
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        if self.status == 408:
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.status == 401:
            headers.append((b"www-authenticate", b'Basic realm="headway", charset="UTF-8"'))
        return headers


def refused(refusal: GatewayError) -> Response:
    """A refusal as the answer of one of the gateway's own pages."""
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return Response(refusal.body, status_code=refusal.status, headers=headers)


def json_page(answer: object) -> Response:
    """An answer of the gateway's own as uncacheable JSON."""
    return Response(
        msgspec.json.encode(answer), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def bad_request(message: str, param: str | None = None) -> GatewayError:
    """HTTP 400."""
    return GatewayError(400, "bad_request", message, param=param)


def too_large(limit_bytes: int) -> GatewayError:
    """HTTP 413."""
    message = f"the body is too long; accepted: up to {limit_bytes} bytes"
    return GatewayError(413, "body_too_large", message)


def url_too_long(limit_bytes: int) -> GatewayError:
    """HTTP 414."""
    message = f"the URL is too long; accepted: {limit_bytes} bytes with all headers"
    return GatewayError(414, "url_too_long", message)


def head_too_large(limit_bytes: int, limit_headers: int) -> GatewayError:
    """HTTP 431."""
    limits = f"{limit_bytes} bytes and {limit_headers} headers, with the URL, trailers and chunk extensions"
    return GatewayError(431, "head_too_large", f"the request's head is too large; accepted: {limits}")


def no_upgrade() -> GatewayError:
    """HTTP 501."""
    return GatewayError(
        501,
        "no_upgrade",
        "the request asks for a WebSocket, or has a body and the header Upgrade; accepted: HTTP/1.1 without Upgrade "
        "(Java's HttpClient sends it unless its version is HTTP_1_1)",
    )


def stalled(bytes_per_s: int, patience_s: float, longest_s: float) -> GatewayError:
    """HTTP 408."""
    message = (
        f"the body came too slowly; accepted: {bytes_per_s} bytes/s, but for {patience_s:g} s, and all of it within "
        f"{longest_s:g} s"
    )
    return GatewayError(408, "body_stalled", message)


def no_instance(why: str = "no instance is ready") -> GatewayError:
    """HTTP 503: no instance can serve. A restarting instance needs longer than one that missed a check."""
    return GatewayError(503, "no_instance", f"{why}; try again later", retry_after_s=RETRY_NO_INSTANCE_S)


def closing() -> GatewayError:
    """HTTP 503: the gateway is stopping. A load balancer has another one at once."""
    return GatewayError(503, "closing", "the gateway is being stopped", retry_after_s=1)


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error as JSON for clients of OpenAI's and Anthropic's APIs; the latter expect a type at the top."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"type": "error", "error": error})


def error_event(message: str, code: str, *, named: bool) -> bytes:
    """The last event of a stream that cannot continue."""
    return _last_event(error_body(message, _STATUS_TYPES[502], code), named=named)


def error_as_event(status: int, body: bytes, *, named: bool) -> bytes:
    """The last event of a stream whose head was out before an error: the error itself, if it has OpenAI's shape."""
    from headway.http_client import message_of  # imports aiohttp, too slow for `--help`

    if message_of(body) is None:
        shown = f"HTTP {status}: {body[:200].decode(errors='replace')}"
        body = error_body(shown, _STATUS_TYPES.get(status, "invalid_request_error"), status)
    return _last_event(body.replace(b"\r", b"").replace(b"\n", b" "), named=named)


def _last_event(body: bytes, *, named: bool) -> bytes:
    """An error as an event, with a name if events have names, else followed by the end mark."""
    event = b"data: " + body + b"\n\n"
    return b"event: error\n" + event if named else event + b"data: [DONE]\n\n"
