"""Predicts and learns answer lengths beside the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from headway.core.hints import LENGTH, read_hints
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.gateway.request.generation_request import GenerationRequest
from headway.http_client import NOT_AS_EXPECTED
from headway.predict.lengths.facts import LengthPredictor, RequestFacts, SharedPrefix

_LOG = logging.getLogger(__name__)
_OF_TEXTS = ("content", "text", "input", "arguments", "output")
"""Fields of messages and their parts that contain text; all others describe it."""
_MOST_BYTES = 2**18
"""A longer field is not read: decoding it would delay all other requests."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The facts of an arriving request, and the expected length of its answer."""

    facts: RequestFacts
    estimate: LengthEstimate | None


class LengthThread:
    """Predicts for arriving requests and learns from finished answers, in order, on one thread.

    The common beginning of many prompts counts as their instruction. Without a predictor only lengths that clients
    state are known (`headway_length`).
    """

    def __init__(self, predictor: LengthPredictor | None) -> None:
        self._predictor = predictor
        self._prefixes = SharedPrefix()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-lengths")
        self._has_failed = False

    async def judge(self, request: GenerationRequest, limit: int) -> Judged:
        """The request with its predicted answer length, at most `limit` tokens; call once for each."""
        said = _said(request)
        if self._predictor is None or not request.one_answer:
            return Judged(_without_text(request, limit), said)
        judge = asyncio.get_running_loop().run_in_executor(self._thread, self._judge, request, limit)
        judged = await judge
        return judged if said is None else Judged(judged.facts, said)

    def learn(self, facts: RequestFacts, output_tokens: int) -> None:
        """Learn from a finished answer; returns at once."""
        predictor = self._predictor
        if predictor is not None:
            self._thread.submit(self._try, lambda: predictor.observe(facts, output_tokens))

    def close(self) -> None:
        """Finish learning; predict nothing more."""
        self._thread.shutdown()

    def _judge(self, request: GenerationRequest, limit: int) -> Judged:
        assert self._predictor is not None
        facts = self._prefixes.facts(
            prompt_text(request),
            num_prompt_tokens=request.prompt_tokens,
            max_output_tokens=limit,
            tenant=request.share,
        )
        predictor, found = self._predictor, list[LengthEstimate | None]()
        self._try(lambda: found.append(predictor.predict(facts)))
        return Judged(facts, found[0] if found else None)

    def _try(self, work: Callable[[], None]) -> None:
        """Run the work. The first error is logged, and requests continue without a prediction."""
        try:
            work()
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _LOG.exception("predicting lengths failed; requests go on without a prediction where it does")


def _without_text(request: GenerationRequest, limit: int) -> RequestFacts:
    return RequestFacts(num_prompt_tokens=request.prompt_tokens, max_output_tokens=limit)


def _said(request: GenerationRequest) -> LengthEstimate | None:
    """The client's expectation; None without one, or if the instance will refuse it."""
    if LENGTH not in request.xargs:
        return None
    try:
        return read_hints(request.xargs).predicted_length
    except ConfigError:
        return None


def prompt_text(request: GenerationRequest) -> str:
    """The texts in the prompt's fields, joined; empty for token ids. O(bytes)."""
    texts: list[str] = []
    for name in request.api.prompt:
        raw = request.fields.get(name)
        if raw is None or memoryview(raw).nbytes > _MOST_BYTES:
            continue
        try:
            _gather(msgspec.json.decode(raw), texts)
        except NOT_AS_EXPECTED:
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
