"""FastServe beside stock vLLM on the real CPU engine: `python bench/fastserve_real.py --out DIR --json`.

A bursty, skewed stream (Gamma arrivals of CV 4, prompts and answers Zipf 1.1 up to 512 tokens) at 0.5, 0.8, 1.0 and
1.2 of capacity, with a made model of 46 million parameters; chunked prefill and prefix caching on, asynchronous
scheduling as vLLM decides (off on CPUs). Twice: with the KV memory vLLM takes (`ample`), and with KV for some thirty
requests (`short`), where Headway has host memory to swap to. In each, stock alone is swept over `max_num_seqs` first,
at load 1; then both run at stock's best value for mean JCT and at vLLM's default, Headway with that batch width.
Capacity is what stock gets through at its default when all requests are there at once.

Stock is preset `vllm`, which schedules as stock does step for step (`bench/parity.py`), on the very same engine, which
computes on as many cores as one without host memory would (`headway.engine.cpu_cores`).

The two take turns seed by seed. Per cell: mean and p99 JCT of both (over all seeds' requests), `mean_gain` (stock /
fastserve) with each seed's own, `p99_ratio` (fastserve / stock), `who_pays`: the same gain by quarter of the answers'
lengths, short to long, and the share of requests that took longer than under stock; `simulated`: the same two figures
from the simulator with costs profiled here. About 30 minutes on 2 cores; what is in DIR already is not run again.
Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.fastserve_engine import Served, ServingEngine
from bench.fidelity import conclude_profile, profile_for
from headway.core.record import Record
from headway.engine.kv_host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.profile import Measurements, Profiler
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine
from headway.experiments.mid_model import ensure_mid_model
from headway.experiments.policy_choice import OWN_PARTS, policy_factory
from headway.predict.cost_file import load_cost_file
from headway.predict.residuals import quantile
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import Gamma, TraceRequest, Zipf, generate

LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS = 3
SEATS = (8, 16, 32, 64, 128, 256)
DEFAULT_SEATS = 256
"""vLLM's default on a CPU, and the worker slots that Headway's paused requests have."""
SWEEP_LOAD = 1.0
BURSTINESS_CV = 4.0
LENGTHS = Zipf(1.1, 512)
MAX_OUTPUT_TOKENS = 512
BLOCK_TOKENS, TOKENS_A_STEP = 32, 2048
CAPACITY_REQUESTS = 500
"""So many that what the last long answers take alone hardly counts."""
STOCK, FASTSERVE = "stock", "fastserve"
SYSTEMS = {STOCK: "vllm", FASTSERVE: "fastserve"}
"""System -> the policy that is it in the simulator."""
QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine's KV memory; None: as much as vLLM takes. `host_gib`: Headway's, to swap to."""

    kv_blocks: int | None = None
    host_gib: float | None = None

    def flags(self) -> tuple[str, ...]:
        """vLLM's flags; its count of blocks has its null block too."""
        memory = () if self.kv_blocks is None else ("--num-gpu-blocks-override", str(self.kv_blocks + 1))
        return (
            *("--max-num-seqs", str(DEFAULT_SEATS), "--max-num-batched-tokens", str(TOKENS_A_STEP)),
            *("--max-model-len", "2048", "--block-size", str(BLOCK_TOKENS), "--enforce-eager"),
            *memory,
        )

    def settings(self, system: str, seats: int) -> EngineSettings:
        """Headway's settings for a batch of so many."""
        host = None if self.host_gib is None else HostKv(gib=self.host_gib)
        return EngineSettings(policy=SYSTEMS[system], batch_width=seats, host_kv=host)


SETTINGS = {"ample": Setting(), "short": Setting(kv_blocks=128, host_gib=1.0)}


@dataclass(frozen=True, slots=True)
class Run:
    """One stream on one system."""

    setting: str
    system: str
    seats: int
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        return out / f"{self.setting}-{self.system}-{self.seats}-{self.load:g}-{self.seed}.json"


def stream(rate_rps: float, seconds: float, seed: int) -> list[TraceRequest]:
    """About so many seconds of requests, each declaring the limit of its answer."""
    count = max(8, round(rate_rps * seconds))
    requests = generate(Gamma(rate_rps, BURSTINESS_CV), LENGTHS, LENGTHS, count, seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in requests]


