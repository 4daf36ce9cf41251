"""Routers over several instances: `python bench/gain/routers.py --json [--data FOLDER]`.

Simulated: four H100s with Llama-3.1-8B under stock's order (`--policy`), 300 s of requests at 0.5 and 1 times what four
engines get through of them when all are queued at one (`bench/gain/regret.py`'s capacity). Workloads: `agentic`
(recorded coding-agent sessions, whose prompts repeat the ones before), `azure-conv` (recorded, without prefixes), both
from `--data`; `conversations` (five turns each), `hot` (eight applications, the most popular with half of all requests,
each with 4,096 tokens of its own before every prompt), `chat` (turns with their history, whose prefixes are not told).
Windows of short requests are as long as 8,000 take to come; the first tenth of a window is not measured. Per workload,
load and router, means of three seeds: mean JCT, mean and p99 time to the first token, and the share of prompt tokens
that caches held. 120 runs; `--markdown` prints a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option, say
from bench.figures import markdown_table, means
from bench.gain.regret_workloads import DATA, MACHINES, ServedWorkload, known_workloads
from bench.streams import conversations
from headway.core.record import Record
from headway.lab.processes import in_processes
from headway.lab.simulation import simulate_policy
from headway.results import summarize
from headway.results.metrics import Summary
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, at_once

MACHINE = MACHINES["h100-llama-8b"]
INSTANCES = 4
WINDOW_S, MOST_REQUESTS = 300.0, 8_000
"""A window ends after this many seconds, or earlier after this many requests."""
WARM_UP_SHARE = 0.1
LOADS, SEEDS = (0.5, 1.0), 3
ROUTERS = ("round-robin", "power-of-two", "least-work", "cache-aware")
APPLICATIONS, OWN_BLOCKS = 8, 8
BACKLOG_SEED = 1_000
"""Seed of the backlog, different from the windows' seeds."""


@dataclass(frozen=True, slots=True)
class RouterRun:
    """One window under one router; `load` is a share of `capacity_rps`, one engine's capacity."""

    workload: str
    load: float
    router: str
    seed: int
    policy: str
    capacity_rps: float


def hot(rate_rps: float, seconds: float, seed: int) -> list[TraceRequest]:
    """Requests that begin with one of a few long texts: a half, a sixth, a twelfth of them, and so on."""
    rng, at_s = Random(seed), 0.0
    requests: list[TraceRequest] = []
    while (at_s := at_s + rng.expovariate(rate_rps)) < seconds:
        which = min(int(rng.paretovariate(1.0)), APPLICATIONS)
        requests.append(
            TraceRequest(
                id=f"{len(requests)}",
                arrival_s=at_s,
                input_tokens=OWN_BLOCKS * MOONCAKE_BLOCK_TOKENS + rng.randint(64, 900),
                output_tokens=rng.randint(20, 380),
                prefix_blocks=tuple(range(which * OWN_BLOCKS, (which + 1) * OWN_BLOCKS)),
            )
        )
    return requests


OWN = {"conversations": conversations, "hot": hot}
RECORDED = ("agentic", "azure-conv")
WORKLOADS = (*RECORDED, *OWN, "chat")


def window(workload: str, data: Path, rate_rps: float, seed: int) -> Sequence[TraceRequest]:
    """The requests of a window, without tenants."""
    window_s = min(WINDOW_S, MOST_REQUESTS / rate_rps)
    if workload in OWN:
        return OWN[workload](rate_rps, window_s, seed)
    requests = ServedWorkload(workload, MACHINE, data).window(rate_rps, window_s, seed)
    return [replace(request, tenant="") for request in requests]


def served(requests: Sequence[TraceRequest], run: RouterRun, instances: int) -> tuple[list[Record], int]:
    """All records, and the prompt tokens that prefix caches held."""
    system = replace(MACHINE.system(), instances=instances, router=run.router)
    result = simulate_policy(requests, run.policy, system, max_output_tokens=MACHINE.longest_tokens)
    return result.records, result.total("cached_tokens")


