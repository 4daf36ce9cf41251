"""Conversations whose turns share prefixes, on the real CPU engine: `python bench/gain/shared_prefixes.py --json`.

Every prompt is the one before and something new: five turns, each some 512 tokens longer than the one before, answers
of 8 to 60 tokens. Conversations begin at random, and a turn does not wait for the answer to the one before it. KV
memory holds what four long conversations need, so what the prefix cache still has of a prompt depends on what was
served before. Compared, run by run in turns on one engine: vLLM's own scheduler (`stock`), `sjf`, `headway`, and
`headway-no-prefixes`, to which all of a prompt is work whatever the cache holds of it. Loads are of what stock gets
through with all requests there at once, when hardly a prefix is found; as they come it gets through several times as
much. Per load and contender: mean and p99 JCT over all seeds' requests, the mean of each seed, and `gain`, stock's
mean over its own. A run takes 30 to 45 s on 2 cores; nothing else should run meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from headway.statistics import mean

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, say, stream_options
from bench.figures import latencies
from bench.real_runs import STOCK, Contender, EngineSpec, Run, do_run
from bench.streams import conversations
from headway.engine.demo_model import DEMO
from headway.engine.machine import machine_name, vllm_version
from headway.engine.stepped_engine import SteppedEngine
from headway.lab.real_engine import WallTime
from headway.traces import TraceRequest, at_once

LOADS = (2.0, 4.0)
SEEDS = 3
CONTENDERS = {
    each.name: each
    for each in (STOCK, *(Contender(name, name) for name in ("sjf", "headway", "headway-no-prefixes")))
}
SEATS = 16
ENGINE = EngineSpec(
    model=DEMO,
    flags=("--max-num-batched-tokens", "1024", "--enforce-eager"),
    block_tokens=32,
    slots=SEATS,
    kv_blocks=320,
)
CAPACITY_S, CAPACITY_RPS, CAPACITY_SEED = 20.0, 10.0, 99

Jcts = dict[tuple[str, float], list[list[float]]]
"""By contender and load: each seed's completion times, in seconds."""


def served_jcts_s(
    engine: SteppedEngine, contender: str, requests: Sequence[TraceRequest], seed: int
) -> list[float]:
    """Each request's completion time under a contender that has served nothing yet, in seconds."""
    run = Run(CONTENDERS[contender], "", SEATS, 0.0, seed)
    return do_run(engine, WallTime(), run=run, requests=requests, own_stops=False).jcts_s


def capacity_rps(engine: SteppedEngine) -> float:
    """Requests a second that stock gets through, all being there at once."""
    backlog = at_once(conversations(CAPACITY_RPS, CAPACITY_S, CAPACITY_SEED))
    warm = backlog[: len(backlog) // 10]
    served_jcts_s(engine, STOCK.name, warm, CAPACITY_SEED - 1)  # what happens only once
    return len(backlog) / max(served_jcts_s(engine, STOCK.name, backlog, CAPACITY_SEED))


def measured(engine: SteppedEngine, rps: float, loads: Sequence[float], seeds: int, seconds: float) -> Jcts:
    """Every contender's completion times, run by run in turns."""
    found: Jcts = {}
    for seed, load in product(range(seeds), loads):
        requests = conversations(load * rps, seconds, seed)
        for contender in CONTENDERS:
            jcts_s = served_jcts_s(engine, contender, requests, seed)
            found.setdefault((contender, load), []).append(jcts_s)
            say(f"load {load:g}, seed {seed}, {contender}: mean JCT {mean(jcts_s):.3f} s of {len(jcts_s)}")
    return found


def cell(found: Jcts, contender: str, load: float) -> dict[str, Any]:
    """What a contender's completion times at a load come to."""
    own, stock = found[contender, load], found[STOCK.name, load]
    by_seed = [mean(jcts_s) for jcts_s in own]
    together = [jct_s for jcts_s in own for jct_s in jcts_s]
    gain = mean(jct_s for jcts_s in stock for jct_s in jcts_s) / mean(together)
    return {**latencies(together), "by_seed": by_seed, "gain": gain}


def main() -> None:
    """Print one JSON object: a cell for each load, with every contender in it."""
    parser = command_line(__doc__)
    stream_options(parser, seconds=20.0, seeds=SEEDS, loads=LOADS)
    arguments = parser.parse_args()
    loads = tuple(arguments.load or LOADS)
    with ENGINE.serving() as engine:
        rps = capacity_rps(engine)
        say(f"capacity {rps:.1f} requests a second")
        found = measured(engine, rps, loads, arguments.seeds, arguments.seconds)
    print(
        json.dumps(
            {
                "measured_on": machine_name(),
                "vllm": vllm_version(),
                "capacity_rps": rps,
                "cells": {
                    f"{load:g}": {name: cell(found, name, load) for name in CONTENDERS} for load in loads
                },
            }
        )
    )


if __name__ == "__main__":
    main()
