"""Sends one streamed completion, reads it token by token, and determines how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
import msgspec

from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.errors import UpstreamError
from headway.http_client import NO_ANSWER, NOT_AS_EXPECTED, UsedConnection, named

_DATA = b"data:"
DONE = b"[DONE]"

ATTEMPTS = 3
"""Attempts for a request that finds its connection closed."""

MAX_REASON_CHARACTERS = 300
"""Kept characters of a server's error message, which may quote the whole prompt."""

ENDED_BY_POLICY = {f"headway:{departure}": Outcome(departure) for departure in Departure}
"""`stop_reason` of a request that a policy ended -> its outcome; its `finish_reason` is "abort"."""


OVERLOADED = "overloaded"
"""`error.type` of a refusal (429) with which Headway's gateway passes on a policy's decision, or its own."""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class StreamedReply:
    """What has arrived for one request so far; times are seconds of the caller's clock.

    `cut`: the connection failed, so there is no answer of the server's. `refused`: the outcome of a request that a
    Headway gateway refused for overload.
    """

    sent_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    refused: Outcome | None = None
    cut: bool = False

    def take(self, data: bytes, now_s: float) -> None:
        """Add one event of the stream. Raises UpstreamError if it is an error or cannot be read."""
        try:
            chunk = _decode_chunk(data)
        except NOT_AS_EXPECTED as error:
            raise UpstreamError(f"the stream holds what is not a completion chunk ({error})") from None
        if chunk.error is not None:
            raise UpstreamError(f"the server reported {_shorten(_message(chunk.error))}")
        self._count(chunk, now_s)
        for choice in chunk.choices:
            if choice.finish_reason is not None:
                self.finish_reason, self.stop_reason = choice.finish_reason, choice.stop_reason
                self.ended_s = now_s

    def _count(self, chunk: _Chunk, now_s: float) -> None:
        """Count the chunk's tokens: by the server's running count if it sends one, else one for each text."""
        if chunk.usage is not None and chunk.usage.completion_tokens is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            new_tokens = chunk.usage.completion_tokens - self.output_tokens
        else:
            new_tokens = sum(1 for choice in chunk.choices if choice.text)
        self.output_tokens += new_tokens
        if chunk.choices and new_tokens > 0:
            self.token_times_s.extend([now_s] * new_tokens)
            if self.first_token_s is None:
                self.first_token_s = now_s

    def outcome(self) -> tuple[Outcome, str | None]:
        """How the request ended, according to the server, and the error if it failed."""
        if self.refused is not None:
            return self.refused, None
        if self.error is not None:
            return Outcome.FAILED, self.error
        if self.finish_reason is None:
            return (
                Outcome.FAILED,
                f"the stream ended after {self.output_tokens} tokens without a finish reason",
            )
        if self.finish_reason not in ("abort", "error"):
            return Outcome.FINISHED, None
        fate = ENDED_BY_POLICY.get(str(self.stop_reason))
        if fate is not None:
            return fate, None
        return Outcome.FAILED, f"ended by the server ({self.finish_reason}: {self.stop_reason})"


async def stream_completion(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    reply: StreamedReply,
    clock: Callable[[], float],
    leave_after_tokens: int | None = None,
) -> None:
    """Send one completion request and fill `reply` as tokens arrive; every failure is recorded in it.

    `leave_after_tokens` cuts the connection after this many tokens, like a client that went away.
    """
    reply.sent_s = clock()
    try:
        async with await _post(session, url, body) as response:
            if not response.ok:
                text = (await response.read()).decode(errors="replace")
                reply.refused = _refused(text) if response.status == 429 else None
                raise UpstreamError(f"HTTP {response.status}: {_shorten(_reason(text, response))}")
            async for data in sse_data(response.content.iter_any()):
                if data == DONE:
                    return
                reply.take(data, clock())
                if leave_after_tokens is not None and reply.output_tokens >= leave_after_tokens:
                    response.close()
                    return
    except UpstreamError as error:
        reply.error = str(error)
    except NO_ANSWER as error:
        reply.cut = not isinstance(error, TimeoutError)
        what = f"connection failed ({named(error)})" if reply.cut else "timed out"
        reply.error = f"{what} after {reply.output_tokens} tokens"
    finally:
        if reply.ended_s is None:
            reply.ended_s = clock()


async def sse_data(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    r"""Yield the payload of each `data:` line as soon as its line is complete, however the bytes are cut.

    Lines end only in b"\n" (or b"\r\n"): str.splitlines would also split at U+0085 and U+2028, which JSON text may
    contain. An unfinished last line is dropped.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield line[len(_DATA) :].strip()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> aiohttp.ClientResponse:
    """The answer's head. A kept connection that turns out to be closed is not counted as a failure.

    That happens if this process was delayed for longer than the server keeps a connection.
    """
    attempts = 0
    while True:
        attempts, connection = attempts + 1, UsedConnection()
        try:
            return await session.post(
                url, data=body, headers={"Content-Type": "application/json"}, trace_request_ctx=connection
            )
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if not connection.kept or attempts == ATTEMPTS:
                raise


class _Refusal(msgspec.Struct):
    type: str | None = None
    code: str | int | None = None


class _RefusalBody(msgspec.Struct):
    error: _Refusal


def _refused(text: str) -> Outcome | None:
    """The outcome of a refused request; None if the refusal does not come from a Headway gateway."""
    try:
        error = msgspec.json.decode(text, type=_RefusalBody).error
    except msgspec.DecodeError:
        return None
    if error.type != OVERLOADED:
        return None
    return Outcome.EXPIRED if error.code == str(Departure.EXPIRED) else Outcome.SHED


def _reason(text: str, response: aiohttp.ClientResponse) -> str:
    try:
        return _message(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return text.strip() or str(response.reason)


def _message(error: object) -> str:
    """The readable part of an error body: OpenAI nests it as error.message, others do not."""
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or error.get("detail") or str(error)
    return str(error)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}..."
