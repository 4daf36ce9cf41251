"""Sessions in a closed loop: a turn arrives after the previous answer has ended and its tool has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headway.errors import TraceError
from headway.traces.request import TraceRequest

ASSUMED_TOKEN_S = 0.02
"""Assumed seconds of an answer's token if a trace has no think times."""


def closed_loop(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The requests with later turns waiting for previous answers; given think times stay.

    Other think times are the recorded gap between a turn's arrival and the previous one, less ASSUMED_TOKEN_S for each
    token of the answer in between, and not below 0. Raises TraceError if no session has a second turn.
    """
    last: dict[tuple[str, str], TraceRequest] = {}
    found = []
    for request in requests:
        before = _follow(last, request)
        if before is not None and request.think_s is None:
            gap_s = request.arrival_s - before.arrival_s
            request = replace(request, think_s=max(0.0, gap_s - before.output_tokens * ASSUMED_TOKEN_S))
        found.append(request)
    if len(last) == sum(request.session is not None for request in requests):
        raise TraceError(
            "no session of the trace has two turns; accepted in a closed loop: sessions of several turns"
        )
    return found


def parted(requests: Iterable[TraceRequest]) -> tuple[Iterator[TraceRequest], dict[str, TraceRequest]]:
    """Split into requests with their own arrival times, in order, and a map from request id to the turn that follows
    it.

    A list is known completely; an iterator must have no waiting requests, else TraceError is raised. So it is for turns
    that cannot be told apart by their ids.
    """
    if not isinstance(requests, Sequence):
        return map(_unbound, requests), {}
    if all(request.think_s is None for request in requests):
        return iter(requests), {}
    last: dict[tuple[str, str], TraceRequest] = {}
    free, waiting = [], {}
    for request in requests:
        before = _follow(last, request)
        if before is None or request.think_s is None:
            free.append(request)
        elif before.id in waiting:
            raise TraceError(
                f"id {before.id!r} occurs twice; accepted: distinct ids where turns wait for answers"
            )
        else:
            waiting[before.id] = request
    return iter(free), waiting


def _follow(last: dict[tuple[str, str], TraceRequest], request: TraceRequest) -> TraceRequest | None:
    """The previous turn of this request's session and tenant, if there is one; records this request as the last."""
    if request.session is None:
        return None
    key = (request.tenant, request.session)
    before = last.get(key)
    last[key] = request
    return before


def _unbound(request: TraceRequest) -> TraceRequest:
    if request.think_s is not None:
        raise TraceError(f"request {request.id!r} waits for an answer; accepted: such requests in a list")
    return request


def after(request: TraceRequest, ended_s: float) -> TraceRequest:
    """A waiting request with its arrival time, given when the previous answer ended."""
    return replace(request, arrival_s=ended_s + (request.think_s or 0.0))
