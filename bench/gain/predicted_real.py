"""Scheduling by predicted lengths on the real CPU engine: `python bench/gain/predicted_real.py --out DIR --json`.

The demo model answers its own tasks and stops by itself. Poisson arrivals at 0.5, 0.8, 1.0 and 1.2 of capacity; a
batch of 16 for everyone, KV memory for some twenty-four requests, host memory to swap to; chunked prefill and prefix
caching on. Compared: stock's order (`vllm`), `fastserve`, and `predicted` with three predictors: `hash`, taught with
the half of the packaged tasks that no stream has; `noisy-oracle`, the true lengths with noise (Kendall's tau 0.8);
and `broken`, the longest answers called the shortest. Capacity is what stock gets through when all requests are there
at once.

Predictions are made ahead of the run, as the API server's process makes them beside the engine's; nothing is learned
during a run, so that every run of a stream is told the same. The systems take turns seed by seed. Per load and
system: mean and p99 JCT over all seeds' requests, `gain` over vllm and over fastserve (their mean JCT over this one's)
with each seed's own and the spread (largest less smallest, over their mean); `simulated`: the same gains from the
simulator with costs profiled here and the lengths that the tasks are packaged with; `tau` of the predictions made, and
`as_packaged`, the share of answers that were as long here as they are packaged. About 25 minutes on 2 cores; what is
in DIR already is not run again. Nothing else should run meanwhile.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, out_option, say, stream_options
from bench.figures import latencies
from bench.serving_engine import Served, ServingEngine, profiled
from bench.streams import MAX_OUTPUT_TOKENS, TAUGHT, estimates_of, untaught_stream
from headway.core.prediction_quality import kendall_tau
from headway.core.record import Record
from headway.engine.demo_model import DEMO
from headway.engine.kv.host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.predict.steps.calibration import load_cost_file
from headway.sim.lengths import GivenLengths
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest

LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS = 3
BATCH_WIDTH = 16
WORKER_SLOTS = 64
KV_BLOCKS, BLOCK_TOKENS, HOST_GIB = 96, 32, 0.25
TOKENS_A_STEP = 1024
CAPACITY_REQUESTS = 600
STOCK, FASTSERVE = "vllm", "fastserve"
FLAGS = (
    *("--max-num-seqs", str(WORKER_SLOTS), "--max-num-batched-tokens", str(TOKENS_A_STEP)),
    *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(KV_BLOCKS + 1), "--enforce-eager"),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, and who predicts lengths for it."""

    policy: str
    predictor: str | None = None


