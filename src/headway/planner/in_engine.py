"""What engines say of the requests that a client sent: when each came to them, and what became of it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.core.record import Record
from headway.errors import UpstreamError
from headway.lab.both_sides import by_client_id, whole
from headway.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class InEngine:
    """Requests at the times at which they came to an engine, the first at 0 s, and the engine's record of each, by the
    id that its client gave it.
    """

    requests: Sequence[TraceRequest]
    records: Sequence[Record]


def in_engine(requests: Iterable[TraceRequest], engine: Iterable[Record]) -> InEngine:
    """The requests as the engines of one machine saw them, in order of arrival. O(n log n).

    What a client and a server on busy cores were late with is thus no one's error. A request that was handed off came
    to the first engine and ended in the last, which was told what was left of its targets: all are judged by the
    request's own. Raises UpstreamError if an engine tells of a request not at all.
    """
    seen = by_client_id(engine)
    pairs: list[tuple[Record, TraceRequest]] = []
    for request in requests:
        if request.id not in seen:
            raise UpstreamError(
                f"the engine's records do not have request {request.id}, so nothing can be compared"
            )
        pairs.append((replace(whole(seen[request.id]), id=request.id, slo=request.slo), request))
    pairs.sort(key=lambda pair: pair[0].arrival_s)
    return InEngine(
        [replace(request, arrival_s=record.arrival_s - pairs[0][0].arrival_s) for record, request in pairs],
        [record for record, _ in pairs],
    )
