"""How many instances a day of conversations needs: goodput against GPU hours, simulated.

Azure's conversations come at the recorded rate of a day of another service (ServeGen's m-small, its second day), the
day pressed together: waves rise and fall as many times faster, while starting an instance takes as long as it does.
Compared are the fixed fleet that its busiest hour needs, Headway's own rule (the code that the gateway runs, on what it
would have heard by then), and two that scale by a queue: KEDA's rule on waiting requests, and Ray Serve's on requests
under way, each with the best of several targets.

    python bench/gain/scaling.py --markdown
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option, say
from bench.figures import markdown_table
from bench.gain.regret_workloads import DATA, Machine, recorded
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.core.slo import Slo
from headway.lab.shadow_feed import Told
from headway.lab.shadow_replay import FleetReplay
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.results import summarize
from headway.routing.scaling import Bounds, Demand, Scaler, advise
from headway.sim.elastic import ElasticFleet, FleetSeen
from headway.sim.simulation import simulate
from headway.traces import TraceRequest

MACHINE = Machine("l40s-qwen-14b", "l40s", "Qwen3-14B", 16_384)
TARGETS = Slo(ttft_s=2.0, tbt_s=0.1)
POLICY = "vllm"
WAVES, WAVES_OF, DAY = "servegen_total_rate_10min", "m-small", 1
WAVE_S, DAY_S = 600.0, 86_400.0
START_S, EVERY_S, WINDOW_S = 90.0, 30.0, 120.0
FLOOR = 1
BUSIEST_SHARE = 1 / 24
LOSS = 0.01
"""Goodput that the peak fleet may lose in the busiest hour beside twice as many instances."""


@dataclass(frozen=True, slots=True)
class Day:
    """The pressed day: its length and the rate at its peak."""

    data: Path
    hours: float
    peak_rps: float

    @property
    def length_s(self) -> float:
        """Seconds it lasts."""
        return self.hours * 3600

    def requests(self) -> Sequence[TraceRequest]:
        """Every request, in order of arrival, with the targets of all."""
        return _requests(self)

    def busiest(self) -> Sequence[TraceRequest]:
        """The requests of the busiest hour of the day."""
        requests, span_s = self.requests(), BUSIEST_SHARE * self.length_s
        times = [each.arrival_s for each in requests]
        counts = [bisect_right(times, at_s + span_s) - place for place, at_s in enumerate(times)]
        first = max(range(len(counts)), key=counts.__getitem__)
        return [
            replace(each, arrival_s=each.arrival_s - times[first])
            for each in requests[first : first + counts[first]]
        ]


@lru_cache(maxsize=1)
def _requests(day: Day) -> Sequence[TraceRequest]:
    """The recorded conversations one after another, each placed where the wave has let as many come."""
    rates = _wave(day.data)
    each_s = day.length_s / len(rates)
    due = [0.0, *accumulate(rate / max(rates) * day.peak_rps * each_s for rate in rates)]
    trace = recorded("azure-conv", day.data).that_fit(MACHINE.longest_tokens)
    found: list[TraceRequest] = []
    mean_s = trace.period_s / len(trace.requests)
    for number in range(2 * ceil(due[-1])):
        lap, index = divmod(number, len(trace.requests))
        request = trace.requests[index]
        place = (request.arrival_s + lap * trace.period_s) / mean_s
        if place >= due[-1]:
            break
        step = bisect_right(due, place) - 1
        arrival_s = (step + (place - due[step]) / (due[step + 1] - due[step])) * each_s
        found.append(replace(request, id=str(number), arrival_s=arrival_s, slo=TARGETS))
    return found


def _wave(data: Path) -> list[float]:
    """Requests a second in each ten minutes of the day."""
    with gzip.open(data / f"{WAVES}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == WAVES_OF]
    steps = round(DAY_S / WAVE_S)
    return [float(row["rate_rps"]) for row in rows[DAY * steps : (DAY + 1) * steps]]


def _policy(cost: CostModel) -> Policy:
    return build_policy(find_preset(POLICY), cost)


# ---- rules ---------------------------------------------------------------------------------------------

Decide = Callable[[FleetSeen], int]


class Headway:
    """The gateway's rule, fed with what instances would have told: ended requests whole, live ones without an end."""

    def __init__(self, requests: Sequence[TraceRequest], bounds: Bounds) -> None:
        self._requests = requests
        self._arrivals_s = [each.arrival_s for each in requests]
        self._bounds = bounds
        self._scaler = Scaler(bounds)
        self._demand = Demand(WINDOW_S, START_S + EVERY_S)
        self._counted = 0
        self._ended: dict[str, Record] = {}

    def ended(self, record: Record) -> None:
        """A request has ended."""
        self._ended[record.id] = record

    def __call__(self, seen: FleetSeen) -> int:
        """As the gateway decides at every report."""
        now_s = seen.now_s
        come = bisect_right(self._arrivals_s, now_s)
        for at_s in self._arrivals_s[self._counted : come]:
            self._demand.came(at_s)
        self._counted = come
        first = bisect_right(self._arrivals_s, now_s - 2 * WINDOW_S)
        told = [self._told(each) for each in self._requests[first:come]]
        replay = FleetReplay.of(told, now_s - WINDOW_S, _policy, MACHINE.system())
        advice = advise(replay.served, self._demand, now_s, self._bounds)
        return self._scaler.decide(now_s, seen.instances, advice).instances

    def _told(self, request: TraceRequest) -> Told:
        record = self._ended.get(request.id)
        return Told(
            id=request.id,
            arrival_s=request.arrival_s,
            prompt_tokens=request.input_tokens,
            found_tokens=0,
            output_tokens=0 if record is None else record.output_tokens,
            max_output_tokens=request.max_output_tokens or MACHINE.longest_tokens,
            targets_s=(TARGETS.ttft_s, TARGETS.tbt_s, TARGETS.deadline_s),
            priority=0,
            tenant="",
            predicted=None,
            outcome=None if record is None else record.outcome,
            first_token_s=None,
            finished_s=None,
        )


