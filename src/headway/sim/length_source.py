"""Who says, in a simulation, how long an answer will probably be."""

from __future__ import annotations

from typing import Protocol

from headway.core.length_estimate import LengthEstimate
from headway.predict.length import LengthPredictor, RequestFacts
from headway.predict.shared_prefix import SharedPrefix
from headway.traces import TraceRequest


class LengthSource(Protocol):
    """Asked once for each request, as it arrives, and told when it ends."""

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """How long the answer will probably be; None if nobody knows."""
        ...

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """A request that was asked about is over; if `finished`, its answer had the request's own output tokens."""
        ...


class AskedPredictor:
    """A real predictor, shown only what a server would know; what finished becomes known as it finishes.

    Instruction and input are told apart as a server does. What was known of a request is kept until it ends.
    """

    def __init__(self, predictor: LengthPredictor) -> None:
        self._predictor = predictor
        self._prefixes = SharedPrefix()
        self._asked: dict[str, RequestFacts] = {}

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """What the predictor says."""
        facts = self._asked[request.id] = self._prefixes.facts(
            request.prompt or "",
            num_prompt_tokens=request.input_tokens,
            max_output_tokens=max_output_tokens,
            tenant=request.tenant,
        )
        return self._predictor.predict(facts)

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """The predictor learns from answers that finished."""
        facts = self._asked.pop(request.id)
        if finished:
            self._predictor.observe(facts, request.output_tokens)
