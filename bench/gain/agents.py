"""Agent programs in a closed loop: `python bench/gain/agents.py --json [--data FOLDER] [--svg FILE]`.

Recorded coding-agent sessions, simulated on an H100 with Llama-3.1-8B: a turn comes when the answer before it has ended
and its tool has run for as long as recorded. A program is what a session asks between two pauses of over two minutes,
4 to 24 turns that fit the model. Those of a seed hold three times as many tokens as KV memory does, and begin within
two minutes. Compared: `vllm`, `vllm` behind program scheduling as vllm-router's (`program_ttl.py`), and `headway`; the
first and the last also with a store of 200 GiB for KV on the host. Per contender: mean and p99 of a program's
completion, the share of prompt tokens that were found, and `gain`, the first's mean over its own. `--svg` draws them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, stream_options
from bench.gain.program_ttl import behind_program_ttl
from bench.gain.regret_workloads import DATA, MACHINES, MAIN_AGENT, prefixes_of, rows_of, trace_blocks
from headway.errors import ConfigError
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.simulation import run_info, simulate_policy
from headway.results import Summary, summarize
from headway.results.svg import PALETTE, draw
from headway.sim.limits import KvTier
from headway.sim.simulation import System
from headway.traces import TraceRequest
from headway.whole_file import write_whole

MACHINE = MACHINES["h100-llama-8b"]
STOCK, ROUTER, OURS = "vllm", "vllm, programs as vllm-router", "headway"
CONTENDERS = ((STOCK, 0.0), (ROUTER, 0.0), (OURS, 0.0), (STOCK, 200.0), (OURS, 200.0))
LONGEST_PAUSE_S = 120.0
LEAST_TURNS, MOST_TURNS = 4, 24
FIRST_SEED, SEEDS = 11, 5
"""Seeds other than those on which rules were chosen."""
SHARE_HELD = 1 / 3
BEGIN_S = 120.0
"""Programs begin within this many seconds."""


@dataclass(frozen=True, slots=True)
class AgentRun:
    """One draw of programs under one policy, with this host memory for KV beside the device."""

    policy: str
    host_gib: float
    seed: int

    @property
    def contender(self) -> str:
        """The contender's name."""
        return f"{self.policy}, {self.host_gib:g} GiB on the host" if self.host_gib else self.policy


def system() -> System:
    """The engine; KV blocks of 64 tokens, to simulate long prompts quickly."""
    costs = MACHINE.system().calibration
    limits = engine_limits(EngineSizes(block_size=64), MACHINE.hardware, costs)
    return System(limits=limits, calibration=costs)


def programs(data: Path) -> list[list[TraceRequest]]:
    """All programs of the recording, each as a list of turns with think times. Raises ConfigError without it."""
    path = data / "agentic_claude_code.csv.gz"
    if not path.is_file():
        raise ConfigError(f"{path} is not there; accepted: a folder with that recording, by --data")
    prefixes = prefixes_of(path.with_name("agentic_claude_code_prefix.jsonl.gz"))
    numbers: dict[str, int] = {}
    found, begun = [], list[TraceRequest]()
    for row in rows_of(path):
        if row["agent"] != MAIN_AGENT or not int(row["output_tokens"]):
            continue
        session, think_s = row["session"], float(row["think_s"] or 0.0)
        tokens = int(row["input_tokens"]), int(row["output_tokens"])
        if begun and (begun[0].session != session or think_s > LONGEST_PAUSE_S or len(begun) == MOST_TURNS):
            found.append(begun)
            begun = []
        runs = prefixes[session, int(row["seq"])]
        blocks = trace_blocks(numbers.setdefault(session, len(numbers)), runs, tokens[0])
        if sum(tokens) <= MACHINE.longest_tokens:
            begun.append(
                TraceRequest(row["seq"], 0.0, *tokens, session=session, think_s=think_s, prefix_blocks=blocks)
            )
    return [turns for turns in [*found, begun] if len(turns) >= LEAST_TURNS]