class ByQueue:
    """Kubernetes' rule on a figure per instance: as many as bring it to its target, up at once, down when the most
    that was wanted in five minutes is less; within a tenth of the target nothing changes.
    """

    CALM_S = 300.0
    NEAR = 0.1

    def __init__(self, target: float, bounds: Bounds, figure: Callable[[FleetSeen], float]) -> None:
        self._target = target
        self._bounds = bounds
        self._figure = figure
        self._wanted: list[tuple[float, int]] = []

    def __call__(self, seen: FleetSeen) -> int:
        """As the autoscaler decides, as often as Headway is asked."""
        ratio = self._figure(seen) / (self._target * max(1, seen.ready))
        wanted = seen.instances if abs(ratio - 1) <= self.NEAR else ceil(seen.ready * ratio)
        kept = [pair for pair in self._wanted if pair[0] >= seen.now_s - self.CALM_S]
        self._wanted = [*kept, (seen.now_s, self._bounds.clamp(wanted))]
        return max(count for _, count in self._wanted)


FIXED, HEADWAY, WAITING, UNDER_WAY = "peak fleet", "headway", "waiting", "under way"
FIGURES: Mapping[str, Callable[[FleetSeen], float]] = {
    WAITING: lambda seen: seen.waiting,
    UNDER_WAY: lambda seen: seen.live,
}
QUEUE_TARGETS = {WAITING: (1.0, 4.0), UNDER_WAY: (8.0, 16.0, 24.0)}


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One day under one rule; `target` is that of a queue's rule."""

    day: Day
    rule: str
    peak: int
    target: float = 0.0


