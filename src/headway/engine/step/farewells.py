"""Last outputs of requests that end without a token: vLLM has none for them, so their clients would wait."""

from __future__ import annotations

import logging
from collections import deque

from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request

logger = logging.getLogger(__name__)


class Farewells:
    """A queue, since with two steps in flight a second plan comes before the first one's outputs."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, EngineCoreOutput]] = deque()

    def add(self, request: Request, reason: str, *, failed: bool) -> None:
        """Queue the last output of a request that was just finished, with the reason its client sees.

        Of one that failed the client hears over HTTP only that it did, so the log has the reason.
        """
        if failed:
            logger.error("request %s fails: %s", request.request_id, reason)
        output = EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR if failed else FinishReason.ABORT,
            stop_reason=reason,
            events=request.take_events(),
            trace_headers=request.trace_headers,
        )
        self._queue.append((request.client_index, output))

    def deliver(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Move everything queued into a step's outputs, by client."""
        while self._queue:
            client_index, output = self._queue.popleft()
            outputs.setdefault(client_index, EngineCoreOutputs()).outputs.append(output)
