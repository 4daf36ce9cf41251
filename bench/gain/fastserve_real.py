"""FastServe beside stock vLLM on the real CPU engine: `python bench/gain/fastserve_real.py --out DIR --json`.

A bursty, skewed stream (Gamma arrivals of CV 4, prompts and answers Zipf 1.1 up to 512 tokens) at 0.5, 0.8, 1.0 and
1.2 of capacity, with a made model of 46 million parameters. Twice: with KV memory for all that run at once (`ample`),
and with KV for some thirty requests (`short`), where Headway has host memory to swap to. In each, stock is swept over
`max_num_seqs` first, at load 1, on a stream that nothing is compared on; then both run at stock's best value for mean
JCT and at vLLM's default, Headway with that batch width. Capacity is what stock gets through at its default when all
requests are there at once.

Stock is vLLM's own scheduler on an engine with nothing of Headway in it: chunked prefill, prefix caching and
asynchronous scheduling as vLLM decides (the last is off on CPUs). All runs of a load and seed serve side by side, each
on an engine and by a clock of its own, in turns of a tenth of a second, so that a machine's drift hits all alike.

Per cell: mean and p99 JCT of both (over all seeds' requests), `mean_gain` (stock / fastserve) with each seed's own,
`p99_ratio` (fastserve / stock), `share_slower`, of requests that took longer than under stock. Aims: twice the mean
near and above capacity, p99 at most 1.25 times stock's, a loss of 2 % at low load.

40 minutes a setting with three streams of 30 s on 2 cores; what is in DIR already is not run again. Nothing else should
run meanwhile. `--markdown` prints the tables of docs/fastserve.md in place of the JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path


from bench.command import command_line, markdown_option, out_option, say, stream_options
from bench.figures import latencies
from bench.real_runs import (
    MID,
    STOCK,
    CapacityFacts,
    Contender,
    EngineSpec,
    Run,
    capacity_rps,
    keep_runs,
    kept,
)
from headway.engine.machine import machine_name, vllm_version
from headway.json_file import made_once
from headway.lab.kept_runs import open_folder
from headway.lab.real_engine import ServedRequest, WallTime
from headway.statistics import mean, quantile
from headway.traces import Gamma, TraceRequest, Zipf, at_once, generate
from headway.whole_file import write_whole

# ---- engines and runs --------------------------------------------------------------------------------

DEFAULT_SEATS = 256
"""vLLM's default on a CPU, and the worker slots for Headway's paused requests."""
BURSTINESS_CV = 4.0
LENGTHS = Zipf(1.1, 512)
MAX_OUTPUT_TOKENS = 512
TOKENS_A_STEP = 2048
CAPACITY_REQUESTS, CAPACITY_SEED = 500, 99
"""Enough requests that the last long answers hardly count."""
WARM_REQUESTS, WARM_SEED = 25, 98
FASTSERVE = Contender("fastserve", "fastserve")


def stream(rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    """`count` requests, each with the limit of its answer declared."""
    requests = generate(Gamma(rate_rps, BURSTINESS_CV), LENGTHS, LENGTHS, count, seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in requests]


def warm_up() -> list[TraceRequest]:
    """Requests that an engine serves before it counts as started."""
    return stream(WARM_REQUESTS, WARM_REQUESTS, WARM_SEED)


AMPLE = EngineSpec(
    model=MID,
    flags=(
        *("--max-num-batched-tokens", str(TOKENS_A_STEP)),
        *("--max-model-len", "2048", "--enforce-eager"),
    ),
    block_tokens=32,
    slots=DEFAULT_SEATS,
    kv_blocks=2048,
    warm=warm_up,
)
SHORT = replace(AMPLE, kv_blocks=128, host_gib=1.0)
"""Two memory settings: KV for all requests that run at once, and for some thirty of them."""
SETTINGS = {"ample": AMPLE, "short": SHORT}


@dataclass(frozen=True)
class Measured:
    """Measurements of one engine so far, all in `out`, with streams of about this many seconds."""

    out: Path
    engine: EngineSpec
    seconds: float

    def open(self) -> None:
        """Make the folder, or continue in it. Raises ConfigError if it has streams of another length."""
        open_folder(self.out / "bench.json", {"seconds": self.seconds}, "bench")

    @cached_property
    def prepared(self) -> CapacityFacts:
        """The capacity, measured now unless it is stored."""
        return made_once(self.out / "prepared.json", CapacityFacts, self._prepare)

    def _prepare(self) -> CapacityFacts:
        """Measure what stock serves at its default seats if all requests arrive at once."""
        burst = at_once(stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED))
        with self.engine.of(STOCK).serving() as engine:
            found_rps = capacity_rps(
                engine, WallTime(), burst=burst, seats=DEFAULT_SEATS, seed=CAPACITY_SEED, own_stops=False
            )
            say(f"{self.out.name}: capacity {found_rps:.2f} requests a second")
            return CapacityFacts(capacity_rps=found_rps, asynchronous=engine.sizes.asynchronous)

    def requests(self, run: Run) -> list[TraceRequest]:
        """The stream of a run, equal for every system and number of seats."""
        rate_rps = run.load * self.prepared.capacity_rps
        return stream(rate_rps, max(8, round(rate_rps * self.seconds)), run.seed)

    def do(self, runs: Sequence[Run]) -> None:
        """Serve the runs that are not stored yet; those of one load and seed run side by side."""
        keep_runs(self.out, self.engine, runs, self.requests, own_stops=False)

    def served(self, run: Run) -> list[ServedRequest]:
        """The result of a run."""
        return kept(run, self.out).served

    def mean_jct_s(self, run: Run) -> float:
        """The mean over all of a run's requests."""
        return mean(kept(run, self.out).jcts_s)


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.2)
SEEDS, SECONDS = 3, 30.0
SEATS = (8, 16, 32, 64, 128, 256)
SWEEP_LOAD, SWEEP_SEED = 1.0, 96
Pair = tuple[Run, Run]
"""Stock's and Headway's run of a stream."""