def measured(run: ScalingRun) -> dict[str, float]:
    """Goodput of the day and the instances' hours, of the pressed day."""
    requests, bounds = run.day.requests(), Bounds(FLOOR, run.peak)
    if run.rule == FIXED:
        return {"goodput": goodput(requests, run.peak), "hours": run.peak * run.day.hours}
    rule = Headway(requests, bounds)
    decide: Decide = rule
    if run.rule != HEADWAY:
        decide = ByQueue(run.target, bounds, FIGURES[run.rule])
    fleet = ElasticFleet(max(1, run.peak // 2), decide, every_s=EVERY_S, start_s=START_S)
    records: list[Record] = []

    def ended(record: Record) -> None:
        records.append(record)
        rule.ended(record)

    simulate(
        requests,
        _policy,
        replace(MACHINE.system(), router="cache-aware"),
        on_record=ended,
        max_output_tokens=MACHINE.longest_tokens,
        elastic=fleet,
    )
    found = summarize(records).goodput or 0.0
    return {"goodput": found, "hours": fleet.instance_s(run.day.length_s) / 3600}


def goodput(requests: Sequence[TraceRequest], instances: int) -> float:
    """Of a fixed fleet."""
    system = replace(MACHINE.system(), instances=instances, router="cache-aware")
    run = simulate(
        requests,
        _policy,
        system,
        max_output_tokens=MACHINE.longest_tokens,
    )
    return summarize(run.records).goodput or 0.0


def peak_fleet(day: Day) -> int:
    """The fewest instances with which the busiest hour loses no more than LOSS beside twice as many."""
    requests = day.busiest()
    count = 1
    while goodput(requests, count) < goodput(requests, 2 * count) - LOSS:
        count += 1
    return count


def report(day: Day, jobs: int) -> dict[str, Any]:
    """All figures: of a queue's rules the target with the best goodput, of equals the fewest hours."""
    peak = peak_fleet(day)
    say(f"{len(day.requests()):,} requests; the busiest hour needs {peak} instances")
    todo = [ScalingRun(day, rule, peak) for rule in (HEADWAY, FIXED)]
    todo += [
        ScalingRun(day, rule, peak, target) for rule, targets in QUEUE_TARGETS.items() for target in targets
    ]
    found = all_done(measured, todo, jobs, _told)
    fixed = found[ScalingRun(day, FIXED, peak)]
    return {
        "measured_on": "simulated",
        "hardware": MACHINE.hardware,
        "model": MACHINE.model,
        "policy": POLICY,
        "hours": day.hours,
        "requests": len(day.requests()),
        "targets_s": asdict(TARGETS),
        "start_s": START_S,
        "peak_instances": peak,
        "rules": [
            {
                "rule": run.rule,
                "target": run.target or None,
                **figures,
                "share_of_hours": figures["hours"] / fixed["hours"],
                "goodput_lost": fixed["goodput"] - figures["goodput"],
            }
            for run, figures in found.items()
        ],
    }


def _told(run: ScalingRun, figures: Mapping[str, float]) -> str:
    return f"{run.rule} {run.target:g}: goodput {figures['goodput']:.4f}, {figures['hours']:.3g} hours"


def markdown(found: Mapping[str, Any]) -> str:
    """A table."""
    rows = []
    for row in found["rules"]:
        rule = row["rule"] if row["target"] is None else f"{row['rule']}, {row['target']:g} an instance"
        rows.append((rule, f"{row['goodput']:.4f}", f"{row['hours']:.3g}", f"{row['share_of_hours']:.0%}"))
    return markdown_table(("rule", "goodput", "instance hours", "of the peak fleet's"), rows)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = command_line(__doc__)
    markdown_option(parser)
    parser.add_argument("--hours", type=float, default=1.5, help="the day's length (default 1.5)")
    parser.add_argument(
        "--peak-rps", type=float, default=14.0, help="requests a second at its peak (default 14)"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="recorded traces")
    jobs_option(parser)
    arguments = parser.parse_args()
    found = report(Day(arguments.data, arguments.hours, arguments.peak_rps), arguments.jobs)
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
