"""The text of a request's prompt, as far as it is text, for what learns how long answers are."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.gateway.request.generation_request import UNREADABLE, GenerationRequest

_OF_TEXTS = ("content", "text", "input", "arguments", "output")
"""Fields of messages and of their parts that hold what is said; all others tell of it."""
_MOST_BYTES = 2**18
"""Of a longer field nothing is read: to decode it would hold up all other requests."""


def prompt_text(request: GenerationRequest) -> str:
    """What the prompt's fields say, one text after another; empty where prompts are token ids. O(bytes)."""
    texts: list[str] = []
    for name in request.api.prompt:
        raw = request.fields.get(name)
        if raw is None or memoryview(raw).nbytes > _MOST_BYTES:
            continue
        try:
            _gather(msgspec.json.decode(raw), texts)
        except UNREADABLE:
            continue  # the instance will say what is wrong with it
    return "\n".join(texts)


def _gather(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, list):
        for each in value:
            _gather(each, texts)
    elif isinstance(value, dict):
        for name in _OF_TEXTS:
            _gather(value.get(name), texts)
