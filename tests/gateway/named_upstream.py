"""Answers of `/v1/responses` and `/v1/messages` as vLLM gives them: as many tokens as were asked for, or none at all.

The prompt HOLD is answered when the client has gone; a stream of BREAK breaks off after two tokens; UNSERVED comes to
its end without a token, as what a policy ends does; FAULT is an error in the middle.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

MODEL = "small"
HOLD, BREAK, UNSERVED, FAULT = "hold", "break", "unserved", "fault"
TOKEN = "x "

Event = dict[str, Any]


def message_events(tokens: int) -> Iterable[Event]:
    """Anthropic's."""
    start = {"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
    usage = {"input_tokens": 3, "output_tokens": 0}
    yield {"type": "message_start", "message": {**start, "stop_reason": None, "usage": usage}}
    if tokens:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for _ in range(tokens):
            delta = {"type": "text_delta", "text": TOKEN}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": "max_tokens" if tokens else None, "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"input_tokens": 3, "output_tokens": tokens}}
    yield {"type": "message_stop"}


def message_of(tokens: int) -> Event:
    """The same in one piece."""
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": TOKEN * tokens}],
        "model": MODEL,
        "usage": {"input_tokens": 3, "output_tokens": tokens},
        **({"stop_reason": "max_tokens"} if tokens else {}),
    }


def response_of(tokens: int, name: str = "resp_1", *, status: str = "completed") -> Event:
    """OpenAI's answer in one piece."""
    text = {"type": "output_text", "text": TOKEN * tokens, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    usage = {"input_tokens": 3, "output_tokens": tokens, "total_tokens": 3 + tokens}
    return {
        "id": name,
        "object": "response",
        "created_at": 1,
        "model": MODEL,
        "status": status,
        "output": [item] if tokens else [],
        "usage": None if status == "in_progress" else usage,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }


def response_events(tokens: int, name: str = "resp_1") -> Iterable[Event]:
    """OpenAI's in events."""
    begun = response_of(0, name, status="in_progress")
    events: list[Event] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    if tokens:
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
        at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": []}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": item})
        events.append({"type": "response.content_part.added", **at, "part": part})
        delta = {"type": "response.output_text.delta", **at, "delta": TOKEN, "logprobs": []}
        events += [delta] * tokens
        events.append({"type": "response.output_text.done", **at, "text": TOKEN * tokens, "logprobs": []})
    events.append({"type": "response.completed", "response": response_of(tokens, name)})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def as_bytes(event: Event) -> bytes:
    """One event on the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def messages(request: web.Request) -> web.StreamResponse:
    """`POST /v1/messages`."""
    body = await request.json()
    if (
        not isinstance(body, dict)
        or not _are_messages(body.get("messages"))
        or not _count(body, "max_tokens")
    ):
        error = {"type": "BadRequestError", "message": "max_tokens is not positive, or there are no messages"}
        return web.json_response({"type": "error", "error": error}, status=400)
    said, tokens = body["messages"][-1].get("content"), min(64, body["max_tokens"])
    tokens = 0 if said == UNSERVED else tokens
    return await _answer(request, body, said, message_events(tokens), message_of(tokens))


async def responses(request: web.Request) -> web.StreamResponse:
    """`POST /v1/responses`."""
    body = await request.json()
    if not isinstance(body, dict) or not isinstance(body.get("input"), str | list) or not body["input"]:
        error = {"message": "there is no input", "type": "BadRequestError", "param": "input", "code": 400}
        return web.json_response({"error": error}, status=400)
    tokens = 0 if body["input"] == UNSERVED else min(64, _count(body, "max_output_tokens") or 4)
    name = body.get("request_id", "resp_1")
    events, whole = response_events(tokens, name), response_of(tokens, name)
    return await _answer(request, body, body["input"], events, whole)


def _are_messages(found: object) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(each, dict) for each in found)


def _count(body: Event, name: str) -> int:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


async def _answer(
    request: web.Request, body: Event, said: object, events: Iterable[Event], whole: Event
) -> web.StreamResponse:
    if body.get("model", MODEL) != MODEL:
        return web.json_response({"error": {"message": "no such model", "type": "NotFoundError"}}, status=404)
    if said == HOLD:
        await asyncio.Event().wait()
    if not body.get("stream"):
        return web.json_response(whole)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    deltas = 0
    for event in events:
        deltas += event["type"].endswith("delta")
        if deltas == 3 and said == BREAK:
            assert request.transport is not None
            request.transport.close()
        if deltas == 3 and said == FAULT:
            error = {"type": "internal_error", "message": "out of luck"}
            await response.write(as_bytes({"type": "error", "error": error}))
            return response
        await response.write(as_bytes(event))
    return response
