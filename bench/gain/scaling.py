"""How many instances a day of conversations needs: goodput against GPU hours, simulated.

Azure's conversations come at the recorded rate of a day of another service (ServeGen's m-small, its second day), the
day pressed together: waves rise and fall as many times faster, while starting an instance takes as long as it does.
Compared are the fixed fleet that its busiest hour needs, Headway's own rule (the code that the gateway runs, on what it
would have heard by then), and two that scale by a queue: KEDA's rule on waiting requests, and Ray Serve's on requests
under way, each with several targets. `--trace` and `--waves` name others, to try rules on.

    python bench/gain/scaling.py --out DIR --markdown
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, jobs_option, markdown_option, out_option, say
from bench.figures import markdown_table
from bench.gain.regret_workloads import DATA, RECORDINGS, Machine, recorded
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.core.slo import Slo
from headway.lab.kept_runs import Kept, release, run_kept
from headway.lab.policy_choice import code_digest
from headway.lab.shadow_feed import Told
from headway.lab.shadow_replay import FleetReplay
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.results import summarize
from headway.routing.scaling import HOPELESS, Adviser, Bounds, Scaler, Served, fewest
from headway.sim.elastic import ElasticFleet, FleetSeen
from headway.sim.simulation import simulate
from headway.traces import TraceRequest

MACHINE = Machine("l40s-qwen-14b", "l40s", "Qwen3-14B", 16_384)
TARGETS = Slo(ttft_s=2.0, tbt_s=0.1)
POLICY = "vllm"
TRACE, WAVES, DAY = "azure-conv", "m-small", 1
WAVES_FILE, WAVE_S, DAY_S = "servegen_total_rate_10min", 600.0, 86_400.0
START_S, EVERY_S, WINDOW_S = 90.0, 30.0, 120.0
FLOOR = 1
MOST_INSTANCES = 64
TELL_S = 600.0
BUSIEST_SHARE = 1 / 24
LOSS = 0.01
"""Goodput that the peak fleet may lose in the busiest hour against twice as many instances."""


@dataclass(frozen=True, slots=True)
class Day:
    """The compressed day: its length, its peak rate, its requests, and how the rate changes."""

    data: Path
    hours: float
    peak_rps: float
    trace: str = TRACE
    waves: str = WAVES
    number: int = DAY

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
    """The recorded requests one after another, each placed where the wave reaches its number."""
    rates = _wave(day)
    each_s = day.length_s / len(rates)
    due = [0.0, *accumulate(rate / max(rates) * day.peak_rps * each_s for rate in rates)]
    trace = recorded(day.trace, day.data).that_fit(MACHINE.longest_tokens)
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


def _wave(day: Day) -> list[float]:
    """Requests a second in each ten minutes of the day."""
    with gzip.open(day.data / f"{WAVES_FILE}.csv.gz", "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["workload"] == day.waves]
    steps = round(DAY_S / WAVE_S)
    return [float(row["rate_rps"]) for row in rows[day.number * steps : (day.number + 1) * steps]]


def _policy(cost: CostModel) -> Policy:
    return build_policy(find_preset(POLICY), cost)


# ---- rules ---------------------------------------------------------------------------------------------

Decide = Callable[[FleetSeen], int]
Once = Callable[[float, FleetReplay, int, float], Served]
"""Simulates this many instances from a time on with demand scaled by a factor; returns what they would have served."""


class Headway:
    """The gateway's rule, fed with what instances would report: ended requests whole, live ones without an end."""

    def __init__(self, requests: Sequence[TraceRequest], bounds: Bounds, once: Once) -> None:
        self._requests, self._once = requests, once
        self._arrivals_s = [each.arrival_s for each in requests]
        self._scaler = Scaler(bounds)
        self._adviser = Adviser(bounds, WINDOW_S, START_S + EVERY_S)
        self._counted = 0
        self._ended: dict[str, Record] = {}

    def ended(self, record: Record) -> None:
        """A request has ended."""
        self._ended[record.id] = record

    def __call__(self, seen: FleetSeen) -> int:
        """The number of instances that the gateway would choose at this report."""
        now_s = seen.now_s
        come = bisect_right(self._arrivals_s, now_s)
        for at_s in self._arrivals_s[self._counted : come]:
            self._adviser.demand.came(at_s)
        self._counted = come
        first = bisect_right(self._arrivals_s, now_s - 2 * WINDOW_S)
        told = [self._told(each) for each in self._requests[first:come]]
        replay = FleetReplay.of(told, now_s - WINDOW_S, _policy, MACHINE.system())
        advice = self._adviser.advise(partial(self._once, now_s, replay), now_s, seen.instances)
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
    """Kubernetes' rule: the number of instances that brings a figure per instance to its target. It scales up at
    once, and down to the most that was wanted in five minutes; within a tenth of the target nothing changes.
    """

    CALM_S = 300.0
    NEAR = 0.1

    def __init__(self, target: float, bounds: Bounds, figure: Callable[[FleetSeen], float]) -> None:
        self._target = target
        self._bounds = bounds
        self._figure = figure
        self._wanted: list[tuple[float, int]] = []

    def __call__(self, seen: FleetSeen) -> int:
        """The number of instances that the autoscaler would choose, asked as often as Headway."""
        ratio = self._figure(seen) / (self._target * max(1, seen.ready))
        wanted = seen.instances if abs(ratio - 1) <= self.NEAR else ceil(seen.ready * ratio)
        kept = [pair for pair in self._wanted if pair[0] >= seen.now_s - self.CALM_S]
        self._wanted = [*kept, (seen.now_s, self._bounds.clamp(wanted))]
        return max(count for _, count in self._wanted)


