"""Requests at the times at which they came to an engine, and its records of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.planner.stage import in_engine
from headway.results import summarize
from headway.traces import TraceRequest

REQUESTS = [
    TraceRequest(id=name, arrival_s=n, input_tokens=8, output_tokens=2) for n, name in enumerate("ab")
]


def record(name: str, arrival_s: float, *, ended_s: float, handed_off: bool = False) -> Record:
    return Record(
        id=f"cmpl-{name}-0-0123abcd",
        arrival_s=arrival_s,
        prompt_tokens=8,
        outcome=Outcome.HANDED_OFF if handed_off else Outcome.FINISHED,
        output_tokens=0 if handed_off else 2,
        first_token_s=None if handed_off else ended_s - 1.0,
        finished_s=ended_s,
    )


def test_requests_come_when_the_engine_saw_them() -> None:
    # Sent at 0 and 1 s; a busy client sent the first last. The engine's clock starts anywhere, and it knows others.
    came = in_engine(
        REQUESTS,
        [
            record("warm-up-a", 90.0, ended_s=91.0),
            record("b", 101.5, ended_s=104.0),
            record("a", 102.25, ended_s=109.0),
        ],
    )
    assert [(request.id, request.arrival_s) for request in came.requests] == [("b", 0.0), ("a", 0.75)]
    assert [(record.id, record.finished_s) for record in came.records] == [("b", 104.0), ("a", 109.0)]


def test_one_that_was_handed_off_came_to_the_first_engine_and_ended_in_the_last() -> None:
    parts = [record("a", 13.0, ended_s=19.0), record("a", 11.0, ended_s=12.5, handed_off=True)]
    came = in_engine(REQUESTS[:1], parts)
    whole = came.records[0]
    assert (whole.arrival_s, whole.first_token_s, whole.finished_s) == (11.0, 18.0, 19.0)
    assert whole.outcome is Outcome.FINISHED


def test_one_that_was_handed_off_is_judged_by_its_own_targets_not_by_what_was_left_of_them() -> None:
    # First token 7 s after it came, of 8; the second engine was told of the 6.5 s that were left.
    wanted = Slo(ttft_s=8.0)
    parts = [
        replace(record("a", 11.0, ended_s=12.5, handed_off=True), slo=wanted),
        replace(record("a", 12.5, ended_s=19.0), slo=wanted.after(1.5)),
    ]
    came = in_engine([replace(REQUESTS[0], slo=wanted)], parts)
    assert came.records[0].slo == wanted
    assert summarize(came.records).goodput == 1.0


def test_a_request_that_no_engine_knows_cannot_be_compared() -> None:
    with pytest.raises(UpstreamError, match="the engine's records do not have request b, so nothing"):
        in_engine(REQUESTS, [record("a", 0.0, ended_s=2.0)])
