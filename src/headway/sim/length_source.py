"""Who says, in a simulation, how long an answer will probably be."""

from __future__ import annotations

from typing import Protocol

from headway.core.length_estimate import LengthEstimate
from headway.predict.length import LengthPredictor, RequestFacts
from headway.traces import TraceRequest


class LengthSource(Protocol):
    """Asked once for each request, as it arrives, and told how long the answers of finished ones were."""

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """How long the answer will probably be; None if nobody knows."""
        ...

    def finished(self, request: TraceRequest, max_output_tokens: int) -> None:
        """The answer came to its end, with the request's own output tokens."""
        ...


class AskedPredictor:
    """A real predictor, shown only what a server would know; what finished becomes known as it finishes."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self._predictor = predictor

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """What the predictor says."""
        return self._predictor.predict(facts_of(request, max_output_tokens))

    def finished(self, request: TraceRequest, max_output_tokens: int) -> None:
        """The predictor learns."""
        self._predictor.observe(facts_of(request, max_output_tokens), request.output_tokens)


def facts_of(request: TraceRequest, max_output_tokens: int) -> RequestFacts:
    """What a server knows of a request when it comes."""
    return RequestFacts(
        num_prompt_tokens=request.input_tokens,
        max_output_tokens=max_output_tokens,
        user_input=request.prompt or "",
        tenant=request.tenant,
    )