# ---- the real engine ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    """What has been measured so far, all of it in `out`."""

    out: Path
    seconds: float

    def capacity_rps(self, setting: str) -> float:
        """Requests a second that stock gets through at its default seats, all of them there at once."""
        return float(self._burst(setting)["rps"])

    def asynchronous(self, setting: str) -> bool:
        """Whether vLLM schedules steps ahead on this machine."""
        return bool(self._burst(setting)["asynchronous"])

    def _burst(self, setting: str) -> dict[str, Any]:
        file = self.out / f"{setting}-capacity.json"
        if not file.exists():
            burst = [replace(request, arrival_s=0.0) for request in stream(1.0, CAPACITY_REQUESTS, seed=99)]
            with serving(setting) as engine:
                engine.use(SETTINGS[setting].settings(STOCK, DEFAULT_SEATS))
                engine.serve(burst[: len(burst) // 20], seed=98)  # nobody pays for what happens only once
                served = engine.serve(burst, seed=99)
            rps = len(served) / max(each.finished_s for each in served)
            file.write_text(json.dumps({"rps": rps, "asynchronous": engine.asynchronous}))
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run: the same for every system and number of seats."""
        return stream(run.load * self.capacity_rps(run.setting), self.seconds, run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve those that are not kept yet, all of one setting, on one engine."""
        todo = [run for run in runs if not run.file(self.out).exists()]
        if not todo:
            return
        setting = todo[0].setting
        with serving(setting) as engine:
            for run in todo:
                requests = self.requests(run)
                slots = run.seats if run.system == STOCK else DEFAULT_SEATS
                engine.use(SETTINGS[setting].settings(run.system, run.seats), slots)
                gc.collect()
                served = engine.serve(requests, run.seed)
                run.file(self.out).write_text(json.dumps([asdict(each) for each in served]))
                say(f"{run}: mean JCT {fmean(each.jct_s for each in served):.2f} s")

    def served(self, run: Run) -> list[Served]:
        """What a run came to."""
        return [Served(**row) for row in json.loads(run.file(self.out).read_text())]

    def mean_jct_s(self, run: Run) -> float:
        """Of all its requests."""
        return fmean(each.jct_s for each in self.served(run))


@contextmanager
def serving(setting: str) -> Iterator[ServingEngine]:
    """An engine of a setting."""
    settings = SETTINGS[setting].settings(STOCK, DEFAULT_SEATS)
    engine = ServingEngine(str(ensure_mid_model()), SETTINGS[setting].flags(), settings)
    try:
        yield engine
    finally:
        engine.close()


# ---- the simulator's prediction ------------------------------------------------------------------------


def profile(out: Path, setting: str, seconds: float) -> Path:
    """A cost file of this engine, measured now unless it is there."""
    file = out / f"{setting}-cost.json"
    chosen = SETTINGS[setting]
    return profiled(
        file, str(ensure_mid_model()), chosen.flags(), chosen.settings(STOCK, DEFAULT_SEATS), seconds
    )


def profiled(
    file: Path, model: str, vllm_flags: Sequence[str], settings: EngineSettings, seconds: float
) -> Path:
    """The cost file of an engine, measured for about so long unless it is there."""
    if not file.exists():
        say("profiling")
        engine = SteppedEngine(model, vllm_flags, settings)
        try:
            measured = Measurements(engine.sizes)
            profiler = Profiler(engine, measured, seconds=seconds)
            profiler.prepare(lambda share, what: None)
            profile_for(engine, profiler, seconds)
            conclude_profile(measured, file)
        finally:
            engine.close()
    return file


def simulated_jcts_s(bench: Bench, run: Run, cost_file: Path) -> list[float]:
    """What the simulator says of the same stream."""
    costs = load_cost_file(cost_file).calibration()
    setting, requests = SETTINGS[run.setting], bench.requests(run)
    own = run.system == FASTSERVE
    host_bytes = (setting.host_gib or 0.0) * (1 << 30)
    limits = EngineLimits(
        num_blocks=setting.kv_blocks or costs.kv_capacity_tokens // BLOCK_TOKENS,
        block_size=BLOCK_TOKENS,
        max_num_seqs=DEFAULT_SEATS if own else run.seats,
        batch_width=run.seats if own else None,
        max_num_batched_tokens=TOKENS_A_STEP,
        asynchronous=bench.asynchronous(run.setting),
        host_blocks=int(host_bytes // (costs.kv_bytes_per_token * BLOCK_TOKENS)) if own else 0,
    )
    records: list[Record] = []
    simulate(
        requests,
        policy_factory(SYSTEMS[run.system], OWN_PARTS, requests),
        System(limits=limits, calibration=costs),
        on_record=records.append,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=run.seed,
    )
    return [(record.finished_s or 0.0) - record.arrival_s for record in records]


# ---- what came out -------------------------------------------------------------------------------------


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantile(sorted(values), 0.99)


def cell(bench: Bench, pairs: Sequence[tuple[Run, Run]], cost_file: Path) -> dict[str, Any]:
    """One load at one number of seats: pairs of a stock and a Headway run, one a seed."""
    stock = [each for run, _ in pairs for each in bench.served(run)]
    own = [each for _, run in pairs for each in bench.served(run)]
    gains = [bench.mean_jct_s(theirs) / bench.mean_jct_s(ours) for theirs, ours in pairs]
    said = {
        system: [jct for pair in pairs for jct in simulated_jcts_s(bench, pair[number], cost_file)]
        for number, system in enumerate(SYSTEMS)
    }
    return {
        **{
            name: latencies([each.jct_s for each in served])
            for name, served in ((STOCK, stock), (FASTSERVE, own))
        },
        "mean_gain": fmean(each.jct_s for each in stock) / fmean(each.jct_s for each in own),
        "mean_gain_by_seed": gains,
        "p99_ratio": p99([each.jct_s for each in own]) / p99([each.jct_s for each in stock]),
        "who_pays": who_pays(stock, own),
        "simulated": {
            "mean_gain": fmean(said[STOCK]) / fmean(said[FASTSERVE]),
            "p99_ratio": p99(said[FASTSERVE]) / p99(said[STOCK]),
            **{system: latencies(jcts_s) for system, jcts_s in said.items()},
        },
    }


def latencies(jcts_s: Sequence[float]) -> dict[str, float]:
    """Mean and tail of completion times."""
    return {"mean_jct_s": fmean(jcts_s), "p99_jct_s": p99(jcts_s)}


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


def say(line: str) -> None:
    """Tell people, on stderr."""
    print(line, file=sys.stderr, flush=True)


def report(bench: Bench, setting: str, seeds: int, profile_s: float) -> dict[str, Any]:
    """Everything of one setting: runs what is missing."""
    sweep = [Run(setting, STOCK, seats, SWEEP_LOAD, 0) for seats in SEATS]
    capacity_rps = bench.capacity_rps(setting)
    say(f"{setting}: capacity {capacity_rps:.2f} requests a second")
    bench.do(sweep)
    swept = {run.seats: bench.mean_jct_s(run) for run in sweep}
    best = min(swept, key=swept.__getitem__)
    seats = sorted({best, DEFAULT_SEATS})
    turns = product(range(seeds), SYSTEMS, seats, LOADS)
    bench.do([Run(setting, system, each, load, seed) for seed, system, each, load in turns])
    cost_file = profile(bench.out, setting, profile_s)

    def pairs(each: int, load: float) -> list[tuple[Run, Run]]:
        return [
            (Run(setting, STOCK, each, load, seed), Run(setting, FASTSERVE, each, load, seed))
            for seed in range(seeds)
        ]

    return {
        "capacity_rps": capacity_rps,
        "stock_mean_jct_s_by_seats": swept,
        "best_seats": best,
        "cells": {
            each: {load: cell(bench, pairs(each, load), cost_file) for load in LOADS} for each in seats
        },
    }


def main() -> None:
    """Print one JSON object: per setting the sweep, and a cell for each number of seats and load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for what is measured; resumed if there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals a run (default 30)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"streams of each cell (default {SEEDS})")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="of KV memory (default: both)")
    parser.add_argument(
        "--profile-seconds", type=float, default=60.0, help="for the simulator's costs (default 60)"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.out, arguments.seconds)
    found: dict[str, Any] = {"machine": machine_name(), "vllm": vllm_version(), "seconds": arguments.seconds}
    for setting in arguments.setting or SETTINGS:
        found[setting] = report(bench, setting, arguments.seeds, arguments.profile_seconds)
    text = json.dumps(found)
    (arguments.out / "fastserve-real.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
