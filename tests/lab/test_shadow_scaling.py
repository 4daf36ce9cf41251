"""Reports of a fleet of simulated engines, and the number of engines it needs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import pytest

from headway.core.record import Record
from headway.errors import SimulationError
from headway.gateway.book.shadow_board import ShadowState
from headway.lab.shadow import shadow_report
from headway.lab.shadow_feed import Feed, Told
from headway.lab.shadow_replay import MOST_REPLAYED, FleetReplay
from headway.lab.shadow_scaling import FleetAdviser
from headway.results.metrics import summarize
from headway.routing.scaling import Advice, Bounds
from headway.sim.simulation import simulate
from headway.traces import TraceRequest
from tests.lab.test_shadow import SYSTEM, answer, requests, served, told
from tests.sim.worlds import LIMIT, preset

BUSY = "poisson:rate=28/input=zipf:theta=1.1,max=200/output=zipf:theta=1.1,max=40/count=250"
QUIET = BUSY.replace("rate=28", "rate=3").replace("count=250", "count=60")
WINDOW_S = 60.0


def fed(records: list[Record], rows: list[list[float]], heard_s: float, **other: Any) -> Feed:
    feed = Feed(1e6)
    feed.take(answer(records, rows, **other), heard_s)
    return feed


def advice(feeds: list[Feed], now_s: float) -> Advice:
    return adviser().advise(feeds, [], shadow_report(feeds, [], WINDOW_S), now_s)


def adviser() -> FleetAdviser:
    return FleetAdviser(Bounds(1, 4), WINDOW_S)


@pytest.mark.parametrize(("workload", "fewest", "most"), [(BUSY, 2, 4), (QUIET, 1, 1)])
def test_as_many_as_serve_in_time_are_needed(workload: str, fewest: int, most: int) -> None:
    feed = fed(*served("vllm", workload), heard_s=1000.0)
    found = advice([feed], 1000.0)
    assert fewest <= found.needed <= most
    assert found.doubt is None
    assert found.low <= found.needed <= found.high


def test_replays_are_near_what_a_fleet_of_that_size_really_comes_to() -> None:
    records, rows = served("vllm")
    feed = fed(records, rows, heard_s=1000.0)
    found = advice([feed], 1000.0)
    for count, replayed in found.replays.items():
        faster = [replace(each, arrival_s=each.arrival_s / found.growth) for each in requests()]
        real = simulate(
            faster,
            preset("vllm"),
            replace(SYSTEM, instances=count, router="cache-aware"),
            max_output_tokens=LIMIT,
        )
        expected = summarize(real.records)
        assert replayed.mean_jct_s == pytest.approx(expected.mean_jct_s, rel=0.1)
        assert replayed.goodput == pytest.approx(expected.goodput, abs=0.05)


def test_what_came_to_an_instance_that_is_gone_counts_too() -> None:
    # Half of the requests were served by an instance that was stopped: without them one would do.
    records, rows = served("vllm")
    halves = [fed(records[part::2], rows, heard_s=1000.0) for part in (0, 1)]
    report = shadow_report(halves[:1], [], WINDOW_S)
    report.cannot_judge = None
    whole = adviser().advise(halves[:1], halves[1:], report, 1000.0)
    half = adviser().advise(halves[:1], [], report, 1000.0)
    assert whole.needed > half.needed


def test_in_doubt_one_more_where_targets_are_missed_and_none_fewer() -> None:
    feed = fed(*served("vllm"), heard_s=1000.0)
    report = shadow_report([feed], [], WINDOW_S)
    report.cannot_judge = "far off"
    found = adviser().advise([feed, feed], [], report, 1000.0)
    assert (found.needed, found.doubt) == (3, "far off")


def test_a_replay_that_fails_is_a_doubt_and_not_the_end_of_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise SimulationError("1 requests were never served")

    feed = fed(*served("vllm"), heard_s=1000.0)
    report = shadow_report([feed], [], WINDOW_S)
    report.cannot_judge = None
    monkeypatch.setattr("headway.lab.shadow_replay.simulate", fails)
    found = adviser().advise([feed], [], report, 1000.0)
    assert found.doubt == "the fleet cannot be replayed: SimulationError: 1 requests were never served"
    assert found.needed == 2


def test_instances_that_differ_are_not_taken_for_alike() -> None:
    run = served("vllm")
    feeds = [fed(*run, heard_s=1000.0), fed(*run, heard_s=1000.0)]
    other = answer(*run)
    other["engine"]["policy"] = "sjf"
    feeds[1].take(other, 1000.0)
    found = advice(feeds, 1000.0)
    assert found.doubt == "instances have different policies or sizes"


@pytest.mark.parametrize(("share", "alike"), [(0.99, True), (0.9, False)])
def test_instances_whose_memory_was_measured_a_little_apart_are_alike(share: float, alike: bool) -> None:
    run = served("vllm", QUIET)
    feeds = [fed(*run, heard_s=1000.0), fed(*run, heard_s=1000.0)]
    other = answer(*run)
    other["engine"]["limits"]["num_blocks"] = int(share * other["engine"]["limits"]["num_blocks"])
    feeds[1].take(other, 1000.0)
    report = shadow_report(feeds, [], WINDOW_S)
    report.cannot_judge = None
    assert (adviser().advise(feeds, [], report, 1000.0).doubt is None) is alike


def test_an_idle_fleet_needs_the_fewest() -> None:
    records, rows = served("vllm")
    idle = answer(records, rows)
    idle["now_s"] += 1e4
    feed = Feed(100.0)
    feed.take(idle, 1000.0)
    assert not feed.ended
    report = ShadowState(
        at=0.0, window_s=60.0, requests=0, assumed=0, missed=0, step_error=0.0, figures={}, failed={}
    )
    found = FleetAdviser(Bounds(2, 4), WINDOW_S).advise([feed], [], report, 1000.0)
    assert found.needed == 2


def test_of_a_busy_fleet_a_share_is_replayed() -> None:
    records, _ = served("vllm")
    one = [Told(**{**told(each), "outcome": each.outcome}) for each in records]
    many = [
        Told(**{**told(each), "id": f"{each.id}-{copy}", "outcome": each.outcome})
        for each in records
        for copy in range(8)
    ]
    small = FleetReplay.of(one, 0.0, preset("vllm"), SYSTEM).served(2)
    large = FleetReplay.of(many, 0.0, preset("vllm"), SYSTEM).served(16)
    assert len(many) > 2 * MOST_REPLAYED
    assert large.mean_jct_s == pytest.approx(small.mean_jct_s, rel=0.35)


@pytest.mark.parametrize(
    ("count", "requests"), [(1, 2000), (2, 1000), (4, 500), (5, 800), (16, 750), (1000, 800)]
)
def test_no_replay_has_more_than_it_may_but_one_instance_with_its_whole_share(
    monkeypatch: pytest.MonkeyPatch, count: int, requests: int
) -> None:
    replayed: list[list[str]] = []

    def counted(asked: list[TraceRequest], *_: object, **__: object) -> None:
        replayed.append([each.id for each in asked])

    monkeypatch.setattr("headway.lab.shadow_replay.simulate", counted)
    came = [TraceRequest(f"{number}", float(number), 10, 10) for number in range(2000)]
    FleetReplay(came, {}, 0.0, preset("vllm"), SYSTEM).served(count)
    (ids,) = replayed
    assert len(ids) == requests
    assert len(ids) <= MOST_REPLAYED or len(ids) == ceil(len(came) / count)
    # Every so many-th of those that came, as evenly as whole numbers allow.
    gaps = {int(later) - int(sooner) for sooner, later in pairwise(ids)}
    assert max(gaps) - min(gaps) <= 1
