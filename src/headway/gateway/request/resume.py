"""A stream whose instance broke goes on at another, from the tokens that the client has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from headway.errors import UpstreamError
from headway.gateway.http.api import COMPLETIONS
from headway.gateway.http.events import DONE, Events, payload
from headway.gateway.request.generation_request import Ask, whole_number
from headway.gateway.request.resumable import KEPT, has_more_than_text, resumable
from headway.http_client import FIRST_SERVER_FAULT, named, root_of

_REPLACEMENT = "\ufffd"
_TAIL_TOKENS = 16
_DETOKENIZE_TIMEOUT_S = 2.0

_decode = msgspec.json.decode
_encode = msgspec.json.encode

_NOT_NOW = (408, 429)
"""Of those that say that the client is at fault: too late, and too much."""


class _Text(msgspec.Struct):
    prompt: str


class _Head(msgspec.Struct):
    id: str = ""
    created: int = 0
    model: str = ""


@dataclass(slots=True, kw_only=True)
class Continuation:
    """What the client has of an answer, and the request for the rest: a completion, for a chat too.

    `prompt_ids` and `sent_ids` are JSON numbers with commas between, `sent` how many of the latter there are.
    """

    ask: Ask
    head: _Head
    prompt_ids: bytes
    sent_ids: bytes
    max_model_len: int | None

    @property
    def sent(self) -> int:
        """Tokens of the answer that the client has."""
        return _count(self.sent_ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return _count(self.prompt_ids)

    @property
    def left(self) -> int | None:
        """Tokens that may still come; None where nobody says how many."""
        limits = []
        if self.ask.max_tokens is not None:
            limits.append(self.ask.max_tokens - self.sent)
        if self.max_model_len is not None:
            limits.append(self.max_model_len - self.prompt_tokens - self.sent)
        return min(limits) if limits else None

    def without(self, tokens: int) -> Continuation:
        """As if the last tokens had not been sent: they belong to a character of which the client has nothing."""
        kept = b",".join(self.sent_ids.split(b",")[:-tokens]) if tokens else self.sent_ids
        return Continuation(
            ask=self.ask,
            head=self.head,
            prompt_ids=self.prompt_ids,
            sent_ids=kept,
            max_model_len=self.max_model_len,
        )

    def rest(self) -> Ask:
        """The request for the rest."""
        fields = {name: raw for name, raw in self.ask.fields.items() if name in KEPT}
        ids = self.prompt_ids + b"," + self.sent_ids if self.sent_ids else self.prompt_ids
        fields["prompt"] = msgspec.Raw(b"[" + ids + b"]")
        fields["max_tokens"] = msgspec.Raw(b"%d" % (self.left or 1))
        least = self.ask.fields.get("min_tokens")
        if least is not None:
            fields["min_tokens"] = msgspec.Raw(_encode(max(0, (whole_number(least) or 0) - self.sent)))
        return Ask(
            path=COMPLETIONS.path,
            api=COMPLETIONS,
            fields=fields,
            stream=True,
            answers=1,
            prompt_tokens=self.prompt_tokens + self.sent,
            max_tokens=self.left,
            request_id=self.ask.request_id,
            previous_id=None,
            slo=self.ask.slo,
            tenant=self.ask.tenant,
            priority=self.ask.priority,
            may_move=False,
            wants_ids=self.ask.wants_ids,
            wants_usage=self.ask.wants_usage,
            xargs=self.ask.xargs,
        )

    def end(self) -> bytes:
        """What is missing when the finish reason has come: the usage, if the client wants it, and the end mark."""
        if not self.ask.wants_usage:
            return DONE
        return self.render({"choices": [], "usage": {"completion_tokens": 0}}) + DONE

    def render(self, event: dict[str, Any]) -> bytes:
        """A completion event of the rest, as the client would have had it from the first instance."""
        head = {
            "id": self.head.id,
            "object": "chat.completion.chunk" if self.ask.chat else "text_completion",
            "created": self.head.created,
            "model": self.head.model,
        }
        choices = event.get("choices") or []
        shown = {**head, **event, **head, "choices": [self._choice(choice) for choice in choices]}
        usage = event.get("usage")
        if usage:
            shown["usage"] = self._usage(usage)
        return b"data: " + _encode(shown) + b"\n\n"

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        ids = choice.get("token_ids") if self.ask.wants_ids else None
        if not self.ask.chat:
            return {**choice, "prompt_token_ids": None, "token_ids": ids}
        shown: dict[str, Any] = {
            "index": choice.get("index", 0),
            "delta": {"content": choice.get("text", "")},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason"),
        }
        if shown["finish_reason"] is not None:
            shown["stop_reason"] = choice.get("stop_reason")
        return {**shown, "token_ids": ids}

    def _usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The rest's prompt is the prompt and what the client had: put back where it belongs."""
        completion = (usage.get("completion_tokens") or 0) + self.sent
        total = self.prompt_tokens + completion
        counts = {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": completion}
        return {**counts, **usage, **counts}


def continue_from(
    ask: Ask, events: Events, first_events: bytes, max_model_len: int | None
) -> Continuation | str:
    """How a broken stream goes on; or why it cannot, for people."""
    if not events.prompt_ids:
        return "its tokens are not known"
    if not resumable(ask):
        return "a request of its kind cannot be continued"
    if ask.chat and has_more_than_text(ask):
        return "its prompt is more than text"
    if events.parsed:
        return "its text is made by a parser"
    head = _head(first_events)
    if head is None:
        return "its first event cannot be read"
    found = Continuation(
        ask=ask,
        head=head,
        prompt_ids=events.prompt_ids,
        sent_ids=bytes(events.sent_ids),
        max_model_len=max_model_len,
    )
    if found.left is None:
        return "how long it may get is not known"
    return found


def _head(first_events: bytes) -> _Head | None:
    """What all events of the answer begin with, read from the first of them."""
    for line in first_events.split(b"\n"):
        found = payload(line)
        if found is not None:
            try:
                return _decode(found, type=_Head)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
    return None


def _count(ids: bytes) -> int:
    return ids.count(b",") + 1 if ids else 0


async def half_a_character(session: aiohttp.ClientSession, url: str, continuation: Continuation) -> int:
    """How many of the last tokens make no whole character, so that the client has nothing of them.

    vLLM holds their text back, and would repeat the prompt's if a prompt ended so. The instance that goes on is asked
    to turn the last tokens into text; where it does not offer that, 0 is the answer, which is right wherever each token
    is whole characters. One question, and one more for each token dropped. Raises UpstreamError if it does not answer:
    what it then made of a half character would be wrong.
    """
    ids = continuation.sent_ids.split(b",") if continuation.sent_ids else []
    dropped = 0
    while dropped < len(ids):
        end = len(ids) - dropped
        tail = ids[max(0, end - _TAIL_TOKENS) : end]
        if not (await _text(session, url, continuation.head.model, tail)).endswith(_REPLACEMENT):
            break
        dropped += 1
    return dropped


async def _text(session: aiohttp.ClientSession, url: str, model: str, ids: list[bytes]) -> str:
    """The tokens as text, by vLLM's `/detokenize`; empty from a server that does not offer it."""
    body = b'{"model":%b,"tokens":[%b]}' % (_encode(model), b",".join(ids))
    try:
        async with session.post(
            f"{root_of(url)}/detokenize",
            data=body,
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=_DETOKENIZE_TIMEOUT_S),
        ) as response:
            if 400 <= response.status < FIRST_SERVER_FAULT and response.status not in _NOT_NOW:
                return ""
            return _decode(await response.read(), type=_Text).prompt
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UpstreamError(f"it does not say what text its tokens are ({named(error)})") from None
