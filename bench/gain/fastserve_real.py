"""FastServe beside stock vLLM on the real CPU engine: `python bench/gain/fastserve_real.py --out DIR --json`.

A bursty, skewed stream (Gamma arrivals of CV 4, prompts and answers Zipf 1.1 up to 512 tokens) at 0.5, 0.8, 1.0 and
1.2 of capacity, with a made model of 46 million parameters. Twice: with KV memory for all who run at once (`ample`),
and with KV for some thirty requests (`short`), where Headway has host memory to swap to. In each, stock is swept over
`max_num_seqs` first, at load 1, on a stream that nothing is compared on; then both run at stock's best value for mean
JCT and at vLLM's default, Headway with that batch width. Capacity is what stock gets through at its default when all
requests are there at once.

Stock is vLLM's own scheduler on an engine with nothing of Headway in it: chunked prefill, prefix caching and
asynchronous scheduling as vLLM decides (the last is off on CPUs). All runs of a load and seed serve side by side, each
on an engine and by a clock of its own, in turns of a tenth of a second, so that a machine's drift hits all alike.

Per cell: mean and p99 JCT of both (over all seeds' requests), `mean_gain` (stock / fastserve) with each seed's own,
`p99_ratio` (fastserve / stock), `who_pays`: the same gain by quarter of the answers' lengths, short to long, and the
share of requests that took longer than under stock; `simulated`: the same two figures from the simulator with costs
profiled here, and `oracle_mean_gain`, the gain there if all lengths were known. Aims: twice the mean near and above
capacity, p99 at most 1.25 times stock's, a loss of 2 % at low load.

40 minutes a setting with three streams of 30 s on 2 cores; what is in DIR already is not run again. Nothing else should
run meanwhile. `--markdown` prints the tables of docs/fastserve.md in place of the JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec
from headway_reproduce.mid_model import ensure_mid_model

from bench.command import command_line, markdown_option, out_option, say, stream_options
from bench.figures import latencies, p99
from bench.serving_engine import EngineTime, Served, ServingEngine, profiled
from bench.side_by_side import Lane, compared, measure_side_by_side
from headway.core.record import Record
from headway.engine.kv.host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, HeadwayError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.predict.steps.calibration import load_cost_file
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import Gamma, TraceRequest, Zipf, generate
from headway.whole_file import write_whole

# ---- engines and runs --------------------------------------------------------------------------------

DEFAULT_SEATS = 256
"""vLLM's default on a CPU, and the worker slots that Headway's paused requests have."""
BURSTINESS_CV = 4.0
LENGTHS = Zipf(1.1, 512)
MAX_OUTPUT_TOKENS = 512
BLOCK_TOKENS, TOKENS_A_STEP = 32, 2048
CAPACITY_REQUESTS, CAPACITY_SEED = 500, 99
"""So many that what the last long answers take alone hardly counts."""
WARM_REQUESTS, WARM_SEED = 25, 98
STOCK, FASTSERVE = "stock", "fastserve"
SYSTEMS = {STOCK: "vllm", FASTSERVE: "fastserve"}
"""System -> the policy that is it in the simulator."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine's KV memory: blocks on the device, and Headway's on the host to swap to."""

    name: str
    kv_blocks: int
    host_gib: float = 0.0

    def of(self, system: str) -> Setting:
        """That of a system's engine: stock has nothing on the host, so that nothing of Headway is left in it."""
        return replace(self, host_gib=0.0) if system == STOCK else self

    def flags(self) -> tuple[str, ...]:
        """vLLM's flags; its count of blocks has its null block too."""
        return (
            *("--max-num-seqs", str(DEFAULT_SEATS), "--max-num-batched-tokens", str(TOKENS_A_STEP)),
            *("--max-model-len", "2048", "--block-size", str(BLOCK_TOKENS), "--enforce-eager"),
            *("--num-gpu-blocks-override", str(self.kv_blocks + 1)),
        )

    def settings(self) -> EngineSettings:
        """Headway's, to start an engine with."""
        return EngineSettings(host_kv=HostKv(gib=self.host_gib) if self.host_gib else None)

    @contextmanager
    def serving(self) -> Iterator[ServingEngine]:
        """A warm engine."""
        engine = ServingEngine(str(ensure_mid_model()), self.flags(), self.settings())
        try:
            engine.serve(stream(WARM_REQUESTS, WARM_REQUESTS, WARM_SEED), WARM_SEED)
            yield engine
        finally:
            engine.close()


