"""Continues a broken stream at another instance, from the tokens that the client has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec

from headway.errors import UpstreamError
from headway.gateway.http.api import COMPLETIONS
from headway.gateway.http.events import DONE, Events, TakenUpEvents, halt_of, is_end_mark, payload, read_event
from headway.gateway.request.generation_request import GenerationRequest, whole_number
from headway.gateway.request.repeat import is_greedy, is_seeded
from headway.http_client import FIRST_SERVER_FAULT, NO_ANSWER, NOT_AS_EXPECTED, named, root_of

KEPT = frozenset({
    "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
    "logit_bias", "allowed_token_ids", "user", "priority", "vllm_xargs", "cache_salt", "session_id", "stream",
    "stream_options", "stream_interval", "request_id",
})  # fmt: skip
"""Fields that mean the same for the rest of an answer as for the whole."""
_PROMPT = frozenset({
    "prompt", "messages", "add_special_tokens", "truncate_prompt_tokens", "truncation_side",
    "add_generation_prompt", "continue_final_message", "documents", "chat_template", "chat_template_kwargs",
})  # fmt: skip
"""Fields that define the prompt; its token ids replace them."""

_TOOLS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""Fields that, if no tool may be called, are only part of the prompt."""
_NONE = msgspec.Raw(b'"none"')
_COUNTED = frozenset({"max_tokens", "max_completion_tokens", "min_tokens"})
_OURS = frozenset({"return_token_ids", "n"})
_NO_EFFECT = (b"null", b"false", b"0", b"0.0", b'""', b"[]", b"{}", b'"none"', b'{"type":"text"}')
"""Values with which a field asks for nothing."""
_COUNTS_OTHERS = frozenset({"logprobs", "prompt_logprobs"})
"""Fields whose 0 asks for something: the log probability of the token itself, and no others."""
_SHORT_BYTES = 2**12
"""A longer value counts as a request for something and is not examined: preparing for a break must be cheap."""

_REPLACEMENT = "\ufffd"
_TAIL_TOKENS = 16
_DETOKENIZE_TIMEOUT_S = 2.0

_decode = msgspec.json.decode
_encode = msgspec.json.encode

_NOT_NOW = (408, 429)
"""Client errors that depend on the moment: timeout, and overload."""


def resumable(request: GenerationRequest) -> bool:
    """Whether the rest of the stream can be requested by token ids, with the same result as without the break.

    False for several answers, and for fields whose effect reaches across the break: penalties that count only the
    answer, stop texts of two characters and more, log probabilities, tools that may be called, structured output, and
    any unknown field. Sampled answers continue as another sample would, unless a seed asks for one particular sample.
    """
    if not (request.stream and request.one_answer) or request.api.named_events:
        return False
    if is_seeded(request) and not is_greedy(request):
        return False
    if request.fields.get("tool_choice") == _NONE:
        fields = {name: raw for name, raw in request.fields.items() if name not in _TOOLS}
        return all(_keeps_its_sense(name, raw) for name, raw in fields.items())
    return all(_keeps_its_sense(name, raw) for name, raw in request.fields.items())


def loses_nothing(request: GenerationRequest, answer_limit: int | None) -> bool:
    """Whether an instance may give the request up in the middle of its answer, whatever the answer turns out to be.

    A whole answer is requested again. A stream continues from its token ids if its limit is known (`answer_limit` is
    its model's own). A chat may turn out to come from a parser: it is then repeated, which is possible only for a
    greedy one.
    """
    if not request.stream:
        return not request.api.named_events
    is_limited = request.max_tokens is not None or answer_limit is not None
    return is_limited and resumable(request) and (not request.chat or is_greedy(request))


def _keeps_its_sense(name: str, raw: msgspec.Raw) -> bool:
    if name != "stop" and (name in KEPT or name in _PROMPT or name in _COUNTED or name in _OURS):
        return True
    if memoryview(raw).nbytes > _SHORT_BYTES:
        return False
    if name == "stop":
        return _short_stops(raw)
    value = bytes(raw).replace(b" ", b"")
    return value in _NO_EFFECT and not (value == b"0" and name in _COUNTS_OTHERS)


def _short_stops(raw: msgspec.Raw) -> bool:
    """A stop text of one character cannot lie across the break, nor hold back text from before it."""
    try:
        stop = msgspec.json.decode(raw)
    except NOT_AS_EXPECTED:
        return False  # for the instance to refuse
    stops = stop if isinstance(stop, list) else [stop or ""]
    return all(isinstance(text, str) and len(text) <= 1 for text in stops)


def has_more_than_text(request: GenerationRequest) -> bool:
    """Whether a message has an image, audio or the like."""
    messages = msgspec.json.decode(request.fields["messages"]) if "messages" in request.fields else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(not isinstance(part, dict) or part.get("type") != "text" for part in parts)


class _Text(msgspec.Struct):
    prompt: str


class _Head(msgspec.Struct):
    id: str = ""
    created: int = 0
    model: str = ""