FIXED, HEADWAY, WAITING, UNDER_WAY = "peak fleet", "headway", "waiting", "under way"
BUSIEST = "busiest hour"
FIGURES: Mapping[str, Callable[[FleetSeen], float]] = {
    WAITING: lambda seen: seen.waiting,
    UNDER_WAY: lambda seen: seen.live,
}
QUEUE_TARGETS = {WAITING: (1.0, 4.0), UNDER_WAY: (8.0, 12.0)}
RULES = (HEADWAY, *FIGURES)


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One day, or its busiest hour, under one rule with at most this many instances; `target` is the queue rule's
    target.
    """

    day: Day
    rule: str
    most: int
    target: float = 0.0

    def digest(self) -> str:
        """As `Digested.digest`; the path of the data makes no difference."""
        said, code = replace(self, day=replace(self.day, data=Path())), ""
        if self.rule == HEADWAY:
            code = code_digest((Bounds(1, 1), FleetReplay.of((), 0.0, _policy, MACHINE.system())))
        return sha256(f"{release()} {MACHINE.fingerprint()} {TARGETS} {said} {code}".encode()).hexdigest()

    @property
    def name(self) -> str:
        """The rule, with its queue target."""
        return f"{self.rule}, {self.target:g} an instance" if self.target else self.rule


@dataclass(frozen=True, slots=True)
class Figures:
    """Goodput of all requests, and the instances' hours."""

    goodput: float
    hours: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """The replay of a run, which is deterministic, so that an interrupted run continues where it was."""

    run: str
    now_s: float
    count: int
    growth: float

    def digest(self) -> str:
        """As `Digested.digest`."""
        return f"{self.run} {self.now_s} {self.count} {self.growth}"


def measured(run: ScalingRun, out: Path) -> Figures:
    """The figures of a run, with progress messages."""
    kept: Kept[Replayed, Served] = Kept(out, "replays.jsonl")
    kept.load(Served)
    with kept.adding() as add:

        def once(now_s: float, replay: FleetReplay, count: int, growth: float) -> Served:
            name = Replayed(run.digest(), now_s, count, growth)
            if kept.result(name) is None:
                add(name, replay.served(count, growth))
            return kept.done[name.digest()]

        return _simulated(run, once)


