"""Lines of batch files: requests in an input file, answers in an output or error file."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from headway.core.hints import quoted
from headway.gateway.batch.objects import Problem
from headway.http_client import NOT_AS_EXPECTED

MAX_CUSTOM_ID = 512
_PIECE_BYTES = 2**16
_LINE_BREAKS = {char.encode(): f"\\u{ord(char):04x}".encode() for char in "\u0085\u2028\u2029"}
"""Characters that JSON text may contain, and at which Python's `splitlines` breaks lines -> their escapes."""
_OK = 200


class Line(msgspec.Struct):
    """A request of an input file; `body` has its original bytes."""

    custom_id: str
    body: msgspec.Raw
    url: str
    method: str = "POST"


class Found(NamedTuple):
    """A line and its position in the file: `number` counts from 1. `data` is None if the line is too long."""

    number: int
    place: int
    size: int
    data: bytes | None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


def lines_from(file: BinaryIO, place: int, number: int, longest: int) -> Iterator[Found]:
    """Yield the lines of an open file after the `number`-th, which ends at `place`. Empty lines are counted and
    left out.
    """
    file.seek(place)
    while data := file.readline(longest + 1):
        number, size, fits = number + 1, len(data), True
        if size > longest and not data.endswith(b"\n"):
            fits = False
            while (more := file.readline(_PIECE_BYTES)) and not more.endswith(b"\n"):
                size += len(more)
            size += len(more)
        if not fits or data.strip():
            yield Found(number, place, size, data if fits else None)
        place += size


class Checked(NamedTuple):
    """A checked line: `custom_id` and `model` if it has them, and the problem if there is one."""

    custom_id: str | None = None
    model: str | None = None
    problem: Problem | None = None


def check_line(found: Found, endpoint: str, longest: int) -> Checked:
    """Check whether a line is a request of this endpoint."""
    number, data = found.number, found.data
    if data is None:
        told = f"{found.size} bytes; accepted: up to {longest}"
        return Checked(problem=_problem(number, "line_too_long", told))
    try:
        line = decode_line(data)
        body = msgspec.json.decode(line.body, type=_Body)
    except NOT_AS_EXPECTED as error:
        told = f"no request ({error}); accepted: custom_id, method, url, body"
        return Checked(problem=_problem(number, "invalid_line", told))
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID:
        told = f"custom_id is {quoted(line.custom_id)}; accepted: 1 to {MAX_CUSTOM_ID} characters"
        return Checked(problem=_problem(number, "invalid_custom_id", told, "custom_id"))
    problem: Problem | None = None
    if line.method != "POST":
        told = f"method is {quoted(line.method)}; accepted: 'POST'"
        problem = _problem(number, "invalid_method", told, "method")
    elif line.url != endpoint:
        told = f"url is {quoted(line.url)}; accepted: {endpoint!r}"
        problem = _problem(number, "mismatched_url", told, "url")
    elif body.stream:
        told = "body.stream is true; accepted: an answer in one piece"
        problem = _problem(number, "streams", told, "body.stream")
    return Checked(line.custom_id, body.model, problem)


def decode_line(data: bytes) -> Line:
    """Decode a line's request. Raises msgspec's errors if it is not one."""
    return msgspec.json.decode(data.removeprefix(BOM_UTF8), type=Line)


def duplicate(number: int, custom_id: str) -> Problem:
    """The problem of a line whose `custom_id` an earlier line has."""
    told = f"custom_id is {quoted(custom_id)}, as in an earlier line; accepted: each once"
    return _problem(number, "duplicate_custom_id", told, "custom_id")


def _problem(number: int, code: str, message: str, param: str | None = None) -> Problem:
    return Problem(code=code, message=f"line {number}: {message}", line=number, param=param)


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _Answer(msgspec.Struct):
    id: str
    custom_id: str | None
    response: _Response | None
    error: Problem | None


def problem_line(answer_id: str, custom_id: str | None, problem: Problem) -> bytes:
    """A line of an error file for a request that was not sent."""
    return msgspec.json.encode(_Answer(answer_id, custom_id, None, problem)) + b"\n"


def answer_line(answer_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """A line for a request that was answered with this status. Raises NOT_AS_EXPECTED if the body is not JSON."""
    whole = msgspec.json.format(body, indent=-1)
    for break_, escaped in _LINE_BREAKS.items():
        whole = whole.replace(break_, escaped)
    response = _Response(status, answer_id, msgspec.Raw(whole))
    return msgspec.json.encode(_Answer(answer_id, custom_id, response, None)) + b"\n"


class Usage(NamedTuple):
    """Token counts of an answer, as far as it states them."""

    input: int = 0
    output: int = 0


class _Tokens(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class _Usage(msgspec.Struct):
    usage: _Tokens | None = None


def usage_of(status: int, body: bytes) -> Usage:
    """The token counts in an answer, by the field names of any of the APIs."""
    if status != _OK:
        return Usage()
    try:
        told = msgspec.json.decode(body, type=_Usage).usage or _Tokens()
    except NOT_AS_EXPECTED:
        return Usage()
    return Usage(
        told.prompt_tokens or told.input_tokens or 0, told.completion_tokens or told.output_tokens or 0
    )