def capacity_rps(workload: str, data: Path) -> tuple[str, float]:
    """Name and capacity of a workload: requests a second of one engine under stock's order with all requests queued."""
    if workload in OWN:
        backlog = at_once(OWN[workload](10.0, WINDOW_S, BACKLOG_SEED))
    else:
        backlog = list(ServedWorkload(workload, MACHINE, data).backlog())
    records, _ = served(
        backlog, RouterRun(workload, 1.0, "round-robin", BACKLOG_SEED, "vllm", 0.0), instances=1
    )
    return workload, len(backlog) / max(record.finished_s or 0.0 for record in records)


def measured(run: RouterRun, data: Path) -> dict[str, float]:
    """Figures of a run over the requests that came after the warm-up; `cached` is over all."""
    requests = window(run.workload, data, run.load * INSTANCES * run.capacity_rps, run.seed)
    records, cached_tokens = served(requests, run, INSTANCES)
    warm_s = WARM_UP_SHARE * requests[-1].arrival_s
    summary = summarize([record for record in records if record.arrival_s >= warm_s])
    prompts = sum(request.input_tokens for request in requests)
    return {**_latencies(summary), "cached": cached_tokens / prompts}


def _latencies(summary: Summary) -> dict[str, float]:
    names = ("mean_jct_s", "mean_ttft_s", "p99_ttft_s")
    return {name: getattr(summary, name) or 0.0 for name in names}


def _told(run: RouterRun, figures: Mapping[str, float]) -> str:
    shown = f"seed {run.seed}, {run.workload}, {run.load:g}, {run.router}"
    return f"{shown}: mean JCT {figures['mean_jct_s']:.3g} s"


def report(workloads: Iterable[str], policy: str, data: Path, jobs: int) -> dict[str, Any]:
    """The figures of all runs."""
    capacities = dict(in_processes(partial(capacity_rps, data=data), list(workloads), jobs))
    say(", ".join(f"{name} {rps:.3g} requests a second" for name, rps in capacities.items()))
    todo = [
        RouterRun(workload, load, router, seed, policy, capacities[workload])
        for seed, workload, load, router in product(range(SEEDS), workloads, LOADS, ROUTERS)
    ]
    found = all_done(partial(measured, data=data), todo, jobs, _told)
    return {
        "measured_on": "simulated",
        "instances": INSTANCES,
        "hardware": MACHINE.hardware,
        "model": MACHINE.model,
        "policy": policy,
        "capacity_rps": capacities,
        "cells": {
            f"{workload}, {load:g}": {
                router: means([found[run] for run in todo if _cell(run) == (workload, load, router)])
                for router in ROUTERS
            }
            for workload, load in product(workloads, LOADS)
        },
    }


def _cell(run: RouterRun) -> tuple[str, float, str]:
    return run.workload, run.load, run.router


def markdown(found: Mapping[str, Any]) -> str:
    """A table: mean JCT, mean time to the first token, and what caches held."""

    def shown(each: Mapping[str, float]) -> str:
        return f"{each['mean_jct_s']:.3g} / {each['mean_ttft_s']:.2g} s, {each['cached']:.0%}"

    rows = [
        (f"`{cell.replace(', ', '`, ')}", *(shown(row[router]) for router in ROUTERS))
        for cell, row in found["cells"].items()
    ]
    return markdown_table(("workload, load", *(f"`{name}`" for name in ROUTERS)), rows)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = command_line(__doc__)
    markdown_option(parser)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="A,B,... (default: all there are)")
    parser.add_argument("--policy", default="vllm", help="of every instance (default: vllm)")
    parser.add_argument("--data", type=Path, default=DATA, help="recorded traces")
    jobs_option(parser)
    arguments = parser.parse_args()
    there = (*known_workloads(arguments.data), *OWN)
    workloads = [name for name in arguments.workloads.split(",") if name in there]
    if left_out := sorted(set(arguments.workloads.split(",")) - set(workloads)):
        say(f"left out, as they are not there: {', '.join(left_out)}")
    found = report(workloads, arguments.policy, arguments.data, arguments.jobs)
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