def _simulated(run: ScalingRun, once: Once) -> Figures:
    requests = run.day.busiest() if run.rule == BUSIEST else run.day.requests()
    bounds, records = Bounds(FLOOR, run.most), list[Record]()
    headway = Headway(requests, bounds, once)
    first, decide = max(FLOOR, run.most // 2), _rule(run, bounds, headway)
    if run.rule in (FIXED, BUSIEST):
        first = run.most

    def looked(seen: FleetSeen) -> int:
        if seen.now_s % TELL_S < EVERY_S:
            say(f"{run.name}: {seen.now_s / 3600:.2f} h, {seen.instances} of {run.most} instances")
        return decide(seen)

    def ended(record: Record) -> None:
        records.append(record)
        if decide is headway:
            headway.ended(record)

    fleet = ElasticFleet(first, looked, every_s=EVERY_S, start_s=START_S)
    simulate(
        requests,
        _policy,
        replace(MACHINE.system(), router="cache-aware"),
        on_record=ended,
        max_output_tokens=MACHINE.longest_tokens,
        elastic=fleet,
    )
    found = Figures(summarize(records).goodput or 0.0, fleet.instance_s(run.day.length_s) / 3600)
    say(f"{run.name}, up to {run.most}: goodput {found.goodput:.4f}, {found.hours:.3g} instance hours")
    return found


def _rule(run: ScalingRun, bounds: Bounds, headway: Headway) -> Decide:
    if run.rule == HEADWAY:
        return headway
    if run.rule in FIGURES:
        return ByQueue(run.target, bounds, FIGURES[run.rule])
    return lambda seen: run.most


def peak_fleet(day: Day, kept: Kept[ScalingRun, Figures]) -> int:
    """The fewest instances with which the busiest hour loses no more than LOSS against twice as many."""

    def goodput(count: int) -> float:
        run = ScalingRun(day, BUSIEST, count)
        run_kept([run], kept, partial(measured, out=kept.root), jobs=1)
        return kept.done[run.digest()].goodput

    def is_enough(count: int) -> bool:
        found = goodput(count)
        return found >= 1 - LOSS or (found >= HOPELESS and found >= goodput(2 * count) - LOSS)

    return fewest(is_enough, Bounds(FLOOR, MOST_INSTANCES), near=FLOOR)


def report(day: Day, out: Path, jobs: int, rules: Sequence[str]) -> dict[str, Any]:
    """All figures; finished runs are kept in the folder `out`."""
    kept: Kept[ScalingRun, Figures] = Kept(out)
    kept.load(Figures)
    peak = peak_fleet(day, kept)
    say(f"{len(day.requests()):,} requests; the busiest hour needs {peak} instances")
    todo = [
        ScalingRun(day, rule, peak, target) for rule in rules for target in QUEUE_TARGETS.get(rule, (0.0,))
    ]
    run_kept(todo, kept, partial(measured, out=out), jobs=jobs)
    found = {run: figures for run in todo if (figures := kept.result(run)) is not None}
    fixed = found[ScalingRun(day, FIXED, peak)]
    return {
        "measured_on": "simulated",
        "hardware": MACHINE.hardware,
        "model": MACHINE.model,
        "policy": POLICY,
        **{key: value for key, value in asdict(day).items() if key != "data"},
        "requests": len(day.requests()),
        "targets_s": asdict(TARGETS),
        "start_s": START_S,
        "peak_instances": peak,
        "rules": [
            {
                "rule": run.name,
                **asdict(figures),
                "share_of_hours": figures.hours / fixed.hours,
                "goodput_lost": fixed.goodput - figures.goodput,
            }
            for run, figures in found.items()
        ],
    }


def markdown(found: Mapping[str, Any]) -> str:
    """A table."""
    rows = [
        (row["rule"], f"{row['goodput']:.4f}", f"{row['hours']:.3g}", f"{row['share_of_hours']:.0%}")
        for row in found["rules"]
    ]
    return markdown_table(("rule", "goodput", "instance hours", "of the peak fleet's"), rows)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = command_line(__doc__)
    out_option(parser, "what is simulated")
    markdown_option(parser)
    add = parser.add_argument
    add("--hours", type=float, default=3.0, help="the day's length (default 3)")
    add("--peak-rps", type=float, default=12.0, help="requests a second at its peak (default 12)")
    add("--trace", choices=list(RECORDINGS), default=TRACE, help="what comes (default: %(default)s)")
    add("--waves", default=WAVES, help="workload of ServeGen whose rate it has (default: %(default)s)")
    add("--day", type=int, default=DAY, help="which of its ten days, from 0 (default: %(default)s)")
    add("--rule", action="append", choices=RULES, help="beside the peak fleet; repeatable (default: all)")
    add("--data", type=Path, default=DATA, help="recorded traces")
    jobs_option(parser)
    given = parser.parse_args()
    day = Day(given.data, given.hours, given.peak_rps, given.trace, given.waves, given.day)
    found = report(day, given.out, given.jobs, [FIXED, *(given.rule or RULES)])
    print(markdown(found) if given.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
