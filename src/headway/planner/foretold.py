"""Answer lengths predicted once for all configurations on a sample."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.length_estimate import LengthEstimate
from headway.sim.length_source import LengthSource
from headway.traces import TraceRequest


class Noted:
    """A source whose predictions are written down in `said`, by request."""

    def __init__(self, source: LengthSource) -> None:
        self.said: dict[str, LengthEstimate] = {}
        self._source = source

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """What the source says."""
        found = self._source.predict(request, max_output_tokens)
        if found is not None:
            self.said[request.id] = found
        return found

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """The source learns."""
        self._source.ended(request, finished=finished)


class Foretold:
    """Predictions that were made before."""

    def __init__(self, said: Mapping[str, LengthEstimate]) -> None:
        self._said = said

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """What was said of it."""
        return self._said.get(request.id)

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """Nothing more is learned."""
