"""Servers that close connections they had kept open: a request that never got there is sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from headway.core.record import Outcome
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.openai_stream import ATTEMPTS
from headway.traces import TraceRequest

TRACE = [TraceRequest(str(number), 0.05 * number, 3, 1) for number in range(6)]


@dataclass
class Closing:
    """Answers the first `answers` requests of a connection and closes it when the next one comes."""

    url: str = ""
    answers: int = 1
    refuses_completions: bool = False
    completions: list[int] = field(default_factory=list)
    """For each completion that came, how many requests its connection had seen before."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = 0
        while head := await self.read(reader):
            wants_completion = head.startswith(b"POST")
            if wants_completion:
                self.completions.append(seen)
            if seen == self.answers or (wants_completion and self.refuses_completions):
                break
            seen += 1
            writer.write(answer(completion() if wants_completion else models()))
            await writer.drain()
        writer.close()

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """The head of the next request, without its body; nothing at the end of the connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        await reader.readexactly(int(fields.get("Content-Length", 0)))
        return head


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def models() -> bytes:
    return json.dumps({"data": [{"id": "fake", "max_model_len": 100}]}).encode()


def completion() -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    event = {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage}
    return b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"


@pytest.fixture
async def closing() -> AsyncIterator[Closing]:
    made = Closing()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    made.url = f"http://{host}:{port}"
    async with server:
        yield made


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_request_on_a_connection_closed_meanwhile_is_sent_again(
    closing: Closing, answers: int
) -> None:
    closing.answers = answers
    report = await replay(TRACE, ReplayOptions(url=closing.url))
    assert [record.outcome for record in report.records] == [Outcome.FINISHED] * len(TRACE)
    assert {record.error for record in report.records} == {None}
    assert answers in closing.completions  # some did find theirs closed
    assert sum(seen < answers for seen in closing.completions) == len(TRACE)


async def test_a_server_that_answers_nobody_is_a_failure(closing: Closing) -> None:
    closing.refuses_completions = True
    report = await replay(TRACE[:1], ReplayOptions(url=closing.url))
    (record,) = report.records
    assert record.outcome is Outcome.FAILED
    assert (record.error or "").startswith("connection failed (ServerDisconnectedError")
    # The first went out on the connection that was kept from asking for the models.
    assert closing.completions == [1, 0]


async def test_a_connection_of_its_own_is_not_tried_again(closing: Closing) -> None:
    closing.answers, closing.refuses_completions = 1, True
    report = await replay(TRACE, ReplayOptions(url=closing.url))
    assert {record.outcome for record in report.records} == {Outcome.FAILED}
    assert len(closing.completions) <= len(TRACE) + 1 < ATTEMPTS * len(TRACE)
