"""The workload of `bench/gain/scaling.py`, and the rules that it compares Headway's with."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from bench.gain.scaling import (
    BUSIEST,
    DAY,
    FIXED,
    HEADWAY,
    UNDER_WAY,
    WAVES,
    WAVES_FILE,
    ByQueue,
    Day,
    Figures,
    ScalingRun,
    peak_fleet,
    report,
)
from headway.lab.kept_runs import Kept
from headway.routing.scaling import Bounds
from headway.sim.elastic import FleetSeen


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A day of one wave, up to twice its beginning; a conversation every second, 500 of them."""

    def written(name: str, columns: str, rows: list[tuple[object, ...]]) -> None:
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            file.write(columns + "\n")
            csv.writer(file).writerows(rows)

    rates = [1.0] * (144 * DAY) + [10.0] * 72 + [20.0] * 72
    written(WAVES_FILE, "workload,rate_rps", [(WAVES, rate) for rate in rates])
    written(
        "azure2023_conv", "arrival_s,input_tokens,output_tokens", [(float(at), 100, 10) for at in range(500)]
    )
    return tmp_path


def test_a_day_has_the_waves_and_the_peak_that_are_asked_for(data: Path) -> None:
    # 720 s at one a second, then as many at two.
    day = Day(data, hours=0.4, peak_rps=2.0)
    requests = day.requests()
    assert len(requests) == pytest.approx(720 + 1440, abs=2)
    assert len({request.id for request in requests}) == len(requests)
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    first = [request for request in requests if request.arrival_s < 720]
    assert len(first) == pytest.approx(720, abs=2)
    # An hour of the pressed day is a minute, at the peak.
    assert len(day.busiest()) == pytest.approx(2 * 60, abs=2)
    assert day.busiest()[0].arrival_s == 0.0


def seen(now_s: float, live: int, ready: int, starting: int = 0) -> FleetSeen:
    return FleetSeen(now_s, instances=ready + starting, ready=ready, live=live, waiting=0)


def test_a_queues_rule_is_kubernetes_own() -> None:
    rule = ByQueue(10.0, Bounds(1, 8), lambda now: now.live)
    assert rule(seen(0.0, live=45, ready=2)) == 5
    # Within a tenth of the target nothing changes; what was wanted stays for five minutes.
    assert rule(seen(30.0, live=52, ready=5)) == 5
    assert rule(seen(60.0, live=10, ready=5)) == 5
    assert rule(seen(331.0, live=10, ready=5)) == 1
    assert rule(seen(700.0, live=900, ready=5)) == 8


@pytest.mark.slow
def test_a_report_is_of_the_fleet_that_the_peak_needs_and_of_each_rule(data: Path, tmp_path: Path) -> None:
    # Prompts of 100 tokens and answers of 10: one instance serves some 40 of them a second.
    day = Day(data, hours=0.1, peak_rps=2.0)
    found = report(day, tmp_path / "out", 1, [FIXED, HEADWAY, UNDER_WAY])
    assert (found["peak_instances"], found["requests"]) == (1, len(day.requests()))
    names = [row["rule"] for row in found["rules"]]
    assert names == ["peak fleet", "headway", *(f"under way, {target} an instance" for target in (8, 12))]
    assert {row["hours"] for row in found["rules"]} == {0.1}
    assert report(day, tmp_path / "out", 1, [FIXED, HEADWAY]) == {**found, "rules": found["rules"][:2]}


@pytest.mark.parametrize(("best", "peak"), [(1.0, 6), (0.97, 5)])
def test_the_peak_fleet_is_near_the_best_there_can_be_and_no_hopeless_one(
    data: Path, tmp_path: Path, best: float, peak: int
) -> None:
    # One and two are equally hopeless; what five lose beside the best depends on how good that is.
    day = Day(data, hours=0.4, peak_rps=2.0)
    kept: Kept[ScalingRun, Figures] = Kept(tmp_path)
    for count in range(1, 65):
        share = {1: 0.0, 2: 0.0, 3: 0.6, 4: 0.9, 5: 0.962}.get(count, best)
        kept.done[ScalingRun(day, BUSIEST, count).digest()] = Figures(share, hours=0.0)
    assert peak_fleet(day, kept) == peak
