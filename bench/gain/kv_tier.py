"""What KV offloading is worth: `python bench/gain/kv_tier.py --json [--data FOLDER]`.

Simulated: an H100 with Llama-3.1-8B, without a KV tier and with one of 200 GiB, whose link is that to host memory
(51 GB/s), a slow one (2 GiB/s, 5 ms), or takes no time. Workloads: `agentic` (recorded coding-agent sessions from
`--data`, 300 s at 0.5 and 1 times the rate at which stock gets through a queue of them) and `conversations` (generated:
eight turns about a minute apart, each with 2,000 new tokens on average, 960 requests). The first tenth of a window is
not measured. Per workload, load, policy and tier: mean JCT, mean time to the first token, and the shares of prompt
tokens that were found on the device or loaded. `--markdown` prints a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option
from bench.figures import markdown_table
from bench.gain.regret_workloads import DATA
from bench.gain.routers import MACHINE, WARM_UP_SHARE, capacity_rps, window
from headway.lab.simulation import simulate_policy
from headway.results import summarize
from headway.sim.limits import KvTier
from headway.sim.simulation import System
from headway.traces import TraceRequest, load_trace

RECORDED, GENERATED = "agentic", "conversations"
LOADS = {RECORDED: (0.5, 1.0), GENERATED: (1.0,)}
CONVERSATIONS = (
    "gen:poisson:rate=0.5/input=lognormal:mean=2000,sigma=1,max=16000/output=sharegpt/count=120"
    "/turns=8/think=60"
)
POLICIES = ("vllm", "headway")
TIERS = {
    "none": None,
    "host link": KvTier(gib=200.0),
    "2 GiB/s": KvTier(gib=200.0, gib_per_s=2.0, latency_ms=5.0),
    "no time": KvTier(gib=200.0, gib_per_s=inf, latency_ms=0.0),
}


@dataclass(frozen=True, slots=True)
class TierRun:
    """One workload at one load under one policy, with one tier."""

    workload: str
    load: float
    policy: str
    tier: str


def system(tier: KvTier | None) -> System:
    """The engine, without host memory for the policy."""
    whole = MACHINE.system()
    return replace(whole, limits=replace(whole.limits, host_blocks=0), kv_tier=tier)


def requests_of(workload: str, load: float, data: Path, capacity: float) -> Sequence[TraceRequest]:
    """The requests of a window."""
    if workload == RECORDED:
        return window(RECORDED, data, load * capacity, seed=0)
    return load_trace(CONVERSATIONS)


def measured(run: TierRun, data: Path, capacity: float) -> dict[str, float]:
    """Figures of a run over the requests that came after the warm-up; the shares are over all requests."""
    requests = requests_of(run.workload, run.load, data, capacity)
    whole = system(TIERS[run.tier])
    result = simulate_policy(requests, run.policy, whole, max_output_tokens=MACHINE.longest_tokens)
    warm_s = WARM_UP_SHARE * requests[-1].arrival_s
    summary = summarize([record for record in result.records if record.arrival_s >= warm_s])
    [totals] = result.totals.values()
    prompts = sum(request.input_tokens for request in requests)
    loaded = totals.swapped_in_blocks * whole.limits.block_size
    return {
        "mean_jct_s": summary.mean_jct_s or 0.0,
        "mean_ttft_s": summary.mean_ttft_s or 0.0,
        "found": (totals.cached_tokens - loaded) / prompts,
        "loaded": loaded / prompts,
    }


def report(workloads: Sequence[str], policies: Sequence[str], data: Path, jobs: int) -> dict[str, Any]:
    """The figures of all runs."""
    capacity = capacity_rps(RECORDED, data)[1] if RECORDED in workloads else 0.0
    todo = [
        TierRun(workload, load, policy, tier)
        for workload in workloads
        for load, policy, tier in product(LOADS[workload], policies, TIERS)
    ]
    found = all_done(partial(measured, data=data, capacity=capacity), todo, jobs)
    return {
        "measured_on": "simulated",
        "hardware": MACHINE.hardware,
        "model": MACHINE.model,
        "capacity_rps": {RECORDED: capacity},
        "cells": {
            f"{workload}, {load:g}, {policy}": {
                tier: found[TierRun(workload, load, policy, tier)] for tier in TIERS
            }
            for workload in workloads
            for load, policy in product(LOADS[workload], policies)
        },
    }


def markdown(found: Mapping[str, Any]) -> str:
    """A table: mean JCT, mean time to the first token, and the shares found and loaded."""

    def shown(each: Mapping[str, float]) -> str:
        found_and_loaded = f"{each['found']:.0%} + {each['loaded']:.0%}"
        return f"{each['mean_jct_s']:.3g} / {each['mean_ttft_s']:.2g} s, {found_and_loaded}"

    rows = [(cell, *(shown(row[tier]) for tier in TIERS)) for cell, row in found["cells"].items()]
    return markdown_table(("workload, load, policy", *TIERS), rows)


def main() -> None:
    """Print one JSON object, or a table."""
    parser = command_line(__doc__)
    markdown_option(parser)
    parser.add_argument("--workloads", default=f"{RECORDED},{GENERATED}", help="A,B (default: both)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="A,B,... (default: vllm,headway)")
    parser.add_argument("--data", type=Path, default=DATA, help="recorded traces")
    jobs_option(parser)
    arguments = parser.parse_args()
    workloads, policies = arguments.workloads.split(","), arguments.policies.split(",")
    found = report(workloads, policies, arguments.data, arguments.jobs)
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