AMPLE, SHORT = Setting("ample", kv_blocks=2048), Setting("short", kv_blocks=128, host_gib=1.0)
"""KV for all who run at once, and for some thirty of them."""
SETTINGS = {setting.name: setting for setting in (AMPLE, SHORT)}


@dataclass(frozen=True, slots=True)
class Run:
    """One stream on one system."""

    setting: Setting
    system: str
    seats: int
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        return out / f"{self.setting.name}-{self.system}-{self.seats}-{self.load:g}-{self.seed}.json"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before anything was compared, and how long the streams are."""

    seconds: float
    capacity_rps: float
    asynchronous: bool


def stream(rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    """So many requests, each declaring the limit of its answer."""
    requests = generate(Gamma(rate_rps, BURSTINESS_CV), LENGTHS, LENGTHS, count, seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in requests]


def put_in(engine: ServingEngine, run: Run) -> None:
    """Let a run's system schedule from now on."""
    if run.system == STOCK:
        engine.use_stock("fcfs", run.seats)
    else:
        own = replace(run.setting.settings(), policy=SYSTEMS[FASTSERVE], batch_width=run.seats)
        engine.use(own, DEFAULT_SEATS)


def serve(
    engine: ServingEngine, clock: EngineTime, *, run: Run, requests: Sequence[TraceRequest]
) -> list[Served]:
    """Do a run."""
    put_in(engine, run)
    gc.collect()
    return engine.serve(requests, run.seed, clock=clock)


@dataclass(frozen=True)
class Measured:
    """What has been measured so far in a setting, all of it in `out`, with streams of about so many seconds."""

    out: Path
    setting: Setting
    seconds: float

    @cached_property
    def prepared(self) -> Prepared:
        """Capacity, measured now unless it is kept. Raises ConfigError if that was for streams of another length."""
        file = self.out / f"{self.setting.name}-prepared.json"
        if not file.exists():
            write_whole(file, msgspec.json.encode(self._prepare()))
        found = msgspec.json.decode(file.read_bytes(), type=Prepared)
        if found.seconds != self.seconds:
            raise ConfigError(
                f"{self.out} holds streams of {found.seconds:g} s; accepted: the same --seconds, or another folder"
            )
        return found

    def _prepare(self) -> Prepared:
        """What stock gets through at its default seats, all requests there at once."""
        burst = [replace(each, arrival_s=0.0) for each in stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED)]
        with self.setting.of(STOCK).serving() as engine:
            engine.use_stock("fcfs", DEFAULT_SEATS)
            served = engine.serve(burst, CAPACITY_SEED)
            capacity_rps = len(served) / max(each.finished_s for each in served)
            say(f"{self.setting.name}: capacity {capacity_rps:.2f} requests a second")
            return Prepared(seconds=self.seconds, capacity_rps=capacity_rps, asynchronous=engine.asynchronous)

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run: the same for every system and number of seats."""
        rate_rps = run.load * self.prepared.capacity_rps
        return stream(rate_rps, max(8, round(rate_rps * self.seconds)), run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve those that are not kept yet, those of one load and seed side by side."""
        todo = [run for run in dict.fromkeys(runs) if not run.file(self.out).exists()]
        groups = compared(todo, by=lambda run: (run.seed, run.load))
        measure_side_by_side([[self._lane(run) for run in group] for group in groups], say)

    def _lane(self, run: Run) -> Lane[ServingEngine, list[Served]]:
        def keep(served: list[Served]) -> None:
            write_whole(run.file(self.out), msgspec.json.encode(served))
            say(
                f"{run.setting.name}, seed {run.seed}: {run.system} ({run.seats} seats) at load {run.load:g}: "
                f"mean JCT {fmean(each.jct_s for each in served):.2f} s of {len(served)} requests"
            )

        work = partial(serve, run=run, requests=self.requests(run))
        return Lane(run.setting.of(run.system), work, keep)

    def served(self, run: Run) -> list[Served]:
        """What a run came to."""
        return msgspec.json.decode(run.file(self.out).read_bytes(), type=list[Served])

    def mean_jct_s(self, run: Run) -> float:
        """Of all its requests."""
        return fmean(each.jct_s for each in self.served(run))


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS, SECONDS = 3, 30.0
SEATS = (8, 16, 32, 64, 128, 256)
ORACLE = "srpt-oracle"
"""Knows how long answers will be: what no policy can have."""
SWEEP_LOAD, SWEEP_SEED = 1.0, 96
Pair = tuple[Run, Run]
"""Stock's and Headway's run of a stream."""