def drawn(
    known: Sequence[Sequence[TraceRequest]], kv_tokens: int, seed: int, held: float = SHARE_HELD
) -> list[TraceRequest]:
    """Programs that begin at random times; KV memory holds the share `held` of their tokens."""
    rng = Random(seed)
    left, chosen = kv_tokens / held, list[int]()
    for number in rng.sample(range(len(known)), len(known)):
        left -= known[number][-1].input_tokens
        if left < 0:
            break
        chosen.append(number)
    requests = []
    for number in chosen:
        begin_s = rng.uniform(0, BEGIN_S)
        requests += [
            replace(turn, id=f"{number}-{place}", session=f"{number}", arrival_s=begin_s + place)
            for place, turn in enumerate(known[number])
        ]
    return sorted(requests, key=lambda request: request.arrival_s)


def measured(run: AgentRun, data: Path, held: float) -> Summary:
    """The summary of a run."""
    whole = system()
    requests = drawn(programs(data), whole.limits.num_blocks * whole.limits.block_size, run.seed, held)
    served = replace(whole, kv_tier=KvTier(gib=run.host_gib) if run.host_gib else None)
    policy = behind_program_ttl if run.policy == ROUTER else run.policy
    result = simulate_policy(requests, policy, served, max_output_tokens=MACHINE.longest_tokens)
    return summarize(result.records, run=run_info(result))


def cell(found: Sequence[Summary], stock: Sequence[Summary]) -> dict[str, Any]:
    """One contender's figures over the seeds, compared with `stock`."""
    mean_s = fmean(each.mean_program_s or 0.0 for each in found)
    return {
        "programs": sum(each.programs or 0 for each in found),
        "mean_program_s": mean_s,
        "p99_program_s": fmean(each.p99_program_s or 0.0 for each in found),
        "prefix_hit_rate": fmean(each.prefix_hit_rate or 0.0 for each in found),
        "by_seed": [each.mean_program_s for each in found],
        "gain": fmean(each.mean_program_s or 0.0 for each in stock) / mean_s,
    }


def picture(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """Mean and p99 of a program under each contender, as an SVG element."""
    names = list(cells)[::-1]

    def paint(axes: Axes) -> None:
        for colour, key, offset in ((PALETTE[0], "mean_program_s", 0.2), (PALETTE[1], "p99_program_s", -0.2)):
            places = [index + offset for index in range(len(names))]
            axes.barh(places, [cells[name][key] for name in names], height=0.4, color=colour)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("seconds of a program, tools included")

    legend = [(Patch(color=colour), name) for colour, name in zip(PALETTE, ("mean", "p99"), strict=False)]
    return draw("Programs end sooner where their KV waits for them", (9.0, 3.0), paint, legend)


def main() -> None:
    """Print one JSON object."""
    parser = command_line(__doc__)
    stream_options(parser, seeds=SEEDS)
    parser.add_argument("--data", type=Path, default=DATA, help="recorded traces")
    told = "share of the programs' tokens that KV memory holds (default: a third)"
    parser.add_argument("--held", type=float, default=SHARE_HELD, help=told)
    parser.add_argument("--svg", type=Path, help="file for a picture of all contenders")
    jobs_option(parser)
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    todo = [AgentRun(*contender, seed) for seed, contender in product(seeds, CONTENDERS)]
    found = all_done(partial(measured, data=arguments.data, held=arguments.held), todo, arguments.jobs)
    of: dict[str, list[Summary]] = {}
    for run in todo:
        of.setdefault(run.contender, []).append(found[run])
    stock = next(iter(of.values()))
    cells = {contender: cell(each, stock) for contender, each in of.items()}
    if arguments.svg is not None:
        write_whole(arguments.svg, picture(cells).encode())
    measured_on = {"measured_on": "simulated", "hardware": MACHINE.hardware, "model": MACHINE.model}
    print(json.dumps({**measured_on, "cells": cells}))


if __name__ == "__main__":
    main()