CONTENDERS = {
    STOCK: Contender("vllm"),
    FASTSERVE: Contender("fastserve"),
    "predicted": Contender("predicted", TAUGHT),
    "predicted-noisy": Contender("predicted", "noisy-oracle:tau=0.8"),
    "predicted-broken": Contender("predicted", "broken:way=reversed"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One stream under one contender."""

    contender: str
    load: float
    seed: int

    def file(self, out: Path) -> Path:
        """Where what it came to is kept."""
        return out / f"{self.contender}-{self.load:g}-{self.seed}.json"


# ---- the real engine -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Bench:
    """What has been measured so far, all of it in `out`."""

    out: Path
    seconds: float

    def capacity(self) -> dict[str, Any]:
        """`rps` that stock gets through, all requests being there at once, and whether steps go `asynchronous`ly."""
        file = self.out / "capacity.json"
        if not file.exists():
            burst = [
                replace(request, arrival_s=0.0)
                for request in untaught_stream(50.0, CAPACITY_REQUESTS / 50, seed=99)
            ]
            with serving() as engine:
                engine.use(settings_of(STOCK))
                engine.serve(burst[: len(burst) // 20], seed=98, own_stops=True)  # what happens only once
                served = engine.serve(burst, seed=99, own_stops=True)
                found = {
                    "rps": len(served) / max(each.finished_s for each in served),
                    "asynchronous": engine.asynchronous,
                }
            file.write_text(json.dumps(found))
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run: the same for every contender."""
        return untaught_stream(run.load * self.capacity()["rps"], self.seconds, run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve those that are not kept yet, on one engine."""
        todo = [run for run in runs if not run.file(self.out).exists()]
        if not todo:
            return
        with serving() as engine:
            for run in todo:
                requests = self.requests(run)
                lengths = GivenLengths(estimates_of(CONTENDERS[run.contender].predictor, requests, run.seed))
                engine.use(settings_of(run.contender))
                gc.collect()
                served = engine.serve(requests, run.seed, lengths=lengths, own_stops=True)
                run.file(self.out).write_text(json.dumps([asdict(each) for each in served]))
                say(f"{run}: mean JCT {fmean(each.jct_s for each in served):.3f} s of {len(served)} requests")

    def served(self, run: Run) -> list[Served]:
        """What a run came to."""
        return [Served(**row) for row in json.loads(run.file(self.out).read_text())]


def settings_of(contender: str) -> EngineSettings:
    """Headway's settings for a contender."""
    return EngineSettings(
        policy=CONTENDERS[contender].policy, batch_width=BATCH_WIDTH, host_kv=HostKv(gib=HOST_GIB)
    )


@contextmanager
def serving() -> Iterator[ServingEngine]:
    """The engine of all runs."""
    engine = ServingEngine(DEMO, FLAGS, settings_of(STOCK))
    try:
        yield engine
    finally:
        engine.close()


# ---- the simulator's prediction ------------------------------------------------------------------------


def simulated_jcts_s(bench: Bench, run: Run, cost_file: Path) -> list[float]:
    """What the simulator says of the same stream, its answers as long as they are packaged."""
    costs = load_cost_file(cost_file).calibration()
    requests = bench.requests(run)
    limits = EngineLimits(
        num_blocks=KV_BLOCKS,
        block_size=BLOCK_TOKENS,
        max_num_seqs=WORKER_SLOTS,
        batch_width=BATCH_WIDTH,
        max_num_batched_tokens=TOKENS_A_STEP,
        max_cudagraph_capture_size=0,  # a CPU has none
        asynchronous=bool(bench.capacity()["asynchronous"]),
        prefix_caching=True,
        host_blocks=int(HOST_GIB * (1 << 30) // (costs.kv_bytes_per_token * BLOCK_TOKENS)),
    )
    records: list[Record] = []
    simulate(
        requests,
        policy_factory(CONTENDERS[run.contender].policy, OWN_PARTS, requests),
        System(limits=limits, calibration=costs),
        on_record=records.append,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=run.seed,
        lengths=GivenLengths(estimates_of(CONTENDERS[run.contender].predictor, requests, run.seed)),
    )
    return [(record.finished_s or 0.0) - record.arrival_s for record in records]


# ---- what came out -------------------------------------------------------------------------------------

Jcts = Mapping[str, Sequence[Sequence[float]]]
"""By contender and seed: the completion time of each request."""


def gains(jcts_s: Jcts, contender: str, over: str) -> dict[str, Any]:
    """How many times as long the other's mean completion time is, in all and seed by seed."""
    by_seed = [fmean(other) / fmean(own) for other, own in zip(jcts_s[over], jcts_s[contender], strict=True)]
    return {
        "mean": fmean(_all(jcts_s[over])) / fmean(_all(jcts_s[contender])),
        "by_seed": by_seed,
        "spread": (max(by_seed) - min(by_seed)) / fmean(by_seed),
    }


def _all(by_seed: Sequence[Sequence[float]]) -> list[float]:
    return [jct_s for jcts_s in by_seed for jct_s in jcts_s]


def cell(real: Jcts, simulated: Jcts) -> dict[str, Any]:
    """One load: every contender's latencies and gains, and what the simulator says of them."""
    return {
        contender: {
            **latencies(_all(real[contender])),
            **{f"gain_over_{over}": gains(real, contender, over) for over in (STOCK, FASTSERVE)},
            "simulated": {
                **latencies(_all(simulated[contender])),
                **{
                    f"gain_over_{over}": gains(simulated, contender, over)["mean"]
                    for over in (STOCK, FASTSERVE)
                },
            },
        }
        for contender in real
    }


def report(bench: Bench, loads: Sequence[float], seeds: int, profile_s: float) -> dict[str, Any]:
    """Everything; runs what is missing."""
    capacity = bench.capacity()
    say(f"capacity {capacity['rps']:.1f} requests a second")
    bench.do([Run(name, load, seed) for seed, load, name in product(range(seeds), loads, CONTENDERS)])
    cost_file = profiled(bench.out / "cost.json", DEMO, FLAGS, settings_of(STOCK), profile_s)
    cells = {}
    for load in loads:
        runs = {name: [Run(name, load, seed) for seed in range(seeds)] for name in CONTENDERS}
        real = {name: [[each.jct_s for each in bench.served(run)] for run in runs[name]] for name in runs}
        said = {name: [simulated_jcts_s(bench, run, cost_file) for run in runs[name]] for name in runs}
        cells[f"{load:g}"] = cell(real, said)
    return {
        "capacity_rps": capacity["rps"],
        "cells": cells,
        "tau": {name: quality(bench, Run(name, loads[-1], 0)) for name in CONTENDERS},
        "as_packaged": as_packaged(bench, Run(STOCK, loads[-1], 0)),
    }


def quality(bench: Bench, run: Run) -> float | None:
    """Kendall's tau of what was predicted and what came; None where nothing was."""
    requests = bench.requests(run)
    estimates = estimates_of(CONTENDERS[run.contender].predictor, requests, run.seed)
    pairs = [
        (estimates[request.id].tokens, float(each.output_tokens))
        for request, each in zip(requests, bench.served(run), strict=True)
        if request.id in estimates
    ]
    return kendall_tau(pairs) if pairs else None


def as_packaged(bench: Bench, run: Run) -> float:
    """The share of answers as long as the tasks' packaged ones."""
    pairs = zip(bench.requests(run), bench.served(run), strict=True)
    return fmean(request.output_tokens == each.output_tokens for request, each in pairs)


def main() -> None:
    """Print one JSON object: a cell for each load, with every contender in it."""
    parser = command_line(__doc__)
    out_option(parser)
    stream_options(parser, seconds=20.0, seeds=SEEDS, loads=LOADS, profile_s=60.0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.out, arguments.seconds)
    loads = tuple(arguments.load or LOADS)
    found = report(bench, loads, arguments.seeds, arguments.profile_seconds)
    print(
        json.dumps(
            {
                "measured_on": machine_name(),
                "vllm": vllm_version(),
                "batch_width": BATCH_WIDTH,
                "kv_blocks": KV_BLOCKS,
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
