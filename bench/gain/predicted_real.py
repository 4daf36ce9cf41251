"""Scheduling by predicted lengths on the real CPU engine: `python bench/gain/predicted_real.py --out DIR --json`.

The demo model answers its own tasks and stops by itself. Poisson arrivals at 0.5, 0.8, 1.0 and 1.2 of capacity; a
batch of 16 for all, KV memory for some twenty-four requests, host memory to swap to; chunked prefill and prefix
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

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from headway.statistics import mean

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec

from bench.command import command_line, out_option, say, stream_options
from bench.figures import jcts_s, latencies
from bench.real_runs import (
    CapacityFacts,
    Contender,
    EngineSpec,
    Run,
    TwinEngine,
    do_run,
    kept,
    profiled,
)
from bench.streams import MAX_OUTPUT_TOKENS, TAUGHT, estimates_of, untaught_stream
from headway.core.prediction_quality import kendall_tau
from headway.engine.demo_model import DEMO
from headway.engine.machine import machine_name, vllm_version
from headway.json_file import made_once
from headway.lab.real_engine import Served, WallTime, serve, served_rps
from headway.traces import TraceRequest, at_once
from headway.whole_file import write_whole

LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS = 3
BATCH_WIDTH = 16
TOKENS_A_STEP = 1024
CAPACITY_REQUESTS = 600
ENGINE = EngineSpec(
    model=DEMO,
    flags=("--max-num-batched-tokens", str(TOKENS_A_STEP), "--enforce-eager"),
    block_tokens=32,
    slots=64,
    kv_blocks=96,
    host_gib=0.25,
)
STOCK, FASTSERVE = "vllm", "fastserve"
CONTENDERS = {
    each.name: each
    for each in (
        Contender(STOCK, "vllm"),
        Contender(FASTSERVE, "fastserve"),
        Contender("predicted", "predicted", predictor=TAUGHT),
        Contender("predicted-noisy", "predicted", predictor="noisy-oracle:tau=0.8"),
        Contender("predicted-broken", "predicted", predictor="broken:way=reversed"),
    )
}


@dataclass(frozen=True)
class Bench:
    """What has been measured so far, all of it in `out`."""

    out: Path
    seconds: float

    @cached_property
    def capacity(self) -> CapacityFacts:
        """What stock's order gets through, all requests being there at once."""
        return made_once(self.out / "capacity.json", CapacityFacts, self._capacity)

    def _capacity(self) -> CapacityFacts:
        burst = at_once(untaught_stream(50.0, CAPACITY_REQUESTS / 50, seed=99))
        with ENGINE.serving() as engine:
            CONTENDERS[STOCK].put_in(engine, BATCH_WIDTH)
            serve(engine, burst[: len(burst) // 20], seed=98, own_stops=True)  # what happens only once
            return CapacityFacts(
                capacity_rps=served_rps(serve(engine, burst, seed=99, own_stops=True)),
                asynchronous=engine.sizes.asynchronous,
            )

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run: the same for every contender."""
        return untaught_stream(run.load * self.capacity.capacity_rps, self.seconds, run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve those that are not kept yet, on one engine."""
        todo = [run for run in runs if not run.file(self.out).exists()]
        if not todo:
            return
        with ENGINE.serving() as engine:
            for run in todo:
                found = do_run(engine, WallTime(), run=run, requests=self.requests(run))
                write_whole(run.file(self.out), msgspec.json.encode(found))
                served = len(found.served)
                say(f"{run.file(self.out).stem}: mean JCT {mean(found.jcts_s):.3f} s of {served} requests")

    def served(self, run: Run) -> list[Served]:
        """What a run came to."""
        return kept(run, self.out).served

    def simulated(self, profile_s: float) -> TwinEngine:
        """The engine on a virtual clock, its costs measured now unless they are kept."""
        costs = profiled(self.out / "cost.json", ENGINE, profile_s)
        return TwinEngine(ENGINE, costs, ENGINE.kv_blocks, TOKENS_A_STEP, self.capacity.asynchronous)

    def simulated_jcts_s(self, engine: TwinEngine, run: Run) -> list[float]:
        """What the simulator says of the same stream, its answers as long as they are packaged."""
        return jcts_s(engine.records(run, self.requests(run), max_output_tokens=MAX_OUTPUT_TOKENS))


def run_of(contender: str, load: float, seed: int) -> Run:
    """One stream under one contender."""
    return Run(CONTENDERS[contender], "", BATCH_WIDTH, load, seed)


# ---- what came out -------------------------------------------------------------------------------------

Jcts = Mapping[str, Sequence[Sequence[float]]]
"""By contender and seed: the completion time of each request."""


def gains(jcts_s: Jcts, contender: str, over: str) -> dict[str, Any]:
    """How many times as long the other's mean completion time is, in all and seed by seed."""
    by_seed = [mean(other) / mean(own) for other, own in zip(jcts_s[over], jcts_s[contender], strict=True)]
    return {
        "mean": mean(_all(jcts_s[over])) / mean(_all(jcts_s[contender])),
        "by_seed": by_seed,
        "spread": (max(by_seed) - min(by_seed)) / mean(by_seed),
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
    say(f"capacity {bench.capacity.capacity_rps:.1f} requests a second")
    bench.do([run_of(name, load, seed) for seed, load, name in product(range(seeds), loads, CONTENDERS)])
    engine = bench.simulated(profile_s)
    cells = {}
    for load in loads:
        runs = {name: [run_of(name, load, seed) for seed in range(seeds)] for name in CONTENDERS}
        real = {name: [kept(run, bench.out).jcts_s for run in runs[name]] for name in runs}
        said = {name: [bench.simulated_jcts_s(engine, run) for run in runs[name]] for name in runs}
        cells[f"{load:g}"] = cell(real, said)
    return {
        "capacity_rps": bench.capacity.capacity_rps,
        "cells": cells,
        "tau": {name: quality(bench, run_of(name, loads[-1], 0)) for name in CONTENDERS},
        "as_packaged": as_packaged(bench, run_of(STOCK, loads[-1], 0)),
    }


def quality(bench: Bench, run: Run) -> float | None:
    """Kendall's tau of what was predicted and what came; None where nothing was."""
    requests = bench.requests(run)
    estimates = estimates_of(run.contender.predictor, requests, run.seed)
    pairs = [
        (estimates[request.id].tokens, float(each.output_tokens))
        for request, each in zip(requests, bench.served(run), strict=True)
        if request.id in estimates
    ]
    return kendall_tau(pairs) if pairs else None


def as_packaged(bench: Bench, run: Run) -> float:
    """The share of answers as long as the tasks' packaged ones."""
    pairs = zip(bench.requests(run), bench.served(run), strict=True)
    return mean(request.output_tokens == each.output_tokens for request, each in pairs)


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
                "kv_blocks": ENGINE.kv_blocks,
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
