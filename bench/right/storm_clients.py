"""The clients of a storm: each sends one request, hears its answer out or leaves, and classifies how it ended."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import msgspec

from headway.loadgen.openai_stream import sse_data

_DONE = b"[DONE]"


class Ending(StrEnum):
    """What a client saw. The last two must never occur."""

    FINISHED = "finished"
    """A whole answer."""
    REFUSED = "refused"
    """An HTTP error and no answer, in OpenAI's shape."""
    INTERRUPTED = "interrupted"
    """An answer that broke off with an error that says so, and an end mark."""
    LEFT = "left"
    """The client went away before the end, as planned."""
    BROKEN = "broken"
    """The connection ended without a reason, or the response was no answer."""
    HUNG = "hung"
    """Nothing ended within the limit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. With `leaves_after_s` its client goes away at that time."""

    id: str
    prompt: str
    max_tokens: int
    chat: bool = False
    stream: bool = True
    ignore_eos: bool = False
    ttft_ms: int | None = None
    leaves_after_s: float | None = None

    @property
    def path(self) -> str:
        """The request's path."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, model: str) -> dict[str, Any]:
        """The request body; greedy, so that the answer is always the same."""
        prompt = (
            {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        )
        return {
            "model": model,
            **prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": self.stream,
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }


@dataclass(slots=True)
class Heard:
    """The result of a request: `text` so far, `said` the error if there was one, `waited_s` until its end."""

    asked: Asked
    ending: Ending = Ending.BROKEN
    status: int = 0
    text: str = ""
    said: str = ""
    waited_s: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)
    end_marks: int = 0


async def ask(session: aiohttp.ClientSession, url: str, asked: Asked, model: str, limit_s: float) -> Heard:
    """Send a request; never raises, and never takes much longer than `limit_s`."""
    heard, began_s = Heard(asked), time.monotonic()
    patience_s = min(limit_s, asked.leaves_after_s or limit_s)
    try:
        async with asyncio.timeout(patience_s):
            await _hear(session, url, asked, model, heard)
        heard.ending = _judged(heard)
    except TimeoutError:
        heard.ending = Ending.HUNG if asked.leaves_after_s is None else Ending.LEFT
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:  # ValueError: no JSON
        heard.said = f"{type(error).__name__}: {error}"
    heard.waited_s = time.monotonic() - began_s
    return heard


async def storm(
    url: str, requests: Sequence[tuple[float, Asked]], model: str, limit_s: float, key: str = ""
) -> list[Heard]:
    """Send each request at its time (seconds from now, rising), whatever became of the others; with an optional key."""
    async with _session(key) as session, asyncio.TaskGroup() as group:
        began_s, tasks = time.monotonic(), []
        for at_s, asked in requests:
            await asyncio.sleep(at_s - (time.monotonic() - began_s))
            tasks.append(group.create_task(ask(session, url, asked, model, limit_s)))
    return [task.result() for task in tasks]


async def undisturbed(
    url: str, requests: Sequence[Asked], model: str, limit_s: float, at_once: int = 8, key: str = ""
) -> list[Heard]:
    """The same requests heard out, a few at a time."""
    turn = asyncio.Semaphore(at_once)

    async def one(asked: Asked) -> Heard:
        async with turn:
            return await ask(session, url, asked, model, limit_s)

    async with _session(key) as session:
        return await asyncio.gather(*map(one, requests))


def _session(key: str) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout()
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)


async def _hear(session: aiohttp.ClientSession, url: str, asked: Asked, model: str, heard: Heard) -> None:
    headers = {"X-Request-Id": asked.id}
    if asked.ttft_ms is not None:
        headers["X-Slo-Ttft-Ms"] = str(asked.ttft_ms)
    async with session.post(url + asked.path, json=asked.body(model), headers=headers) as response:
        heard.status = response.status
        if response.status != 200:
            heard.said = (await response.json(content_type=None))["error"]["message"]
        elif asked.stream:
            await _hear_stream(sse_data(response.content.iter_any()), heard)
        else:
            _take(await response.json(), heard)
            heard.end_marks = 1


async def _hear_stream(events: AsyncIterator[bytes], heard: Heard) -> None:
    async for data in events:
        if data == _DONE:
            heard.end_marks += 1
        else:
            _take(msgspec.json.decode(data), heard)


def _take(event: dict[str, Any], heard: Heard) -> None:
    """Handle one event, or a whole answer."""
    if "error" in event:
        heard.said = event["error"]["message"]
        return
    for choice in event["choices"]:
        said = choice.get("delta") or choice.get("message") or choice
        heard.text += said.get("content") or said.get("text") or ""
        if choice["finish_reason"] is not None:
            heard.finish_reasons.append(choice["finish_reason"])


def _judged(heard: Heard) -> Ending:
    """How an ended answer ended; BROKEN for one that ended twice, or in an unknown way."""
    if heard.status != 200:
        return Ending.REFUSED if heard.said else Ending.BROKEN
    if heard.end_marks != 1:
        return Ending.BROKEN
    if heard.said:
        return Ending.INTERRUPTED
    return Ending.FINISHED if len(heard.finish_reasons) == 1 else Ending.BROKEN


# ---- clients against the access log, and against undisturbed answers ---------------------------------

AGREE = {
    Ending.FINISHED: ("finished",),
    Ending.REFUSED: ("shed", "expired", "failed", "rejected"),
    Ending.INTERRUPTED: ("failed",),
    # A client that left may have missed how its request ended.
    Ending.LEFT: ("cancelled", "finished", "shed", "expired", "failed"),
}
"""What a client saw -> what the gateway may have logged."""


def unaccounted(heard: Sequence[Heard], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Requests without exactly one line in the access log, or with one that disagrees with the client.

    A client that left before its request was whole may have no line. A line for a request that was never sent counts
    too.
    """
    ends: dict[str, list[str]] = {}
    for line in lines:
        ends.setdefault(line["id"], []).append(line["outcome"])
    bad = []
    for one in heard:
        found = ends.pop(one.asked.id, [])
        never_came = not found and one.ending is Ending.LEFT
        agrees = len(found) == 1 and found[0] in AGREE.get(one.ending, ())
        if not (agrees or never_came):
            print(f"{one.asked.id}: {one.ending} ({one.status} {one.said}), logged {found}", file=sys.stderr)
            bad.append(one.asked.id)
    return [*bad, *ends]


def wrong(heard: Sequence[Heard], answers: Mapping[tuple[str, bool], str]) -> list[str]:
    """Requests whose answer is wrong, each reported on stderr beside the right one."""
    bad = [one for one in heard if is_wrong(one, answers)]
    for one in bad:
        right = answers[one.asked.prompt, one.asked.chat]
        print(f"{one.asked.id}: {one.ending} {one.text!r}, undisturbed {right!r}", file=sys.stderr)
    return [one.asked.id for one in bad]


def is_wrong(heard: Heard, answers: Mapping[tuple[str, bool], str]) -> bool:
    """Whether an answer, as far as it came, differs from the undisturbed one of its prompt (and whether it is a
    chat).
    """
    right = answers[heard.asked.prompt, heard.asked.chat]
    return heard.text != right if heard.ending is Ending.FINISHED else not right.startswith(heard.text)