def report(measured: Measured, seeds: int, profile_s: float) -> dict[str, Any]:
    """Everything of one setting: runs what is missing."""
    setting = measured.setting
    sweep = [Run(setting, STOCK, seats, SWEEP_LOAD, SWEEP_SEED) for seats in SEATS]
    measured.do(sweep)
    swept = {run.seats: measured.mean_jct_s(run) for run in sweep}
    best = min(swept, key=swept.__getitem__)
    cells = {
        (seats, load): [
            (Run(setting, STOCK, seats, load, seed), Run(setting, FASTSERVE, seats, load, seed))
            for seed in range(seeds)
        ]
        for seats, load in product(sorted({best, DEFAULT_SEATS}), LOADS)
    }
    measured.do([run for pairs in cells.values() for pair in pairs for run in pair])
    stock = setting.of(STOCK)
    file = measured.out / f"{setting.name}-cost.json"
    profiled(file, str(ensure_mid_model()), stock.flags(), stock.settings(), profile_s)
    found: dict[int, dict[str, Any]] = {seats: {} for seats, _ in cells}
    for (seats, load), pairs in cells.items():
        found[seats][f"{load:g}"] = cell(measured, pairs, file)
    return {
        "capacity_rps": measured.prepared.capacity_rps,
        "stock_mean_jct_s_by_seats": swept,
        "best_seats": best,
        "cells": found,
    }


def cell(measured: Measured, pairs: Sequence[Pair], cost_file: Path) -> dict[str, Any]:
    """One load at one number of seats."""
    stock = [each for run, _ in pairs for each in measured.served(run)]
    own = [each for _, run in pairs for each in measured.served(run)]
    say(f"simulating {pairs[0][1].setting.name} at load {pairs[0][1].load:g}")

    def said_s(number: int, policy: str) -> list[float]:
        return [
            jct_s for pair in pairs for jct_s in simulated_jcts_s(measured, pair[number], policy, cost_file)
        ]

    theirs_s, ours_s = (said_s(number, policy) for number, policy in enumerate(SYSTEMS.values()))
    return {
        **gains([each.jct_s for each in stock], [each.jct_s for each in own]),
        "mean_gain_by_seed": [
            measured.mean_jct_s(theirs) / measured.mean_jct_s(ours) for theirs, ours in pairs
        ],
        "who_pays": who_pays(stock, own),
        "simulated": {
            **gains(theirs_s, ours_s),
            "oracle_mean_gain": fmean(theirs_s) / fmean(said_s(1, ORACLE)),
        },
    }


QUARTERS = 4


