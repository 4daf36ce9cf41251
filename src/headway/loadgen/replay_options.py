"""Options of a replay, and the form in which requests are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

import msgspec
import numpy as np

from headway.core.hints import (
    AGENTIC_CONTEXT,
    MAX_OUTPUT_TOKENS,
    PROGRAM,
    TENANT,
    length_hints,
    target_hints,
)
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.http_client import api_url
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

DEFAULT_TIMEOUT_S = 3600.0
"""Longer than any sensible wait for a measurement, so that a hanging server is given up eventually."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Where a trace is sent, and how.

    `vanish_fraction` of the requests, chosen by the seed, are cut off by their client mid-stream. A `plain` server gets
    nothing that OpenAI's own API does not define: no forced lengths, targets or tenants. With `own_stops` the model
    ends its answers, instead of at the trace's lengths. `estimates` are predicted lengths by request, which the server
    is told. `timeout_s` limits each whole request, including its wait in the server's queue; inf for no limit.
    """

    url: str
    model: str | None = None
    seed: int = 0
    vocab_size: int | None = None
    token_times: bool = False
    skip_too_long: bool = False
    plain: bool = False
    own_stops: bool = False
    estimates: Mapping[str, LengthEstimate] = field(default_factory=dict)
    vanish_fraction: float = 0.0
    api_key: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        api_url(self.url, "")
        self._token_ids()
        if not 0 <= self.vanish_fraction <= 1:
            raise ConfigError.of("vanish_fraction", self.vanish_fraction, "0 to 1")
        if not self.timeout_s > 0:
            raise ConfigError.of("timeout_s", self.timeout_s, "a number of seconds above 0, or inf")

    @property
    def session_timeout_s(self) -> float | None:
        """The session's timeout: None for no limit."""
        return None if self.timeout_s == inf else self.timeout_s

    def dialect(self, model: str, max_model_len: int | None) -> Dialect:
        """The form of requests for a server of this model."""
        return Dialect(
            model,
            max_model_len,
            self._token_ids(),
            self.plain,
            own_stops=self.own_stops,
            estimates=self.estimates,
        )

    def _token_ids(self) -> TokenIds:
        return TokenIds.for_vocabulary(self.vocab_size, self.seed)


FIRST_ID, LAST_ID = 256, 999
"""Token ids of generated prompts: above the special tokens and single bytes of common vocabularies, and in all of
them, since real ones have thousands of tokens.
"""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The range of ids (inclusive) from which prompts are generated, and the seed."""

    first: int = FIRST_ID
    last: int = LAST_ID
    seed: int = 0

    @classmethod
    def for_vocabulary(cls, size: int | None, seed: int) -> TokenIds:
        """Ids for a vocabulary of that size (None: any); the lowest quarter, at most 256, is left out."""
        if size is None:
            return cls(seed=seed)
        if size < 2:
            raise ConfigError.of("vocab_size", size, "2 or more")
        return cls(first=min(FIRST_ID, size // 4), last=size - 1, seed=seed)

    def draw(self, name: str, count: int) -> list[int]:
        """`count` ids that are always the same for a name and seed, and differ between names."""
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
        ids: list[int] = rng.integers(self.first, self.last, size=count, endpoint=True).tolist()
        return ids


def prompt_of(request: TraceRequest, ids: TokenIds) -> str | list[int]:
    """The trace's own prompt as text, or exactly `input_tokens` ids.

    Requests share the tokens of their common prefix blocks, and nothing else.
    """
    if request.prompt is not None:
        return request.prompt
    shared = [token for block in request.prefix_blocks for token in _block(ids, block)]
    own_tokens = request.input_tokens - len(shared)
    return shared[: request.input_tokens] + ids.draw(f"request {request.id}", max(0, own_tokens))


@lru_cache(maxsize=4096)
def _block(ids: TokenIds, block: int) -> tuple[int, ...]:
    return tuple(ids.draw(f"block {block}", MOONCAKE_BLOCK_TOKENS))


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests are sent to one server: the model's name and limit, and whether it is `plain`.

    A plain server gets nothing beyond OpenAI's own API. With `own_stops` the model ends its answers itself. `estimates`
    are predicted lengths to send, by request.
    """

    model: str
    max_model_len: int | None
    ids: TokenIds
    plain: bool = False
    own_stops: bool = False
    estimates: Mapping[str, LengthEstimate] = field(default_factory=dict)

    def body(self, request: TraceRequest, attempt: int = 0) -> bytes:
        """The JSON body of a streamed completion with exactly `output_tokens` tokens.

        Greedy, so that a request has the same answer under every policy. A plain server is only asked for at most that
        many tokens; a model that stops by itself, for at most the limit. A later `attempt` has another id, since the
        server may still hold the earlier one.
        """
        body: dict[str, object] = {
            "model": self.model,
            "prompt": prompt_of(request, self.ids),
            "max_tokens": self.limit_tokens(request) if self.own_stops else request.output_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self.plain:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
            body["request_id"] = f"{request.id}+{attempt}" if attempt else request.id
            if not self.own_stops:
                body |= {"min_tokens": request.output_tokens, "ignore_eos": True}
            if request.priority:
                body["priority"] = request.priority
            if hints := self._hints(request):
                body["vllm_xargs"] = hints
        return msgspec.json.encode(body)

    def limit_tokens(self, request: TraceRequest) -> int | None:
        """The most tokens of an answer that the model ends itself: declared, else what the context leaves."""
        if request.max_output_tokens is not None or self.max_model_len is None:
            return request.max_output_tokens
        return max(1, self.max_model_len - request.input_tokens)

    def too_long(self, request: TraceRequest) -> str | None:
        """Why the model cannot hold a request, or None. For a prompt given as text the server decides."""
        needed = request.input_tokens + request.output_tokens
        if self.max_model_len is None or request.prompt is not None or needed <= self.max_model_len:
            return None
        return (
            f"{request.input_tokens} input + {request.output_tokens} output tokens exceed the context of "
            f"{self.max_model_len} tokens of model {self.model!r}"
        )

    def _hints(self, request: TraceRequest) -> dict[str, object]:
        """Targets, tenant, program and the declared output limit; the forced length is no estimate and stays unsaid.

        The program is named for Headway and for vllm-router.
        """
        hints: dict[str, object] = {**target_hints(request.slo)}
        if request.tenant:
            hints[TENANT] = request.tenant
        if request.session is not None:
            hints[PROGRAM] = request.session
            hints[AGENTIC_CONTEXT] = msgspec.json.encode({"program_id": request.session}).decode()
        limit = request.max_output_tokens
        if limit is None and self.max_model_len is not None and request.prompt is None:
            limit = self.max_model_len - request.input_tokens
        if limit is not None:
            hints[MAX_OUTPUT_TOKENS] = limit
        if (estimate := self.estimates.get(request.id)) is not None:
            hints |= length_hints(estimate)
        return hints
