"""Fleets that grow and shrink while they serve: every step takes a second, an engine has two seats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.errors import SimulationError
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.policy import Policy
from headway.policies.protocols import Order
from headway.sim.elastic import ElasticFleet, FleetSeen
from tests.sim.worlds import preset, request, run, system

EVERY_S, START_S = 10.0, 5.0
SYSTEM = replace(system(), router="least-work")


def following(counts: Sequence[int], seen: list[FleetSeen]) -> ElasticFleet:
    """One instance at first, then as many as are named, one look after another; the last for good."""

    def decide(now: FleetSeen) -> int:
        seen.append(now)
        return counts[min(len(seen), len(counts)) - 1]

    return ElasticFleet(1, decide, every_s=EVERY_S, start_s=START_S)


def test_an_instance_serves_when_it_has_started() -> None:
    # One seat after another: the first instance has two requests of 30 s; two more wait for the second one.
    seen: list[FleetSeen] = []
    fleet = following([2], seen)
    waiting = [request(f"b{number}", 15.5, 1, 10) for number in range(2)]
    running = [request(f"a{number}", 0.0, 1, 30) for number in range(2)]
    records, _ = run([*running, *waiting], system=SYSTEM, elastic=fleet)
    # Wanted at 10 s, it serves from 15 s on.
    assert {records[name].first_scheduled_s for name in ("b0", "b1")} == {15.5}
    assert seen[0] == FleetSeen(now_s=10.0, instances=1, ready=1, live=2, waiting=0)
    assert (seen[1].instances, seen[1].ready, seen[1].live) == (2, 2, 4)
    # From 0 s and from 10 s on.
    assert fleet.instance_s(30.0) == 30.0 + 20.0


def test_an_instance_that_drains_serves_what_it_has_and_gets_nothing_new() -> None:
    seen: list[FleetSeen] = []
    fleet = following([2, 1], seen)
    first = [request(f"a{number}", 16.0, 1, 12) for number in range(2)]
    later = [request(f"b{number}", 21.0, 1, 12) for number in range(2)]
    records, _ = run([*first, *later], system=SYSTEM, elastic=fleet)
    assert all(record.outcome is Outcome.FINISHED for record in records.values())
    # Each has one of the first two; what comes later shares the one that stays, which has a seat left.
    assert sorted(records[name].first_scheduled_s or 0.0 for name in ("b0", "b1")) == [21.0, 28.0]
    # 1: all the time; 2: from 10 s until its request has ended at 28 s.
    assert fleet.instance_s(40.0) == 40.0 + 18.0


def test_an_instance_that_drains_is_taken_back_before_another_is_launched() -> None:
    seen: list[FleetSeen] = []
    fleet = following([2, 1, 2], seen)
    first = [request(f"a{number}", 16.0, 1, 30) for number in range(2)]
    later = request("b", 31.0, 1, 2)
    records, result = run([*first, later], system=SYSTEM, elastic=fleet)
    assert set(result.totals) == {"0", "1"}
    assert records["b"].first_scheduled_s == 31.0
    assert fleet.instance_s(40.0) == 40.0 + 30.0


def test_one_that_is_not_needed_any_more_while_it_starts_never_serves() -> None:
    seen: list[FleetSeen] = []
    fleet = ElasticFleet(1, lambda now: 2 if now.now_s == EVERY_S else 1, every_s=EVERY_S, start_s=15.0)
    run([request("a", 0.0, 1, 40)], system=SYSTEM, elastic=fleet)
    assert seen == []
    assert fleet.instance_s(50.0) == 50.0 + 10.0


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 12), st.integers(1, 20)), min_size=1, max_size=30),
)
def test_every_request_is_served_once_whatever_comes_and_goes(
    counts: list[int], drawn: list[tuple[float, int, int]]
) -> None:
    at_s, requests = 0.0, []
    for number, (gap_s, prompt, output) in enumerate(drawn):
        at_s += gap_s
        requests.append(request(str(number), at_s, prompt, output))
    seen: list[FleetSeen] = []
    fleet = following(counts, seen)
    records, result = run(requests, system=SYSTEM, elastic=fleet)
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert len(records) == len(requests)
    assert result.end_s <= fleet.instance_s(result.end_s) <= 4 * result.end_s


def test_work_that_a_policy_leaves_lying_is_an_error_and_no_run_without_an_end() -> None:
    class Idle(DecodeFirst):
        def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
            return StepPlan()

    def idle(cost: CostModel) -> Policy:
        return replace(preset("vllm")(cost), batching=Idle())

    seen: list[FleetSeen] = []
    with pytest.raises(SimulationError, match="1 requests were never served"):
        run([request("a", 0.0, 1, 3)], idle, system=SYSTEM, elastic=following([1], seen))
    assert len(seen) <= 1