def who_pays(stock: Sequence[Served], own: Sequence[Served]) -> dict[str, Any]:
    """The gain in mean JCT by quarter of the answers' lengths, and how many took longer, by how much at worst."""
    pairs = sorted(zip(stock, own, strict=True), key=lambda pair: pair[0].output_tokens)
    quarter = -(-len(pairs) // QUARTERS)
    parts = [pairs[start : start + quarter] for start in range(0, len(pairs), quarter)]
    return {
        "mean_gain_by_quarter": [
            fmean(theirs.jct_s for theirs, _ in part) / fmean(ours.jct_s for _, ours in part)
            for part in parts
        ],
        "share_slower": fmean(ours.jct_s > theirs.jct_s for theirs, ours in pairs),
        "worst_slowdown": max(ours.jct_s / theirs.jct_s for theirs, ours in pairs),
    }


def gains(stock_s: Sequence[float], own_s: Sequence[float]) -> dict[str, Any]:
    """Completion times of both, and the two figures that compare them."""
    return {
        STOCK: latencies(stock_s),
        FASTSERVE: latencies(own_s),
        "mean_gain": fmean(stock_s) / fmean(own_s),
        "p99_ratio": p99(own_s) / p99(stock_s),
    }


def simulated_jcts_s(measured: Measured, run: Run, policy: str, cost_file: Path) -> list[float]:
    """What the simulator says of the same stream under a policy, on the engine of a run."""
    costs, requests = load_cost_file(cost_file).calibration(), measured.requests(run)
    own = run.system == FASTSERVE
    host_bytes = run.setting.of(run.system).host_gib * (1 << 30)
    limits = EngineLimits(
        num_blocks=run.setting.kv_blocks,
        block_size=BLOCK_TOKENS,
        max_num_seqs=DEFAULT_SEATS if own else run.seats,
        batch_width=run.seats if own else None,
        max_num_batched_tokens=TOKENS_A_STEP,
        max_cudagraph_capture_size=0,  # a CPU has none
        asynchronous=measured.prepared.asynchronous,
        host_blocks=int(host_bytes // (costs.kv_bytes_per_token * BLOCK_TOKENS)),
    )
    records: list[Record] = []
    simulate(
        requests,
        policy_factory(policy, OWN_PARTS, requests),
        System(limits=limits, calibration=costs),
        on_record=records.append,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=run.seed,
    )
    return [(record.finished_s or 0.0) - record.arrival_s for record in records]


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of docs/fastserve.md."""
    lines = []
    for name in (name for name in SETTINGS if name in found):
        lines += [
            f"{name}: {found[name]['capacity_rps']:.1f} requests a second",
            "",
            "| seats | load | mean JCT stock / `fastserve` (s) | gain (by stream) | p99 JCT, `fastserve` over stock "
            "| gain by quarter of answers, short to long | slower than under stock "
            "| simulated: gain, p99, gain of who knows all lengths |",
            "|---|---|---|---|---|---|---|---|",
            *(
                _row(seats, load, each)
                for seats, loads in found[name]["cells"].items()
                for load, each in loads.items()
            ),
            "",
        ]
    return "\n".join(lines)


def _row(seats: int, load: str, each: Mapping[str, Any]) -> str:
    by_seed, pays, said = each["mean_gain_by_seed"], each["who_pays"], each["simulated"]
    quarters = " ".join(f"{gain:.2f}" for gain in pays["mean_gain_by_quarter"])
    return (
        f"| {seats} | {load} | {each[STOCK]['mean_jct_s']:.2f} / {each[FASTSERVE]['mean_jct_s']:.2f} | "
        f"{each['mean_gain']:.2f} ({min(by_seed):.2f} to {max(by_seed):.2f}) | {each['p99_ratio']:.2f} | {quarters} | "
        f"{100 * pays['share_slower']:.0f} % | {said['mean_gain']:.2f}, {said['p99_ratio']:.2f}, "
        f"{said['oracle_mean_gain']:.2f} |"
    )


def main() -> int:
    """Print one JSON object, per setting the sweep and a cell for each number of seats and load, or the tables."""
    parser = command_line(__doc__)
    out_option(parser)
    markdown_option(parser, "the tables of docs/fastserve.md instead")
    stream_options(parser, seconds=SECONDS, profile_s=60.0)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"streams of each cell (default {SEEDS})")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="of KV memory (default: both)")
    arguments = parser.parse_args()
    for name in ("seconds", "seeds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name):g}; accepted: 1 or more")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "machine": machine_name(),
        "vllm": vllm_version(),
        "seconds": arguments.seconds,
        "seeds": arguments.seeds,
    }
    try:
        for name in dict.fromkeys(arguments.setting or SETTINGS):
            measured = Measured(arguments.out, SETTINGS[name], arguments.seconds)
            found[name] = report(measured, arguments.seeds, arguments.profile_seconds)
    except HeadwayError as error:
        say(f"fastserve_real: {error}")
        return 2
    write_whole(arguments.out / "fastserve-real.json", json.dumps(found).encode() + b"\n")
    print(markdown(found) if arguments.markdown else json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
