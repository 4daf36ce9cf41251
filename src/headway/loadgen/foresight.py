"""A length predictor asked beside the event loop, so that tokens are timed while it thinks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from headway.core.length_estimate import LengthEstimate
from headway.predict.length import LengthPredictor, RequestFacts
from headway.predict.shared_prefix import SharedPrefix
from headway.traces import TraceRequest


class Foresight:
    """Judges requests as they come and learns from answers as they finish, in the order it was told of either.

    One thread of its own does both; a context manager ends it. What many prompts begin with is their
    instruction. Without a predictor nothing is known of any length.
    """

    def __init__(self, predictor: LengthPredictor | None) -> None:
        self._predictor = predictor
        self._prefixes = SharedPrefix()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-lengths")

    def __enter__(self) -> Foresight:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def facts(self, request: TraceRequest, limit: int) -> RequestFacts:
        """What a server would know of the request when it comes; to be asked once a request."""
        return self._prefixes.facts(
            request.prompt or "",
            num_prompt_tokens=request.input_tokens,
            max_output_tokens=limit,
            tenant=request.tenant,
        )

    async def judge(self, facts: Sequence[RequestFacts]) -> list[LengthEstimate | None]:
        """How long the answers will probably be."""
        predictor = self._predictor
        if predictor is None:
            return [None] * len(facts)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: [predictor.predict(each) for each in facts])

    def learn(self, facts: RequestFacts, output_tokens: int) -> None:
        """An answer has finished; returns at once."""
        if self._predictor is not None:
            self._thread.submit(self._predictor.observe, facts, output_tokens)
