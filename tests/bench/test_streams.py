"""Clients, their targets and their streams: `bench/streams.py`, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.streams import INTERACTIVE, KINDS, NONE, ONE, PATIENT, TWO, Targets, asked_by, targets_from
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, SimulationError
from headway.results import summarize
from headway.traces import TraceRequest

TARGETS = Targets(interactive=Slo(ttft_s=0.2), patient=Slo(ttft_s=4.0))
REQUESTS = [TraceRequest(str(number), float(number), 8, 8) for number in range(1_000)]


def test_targets_follow_from_the_light_load_alone() -> None:
    record = Record(
        id="a",
        arrival_s=1.0,
        prompt_tokens=8,
        outcome=Outcome.FINISHED,
        output_tokens=11,
        first_token_s=1.02,
        finished_s=1.06,
    )
    # First token after 20 ms, ten more in 40 ms: 10 x 20 and 5 x 4; 20 x 200 and 25 x 4.
    found = targets_from(summarize([record]))
    assert (found.interactive.ttft_s, found.interactive.tbt_s) == pytest.approx((0.2, 0.02))
    assert (found.patient.ttft_s, found.patient.tbt_s) == pytest.approx((4.0, 0.1))
    assert list(found.classes.values()) == [INTERACTIVE, PATIENT]
    with pytest.raises(SimulationError, match="nothing to set targets by"):
        targets_from(summarize([replace(record, output_tokens=1)]))


def test_kinds_differ_in_targets_alone() -> None:
    none, one, two = (asked_by(REQUESTS, kind, TARGETS, 1) for kind in KINDS)
    assert none == REQUESTS
    assert {request.slo for request in one} == {TARGETS.interactive}
    assert [(request.id, request.arrival_s) for request in two] == [
        (request.id, request.arrival_s) for request in REQUESTS
    ]
    # Who waits with patience has the worse priority, which is the larger number.
    assert {(request.slo, request.priority) for request in two} == {
        (TARGETS.interactive, 0),
        (TARGETS.patient, 1),
    }


def test_seven_in_ten_are_interactive_the_same_ones_for_a_seed() -> None:
    two = asked_by(REQUESTS, TWO, TARGETS, 1)
    assert two == asked_by(REQUESTS, TWO, TARGETS, 1) != asked_by(REQUESTS, TWO, TARGETS, 2)
    # Of 1,000 requests 700, give or take three deviations of 14.5.
    assert 656 <= sum(request.slo == TARGETS.interactive for request in two) <= 744


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"accepted: {NONE}, {ONE}, {TWO}"):
        asked_by(REQUESTS, "three", TARGETS, 1)
