"""What `headway` is worth on the real CPU engine: `python bench/headway_real.py --out DIR --json`.

The demo model answers its own tasks and stops by itself; Poisson arrivals at 0.5, 0.8, 1.0 and 1.2 of capacity, three
streams each, KV memory for some twenty-four requests. Three kinds of clients: without targets (`none`), all
interactive (`one`), and seven in ten interactive, the others patient (`two`). The targets follow from what stock does
at a light load (`targets.rule`), before anything is compared. Capacity is what stock gets through when all requests are
there at once, at the best of 16, 32 and 64 seats. It is measured again before every stream: `speeds` says how many
times as fast the machine was than at first, least first. All clocks go by that, so that a load is what it is called
and targets ask for as much, on a machine that is half as fast an hour later. What it does during a stream hits all
that are compared alike.

Stock is vLLM's own scheduler on an engine with nothing of Headway in it: chunked prefill, prefix caching and
asynchronous scheduling as vLLM decides. It is swept over `max_num_seqs` first, alone, at load 1, and each metric is
compared with its best value of that sweep. `priority` is vLLM's own `--scheduling-policy priority`, as a user would set
it: the interactive clients have the better priority. `--policy` (default headway) runs a batch as wide as stock's best,
with lengths predicted by `hash`, taught with the half of the packaged tasks that no stream has. With --host-gib it has
so much host memory to swap to, and vLLM a KV connector to serve in every step. All that is compared at a load and seed
serves side by side, each on an engine and by a clock of its own, in turns of a tenth of a second, so that a machine's
drift hits all alike; `stock again` is stock once more: `noise` is how far it is from itself. Stock never sees targets,
so its runs serve all kinds.

Per cell and system: goodput (share of all requests that met all their targets), mean and p99 JCT, TTFT, what was not
answered. `over_stock`, `over_priority`: `gain` (times as good) and `loss` (behind by so much: goodput as a difference,
time as a share) of the means, by seed, and `simulated`, the gain that the simulator predicts with costs profiled here,
at the speed at which capacity was measured, and answers as long as they are packaged. `headline` has the gains over
stock by kind and load; `losing_cells` names every cell with a gain below 1; `low_load_loss` is the worst loss to stock
at loads up to 0.5. Aims: 1.5 times the goodput and half the mean JCT near saturation, a loss of 2 % at low load.

`--broken`: the same streams with predictions made useless on purpose, random lengths and step times wrong by 3 times
either way, against `fastserve` and `sarathi`: `behind` the better of the two, aim 0.03 at most; `governor` says what it
went by, from when on. Loads 0.8 and 1.2, without targets and with two classes, unless told otherwise.

About an hour with three seeds on 2 cores, `--broken` about as long again; what is in DIR already is not run again.
Nothing else should run meanwhile. `--markdown` prints the table of docs/headway-real.md in place of the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.broken_ways import REFERENCES, broken_cell, broken_table, broken_verdicts
from bench.client_classes import KINDS, NONE, TWO, rule_text
from bench.engine_costs import profiled
from bench.headway_real_engine import PRIORITY, Memory, Run, governor_of, kept, records
from bench.headway_real_figures import CellRuns, cell_figures, markdown, verdicts
from bench.headway_real_measured import measure, prepare
from bench.headway_real_plan import SYSTEMS, Grid, Plan, stock_name
from bench.headway_real_simulated import Engine
from bench.progress import say
from bench.versus import Runs
from headway.engine.demo_model import DEMO
from headway.engine.machine import machine_name, vllm_version
from headway.errors import ConfigError, HeadwayError
from headway.policies.presets import find_preset
from headway.predict.cost_file import load_cost_file
from headway.whole_file import write_whole

LOADS = (0.5, 0.8, 1.0, 1.2)
BROKEN_LOADS, BROKEN_KINDS = (0.8, 1.2), (NONE, TWO)
SEEDS, SECONDS = 3, 30.0
KV_BLOCKS = 96
_Value = TypeVar("_Value")


def real_runs(plan: Plan, kind: str, runs: Sequence[Run]) -> Runs:
    """The records of these runs, judged by the targets of a kind of clients."""
    return Runs([records(plan.stream(kind, run.load, run.seed), kept(run, plan.out).served) for run in runs])


def report(plan: Plan, profile_s: float) -> dict[str, Any]:
    """All figures; runs what is missing."""
    grid = plan.grid()
    measure(plan, [run for cell in grid.values() for runs in cell.values() for run in runs])
    engine = simulated_engine(plan, profile_s)
    cells: dict[str, dict[str, Any]] = {kind: {} for kind in plan.kinds}
    for (kind, load), cell in grid.items():
        say(f"simulating clients {kind!r} at load {load:g}")
        found = CellRuns(
            real={name: real_runs(plan, kind, runs) for name, runs in cell.items()},
            simulated={
                name: Runs([engine.records(run, plan.stream(kind, load, run.seed)) for run in runs])
                for name, runs in cell.items()
            },
        )
        best = {metric: stock_name(seats) for metric, seats in plan.best(kind).items()}
        cells[kind][f"{load:g}"] = cell_figures(found, plan.policy, best, plan.targets.classes)
    return {**facts(plan, grid), **verdicts(cells), "cells": cells}


def report_broken(plan: Plan) -> dict[str, Any]:
    """All figures of `--broken`; runs what is missing."""
    grid = plan.broken_grid()
    measure(plan, [run for cell in grid.values() for runs in cell.values() for run in runs])
    cells: dict[str, dict[str, Any]] = {kind: {} for kind in plan.kinds}
    for (kind, load), cell in grid.items():
        real = {name: real_runs(plan, kind, runs) for name, runs in cell.items()}
        said = {
            name: governor_of([kept(run, plan.out) for run in runs])
            for name, runs in cell.items()
            if name not in REFERENCES
        }
        metric = next(iter(plan.best(kind)))
        cells[kind][f"{load:g}"] = broken_cell(metric, real, said, plan.targets.classes)
    return {**facts(plan, grid), **broken_verdicts(cells), "cells": cells}


def simulated_engine(plan: Plan, profile_s: float) -> Engine:
    """The engine on a virtual clock, its costs measured now unless they are kept, and as fast as loads say."""
    memory, found = plan.memory, plan.prepared
    file = profiled(plan.out / "cost.json", DEMO, memory.flags(), memory.settings(), profile_s)
    costs = load_cost_file(file).calibration()
    engine = Engine(costs, memory, found.num_blocks, found.tokens_a_step, found.asynchronous)
    return engine.at_capacity(found)


def facts(plan: Plan, grid: Grid) -> dict[str, Any]:
    """What was compared, and on what."""
    found = plan.prepared
    runs = {run for cell in grid.values() for runs in cell.values() for run in runs}
    speeds = sorted({kept(run, plan.out).speed for run in runs})
    return {
        "measured_on": machine_name(),
        "vllm": vllm_version(),
        "model": DEMO,
        "policy": plan.policy,
        "seeds": plan.seeds,
        "seconds": plan.seconds,
        "capacity_rps": found.capacity_rps,
        "speeds": speeds,
        "asynchronous": found.asynchronous,
        "kv_blocks": found.num_blocks,
        "host_gib": plan.memory.host_gib,
        "light": {"p50_ttft_s": found.light.p50_ttft_s, "mean_tbt_s": found.light.mean_tbt_s},
        "targets": {"rule": rule_text(), **plan.targets.to_dict()},
        "stock_by_seats": {
            kind: {
                seats: {metric: getattr(summary, metric) for metric in plan.best(kind)}
                for seats, summary in swept.items()
            }
            for kind, swept in plan.swept.items()
        },
        "best_seats": {kind: plan.best(kind) for kind in plan.kinds},
    }


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for what is measured; resumed if there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/headway-real.md instead")
    parser.add_argument(
        "--broken", action="store_true", help="predictions made useless, against fastserve and sarathi"
    )
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of arrivals a run (default {SECONDS:g})"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"streams of each load (default {SEEDS})")
    parser.add_argument("--load", type=float, action="append", help=f"of capacity (default {LOADS})")
    parser.add_argument(
        "--class", dest="kind", choices=KINDS, action="append", help="of clients (default: all)"
    )
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="default: all")
    parser.add_argument(
        "--kv-blocks",
        type=int,
        default=KV_BLOCKS,
        help=f"of 32 tokens (default {KV_BLOCKS}); 0: as many as vLLM takes",
    )
    parser.add_argument(
        "--host-gib", type=float, default=0.0, help="of host memory for the policy's KV (default 0: none)"
    )
    parser.add_argument(
        "--profile-seconds", type=float, default=60.0, help="for the simulator's costs (default 60)"
    )
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    if arguments.policy in (PRIORITY.name, *(REFERENCES if arguments.broken else ())):
        raise ConfigError(
            f"--policy is {arguments.policy!r}, which it would be compared with; accepted: another preset"
        )
    for name, least in (("seconds", 1), ("seeds", 1), ("kv_blocks", 0), ("host_gib", 0)):
        if getattr(arguments, name) < least:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {getattr(arguments, name)}; accepted: {least} or more"
            )
    if arguments.broken and arguments.system:
        raise ConfigError("--broken has systems of its own; accepted: it without --system")
    loads = _once(arguments.load or (BROKEN_LOADS if arguments.broken else LOADS))
    if min(loads) <= 0:
        raise ConfigError(f"--load is {min(loads):g}; accepted: more than 0")
    return Plan(
        out=arguments.out,
        seconds=arguments.seconds,
        seeds=arguments.seeds,
        loads=loads,
        kinds=_once(arguments.kind or (BROKEN_KINDS if arguments.broken else KINDS)),
        systems=_once(arguments.system or SYSTEMS),
        policy=arguments.policy,
        memory=Memory(arguments.kv_blocks, arguments.host_gib),
    )


def _once(values: Iterable[_Value]) -> tuple[_Value, ...]:
    """Each of them once, however often it was said."""
    return tuple(dict.fromkeys(values))


def main() -> int:
    """Print one JSON object, or the table; 2 for an option that is not accepted."""
    arguments = options().parse_args()
    try:
        plan = plan_of(arguments)
        plan.out.mkdir(parents=True, exist_ok=True)
        prepare(plan)
        measure(plan, plan.sweep())
        found = report_broken(plan) if arguments.broken else report(plan, arguments.profile_seconds)
    except HeadwayError as error:
        say(f"headway_real: {error}")
        return 2
    name = "broken" if arguments.broken else "headway-real"
    write_whole(plan.out / f"{name}.json", json.dumps(found).encode() + b"\n")
    table = broken_table if arguments.broken else markdown
    print(table(found) if arguments.markdown else json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
