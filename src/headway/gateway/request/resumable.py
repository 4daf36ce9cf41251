"""Which streams can go on at another instance, and be what they would have been."""

from __future__ import annotations

import msgspec

from headway.gateway.request.generation_request import UNREADABLE, Ask

KEPT = frozenset(
    {
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "logit_bias",
        "allowed_token_ids",
        "user",
        "priority",
        "vllm_xargs",
        "cache_salt",
        "session_id",
        "stream",
        "stream_options",
        "stream_interval",
        "request_id",
    }
)
"""Fields that mean the same for the rest of an answer as for the whole."""

_PROMPT = frozenset(
    {
        "prompt",
        "messages",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "add_generation_prompt",
        "continue_final_message",
        "documents",
        "chat_template",
        "chat_template_kwargs",
    }
)
"""Fields that say what the prompt is: its token ids stand for them."""

_COUNTED = frozenset({"max_tokens", "max_completion_tokens", "min_tokens"})
_OURS = frozenset({"return_token_ids", "n"})
_NO_EFFECT = (b"null", b"false", b"0", b"0.0", b'""', b"[]", b"{}", b'"none"', b'{"type":"text"}')
"""Values by which a field asks for nothing."""
_COUNTS_OTHERS = frozenset({"logprobs", "prompt_logprobs"})
"""Fields of which 0 asks for something: the log probability of the token itself, and of no other."""
_SHORT_BYTES = 2**12
"""A longer value asks for something, and is not looked at: a stream that might break is to cost little before."""


def resumable(ask: Ask) -> bool:
    """Whether the rest of its stream can be asked for by token ids, and be what it would have been.

    Not so with several answers, or a field whose effect reaches over the break: penalties that count only the
    answer, stop texts of two characters and more, log probabilities, tools, structured output, and any field that
    is not known here. Sampled answers go on, as another sample would.
    """
    if not (ask.stream and ask.one_answer) or ask.api.named_events:
        return False
    return all(_keeps_its_sense(name, raw) for name, raw in ask.fields.items())


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
    """A stop text of one character cannot lie across the break, nor hold text back that had been made before it."""
    try:
        stop = msgspec.json.decode(raw)
    except UNREADABLE:
        return False  # the instance's to refuse
    stops = stop if isinstance(stop, list) else [stop or ""]
    return all(isinstance(text, str) and len(text) <= 1 for text in stops)


def has_more_than_text(ask: Ask) -> bool:
    """Whether a message holds an image, sound or the like."""
    messages = msgspec.json.decode(ask.fields["messages"]) if "messages" in ask.fields else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(not isinstance(part, dict) or part.get("type") != "text" for part in parts)