def report(measured: Measured, seeds: int) -> dict[str, Any]:
    """The whole report of one setting; runs what is missing."""
    sweep = [Run(STOCK, "", seats, SWEEP_LOAD, SWEEP_SEED) for seats in SEATS]
    measured.do(sweep)
    swept = {run.seats: measured.mean_jct_s(run) for run in sweep}
    best = min(swept, key=swept.__getitem__)
    cells = {
        (seats, load): [
            (Run(STOCK, "", seats, load, seed), Run(FASTSERVE, "", seats, load, seed))
            for seed in range(seeds)
        ]
        for seats, load in product(sorted({best, DEFAULT_SEATS}), LOADS)
    }
    measured.do([run for pairs in cells.values() for pair in pairs for run in pair])
    found: dict[int, dict[str, Any]] = {seats: {} for seats, _ in cells}
    for (seats, load), pairs in cells.items():
        found[seats][f"{load:g}"] = cell(measured, pairs)
    return {
        "capacity_rps": measured.prepared.capacity_rps,
        "stock_mean_jct_s_by_seats": swept,
        "best_seats": best,
        "cells": found,
    }


def cell(measured: Measured, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One load at one number of seats."""
    stock_s, own_s = (
        [each.jct_s for run in runs for each in measured.served(run)] for runs in zip(*pairs, strict=True)
    )
    return {
        **gains(stock_s, own_s),
        "mean_gain_by_seed": [
            measured.mean_jct_s(theirs) / measured.mean_jct_s(ours) for theirs, ours in pairs
        ],
    }


def gains(stock_s: Sequence[float], own_s: Sequence[float]) -> dict[str, Any]:
    """Completion times of both, request by request, and the figures that compare them."""
    return {
        STOCK.name: latencies(stock_s),
        FASTSERVE.name: latencies(own_s),
        "mean_gain": mean(stock_s) / mean(own_s),
        "p99_ratio": quantile(own_s, 0.99) / quantile(stock_s, 0.99),
        "share_slower": mean(ours > theirs for theirs, ours in zip(stock_s, own_s, strict=True)),
    }


def markdown(found: Mapping[str, Any]) -> str:
    """The tables of docs/fastserve.md."""
    lines = []
    for name in (name for name in SETTINGS if name in found):
        lines += [
            f"{name}: {found[name]['capacity_rps']:.1f} requests a second",
            "",
            "| seats | load | mean JCT stock / `fastserve` (s) | gain (by stream) | p99 JCT, `fastserve` over stock "
            "| slower than under stock |",
            "|---|---|---|---|---|---|",
            *(
                _row(seats, load, each)
                for seats, loads in found[name]["cells"].items()
                for load, each in loads.items()
            ),
            "",
        ]
    return "\n".join(lines)


def _row(seats: int, load: str, each: Mapping[str, Any]) -> str:
    by_seed = each["mean_gain_by_seed"]
    return (
        f"| {seats} | {load} | {each[STOCK.name]['mean_jct_s']:.2f} / {each[FASTSERVE.name]['mean_jct_s']:.2f} | "
        f"{each['mean_gain']:.2f} ({min(by_seed):.2f} to {max(by_seed):.2f}) | {each['p99_ratio']:.2f} | "
        f"{100 * each['share_slower']:.0f} % |"
    )


def main() -> None:
    """Print one JSON object (for each setting the sweep, and a cell for each number of seats and load), or the
    tables.
    """
    parser = command_line(__doc__)
    out_option(parser)
    markdown_option(parser, "the tables of docs/fastserve.md instead")
    stream_options(parser, seconds=SECONDS)
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
    for name in dict.fromkeys(arguments.setting or SETTINGS):
        measured = Measured(arguments.out / name, SETTINGS[name], arguments.seconds)
        measured.open()
        found[name] = report(measured, arguments.seeds)
    write_whole(arguments.out / "fastserve-real.json", json.dumps(found).encode() + b"\n")
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