@dataclass(slots=True, kw_only=True)
class Continuation:
    """What the client has of an answer, and the request for the rest: a completion, for a chat too.

    `prompt_ids` and `sent_ids` are JSON numbers with commas between; `sent` is the number of the latter.
    """

    request: GenerationRequest
    head: _Head
    prompt_ids: bytes
    sent_ids: bytes
    max_model_len: int | None
    answer_limit: int | None

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
        """Tokens that may still come; None if unknown."""
        limits = []
        if self.request.max_tokens is not None:
            limits.append(self.request.max_tokens - self.sent)
        elif self.answer_limit is not None:
            limits.append(self.answer_limit - self.sent)
        if self.max_model_len is not None:
            limits.append(self.max_model_len - self.prompt_tokens - self.sent)
        return min(limits) if limits else None

    def without(self, tokens: int) -> Continuation:
        """The continuation without the last tokens, which belong to a character of which the client has nothing."""
        return replace(self, sent_ids=b",".join(self.sent_ids.split(b",")[:-tokens])) if tokens else self

    def rest(self) -> GenerationRequest:
        """The request for the rest."""
        fields = {name: raw for name, raw in self.request.fields.items() if name in KEPT}
        ids = self.prompt_ids + b"," + self.sent_ids if self.sent_ids else self.prompt_ids
        fields["prompt"] = msgspec.Raw(b"[" + ids + b"]")
        fields["max_tokens"] = msgspec.Raw(b"%d" % (self.left or 1))
        least = self.request.fields.get("min_tokens")
        if least is not None:
            fields["min_tokens"] = msgspec.Raw(_encode(max(0, (whole_number(least) or 0) - self.sent)))
        return replace(
            self.request,
            path=COMPLETIONS.path,
            api=COMPLETIONS,
            fields=fields,
            prompt_tokens=self.prompt_tokens + self.sent,
            max_tokens=self.left,
            previous_id=None,
            may_move=False,
        )

    def end(self) -> bytes:
        """What is missing after the finish reason: the usage, if the client wants it, and the end mark."""
        if not self.request.wants_usage:
            return DONE
        return self.render({"choices": [], "usage": {"completion_tokens": 0}}) + DONE

    def render(self, event: dict[str, Any]) -> bytes:
        """Convert a completion event of the rest into one of the first instance's events."""
        head = {
            "id": self.head.id,
            "object": "chat.completion.chunk" if self.request.chat else "text_completion",
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
        ids = choice.get("token_ids") if self.request.wants_ids else None
        if not self.request.chat:
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
        """Move the tokens that the client had from the prompt's usage to the answer's."""
        completion = (usage.get("completion_tokens") or 0) + self.sent
        total = self.prompt_tokens + completion
        counts = {"prompt_tokens": self.prompt_tokens, "total_tokens": total, "completion_tokens": completion}
        return {**counts, **usage, **counts}


def continue_from(
    request: GenerationRequest,
    events: Events,
    first_events: bytes,
    max_model_len: int | None,
    answer_limit: int | None,
) -> Continuation | str:
    """How a broken stream continues, or why it cannot.

    `answer_limit` is what its model allows an answer if the request sets no limit; None: unknown.
    """
    if not events.prompt_ids:
        return "its tokens are not known"
    if not resumable(request):
        return "a request of its kind cannot be continued"
    if request.chat and has_more_than_text(request):
        return "its prompt is more than text"
    if events.parsed:
        return "its text is made by a parser"
    if request.max_tokens is None and answer_limit is None:
        return "it sets no max_tokens, and the limit in its model's generation_config.json is not known"
    head = _head(first_events)
    if head is None:
        return "its first event cannot be read"
    found = Continuation(
        request=request,
        head=head,
        prompt_ids=events.prompt_ids,
        sent_ids=bytes(events.sent_ids),
        max_model_len=max_model_len,
        answer_limit=answer_limit,
    )
    if found.left is None:
        return "how long it may get is not known"
    return found


def _head(first_events: bytes) -> _Head | None:
    """What all events of the answer begin with, taken from the first of them."""
    for line in first_events.split(b"\n"):
        found = payload(line)
        if found is not None:
            try:
                return _decode(found, type=_Head)
            except NOT_AS_EXPECTED:
                return None
    return None


def _count(ids: bytes) -> int:
    return ids.count(b",") + 1 if ids else 0


async def half_a_character(session: aiohttp.ClientSession, url: str, continuation: Continuation) -> int:
    """How many of the last tokens make no whole character, so that the client has nothing of them.

    vLLM holds their text back, and would repeat the prompt's if a prompt ended so. The continuing instance is asked to
    turn the last tokens into text. If it does not offer that, the result is 0, which is right if every token is whole
    characters. One question, and one more for each token dropped. Raises UpstreamError if it does not answer: its
    continuation of half a character would be wrong.
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
    """The tokens as text, by vLLM's `/detokenize`; empty from a server without it."""
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
    except (*NO_ANSWER, *NOT_AS_EXPECTED) as error:
        raise UpstreamError(f"it does not say what text its tokens are ({named(error)})") from None


@dataclass(slots=True, kw_only=True)
class ResumedEvents(TakenUpEvents):
    """The rest of a stream: decoded, and converted to look like the beginning. See `events.Events`."""

    continuation: Continuation

    def __post_init__(self) -> None:
        self.sent_ids = bytearray(self.continuation.sent_ids)
        self.prompt_ids = self.continuation.prompt_ids
        self.tokens = self.continuation.sent

    def _line(self, line: bytes) -> bytes:
        self.halt = halt_of(line)
        if self.halt is not None:
            return b""
        found = payload(line)
        if found is None:
            self.done = self.done or is_end_mark(line)
            return DONE if is_end_mark(line) else b""
        event = read_event(found)
        if "error" in event:
            self.refused = True
            return line + b"\n\n"
        choices = event.get("choices") or []
        self.counted = self.counted or not choices
        for choice in choices:
            ids = choice.get("token_ids") or []
            self.tokens += len(ids)
            text = ",".join(map(str, ids)).encode()
            self.sent_ids += b"," + text if self.sent_ids and text else text
            self.finished = self.finished or choice.get("finish_reason") is not None
        return self.continuation.render(event)
