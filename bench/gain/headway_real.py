"""What `headway` is worth on the real CPU engine: `python bench/gain/headway_real.py --out DIR --json`.

The demo model answers its own tasks and stops by itself; Poisson arrivals at 0.5, 0.8, 1.0 and 1.2 of capacity, 1,500
requests a cell in three streams, whatever the machine's speed, KV memory for some twenty-four requests. Three kinds of
clients: without targets (`none`), all interactive (`one`), and seven in ten interactive, the others patient (`two`).
The targets follow from what stock does at a light load (`targets.rule`), before anything is compared. Capacity is what
stock gets through when all requests are there at once, at the best of 16, 32 and 64 seats. It is measured again before
every stream: `speeds` says how many times as fast the machine was than at first, least first. All clocks go by that, so
that a load is what it is called and targets ask for as much, on a machine that is half as fast an hour later. What it
does during a stream hits all that are compared alike.

Stock is vLLM's own scheduler on an engine with nothing of Headway in it: chunked prefill, prefix caching and
asynchronous scheduling as vLLM decides. It is swept over `max_num_seqs` first, alone, at load 1, and each metric is
compared with its best value of that sweep. `priority` is vLLM's own `--scheduling-policy priority`, as a user would set
it: the interactive clients have the better priority. `--policy` (default headway) runs a batch as wide as stock's best,
with lengths from `learned`, taught with the half of the packaged tasks that no stream has. With --host-gib it has
so much host memory to swap to, and vLLM a KV connector to serve in every step. All that is compared at a load and seed
serves side by side, each on an engine and by a clock of its own, in turns of a tenth of a second, so that a machine's
drift hits all alike; `stock again` is stock once more: `noise` is how far it is from itself. Stock never sees targets,
so its runs serve all kinds.

Per cell and system: goodput (share of all requests that met all their targets), mean and p99 JCT, TTFT, what was not
answered. `over_stock`, `over_priority`: `gain` (times as good) and `loss` (behind by so much: goodput as a difference,
time as a share) of the means, by seed, and `simulated`, what the simulator promises of the same streams with costs
profiled here, at the speed at which capacity was measured, and answers as long as they are packaged. `headline` has the
gains over stock by kind and load; `losing_cells` names every cell with a gain below 1; `low_load_loss` is the worst
loss to stock at loads up to 0.5. Aims: 1.5 times the goodput and half the mean JCT near saturation, a loss of 2 % at
low load, and the promised mean JCT (`promise`) within 10 % of what came, of stock and of the policy. `machine` is its
processors, their widest instructions, and what one of them multiplies in float32: names alone tell no speed.

`--broken`: the same streams with predictions made useless on purpose, random lengths and step times wrong by 3 times
either way, against `fastserve` and `sarathi`: `behind` the better of the two, aim 0.03 at most; `governor` says what it
went by, from when on. Loads 0.8 and 1.2, without targets and with two classes, unless told otherwise.

About an hour at 35 requests a second of capacity, `--broken` about as long again, and longer on a slower machine; what
is in DIR already is not run again.
Nothing else should run meanwhile. `--markdown` prints the table of docs/headway-real.md in place of the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, markdown_option, out_option, say, stream_options
from bench.figures import GOODPUT, MEAN_JCT, Runs, figures, loss, number, values, versus
from bench.gain.broken_predictions import broken_cell, broken_table, broken_verdicts
from bench.gain.headway_real_runs import (
    SYSTEMS,
    Grid,
    Plan,
    at_capacity,
    governor_of,
    measure,
    memory,
    stock_name,
)
from bench.governor import REFERENCES
from bench.real_runs import CONTROL, PRIORITY, STOCK, Run, TwinEngine, kept, profiled, records
from bench.streams import KINDS, MAX_OUTPUT_TOKENS, NONE, TWO, rule_text
from headway.core.record import Record
from headway.core.slo import Slo
from headway.engine.demo_model import DEMO
from headway.engine.machine import instruction_set, machine_name, matrix_gflops, vllm_version
from headway.errors import ConfigError
from headway.policies.presets import find_preset
from headway.statistics import mean_of_known
from headway.whole_file import write_whole

# ---- figures of a cell -------------------------------------------------------------------------------

LOW_LOAD, SATURATED_LOAD = 0.5, 1.0
"""Low loads are at most the first value, loads near saturation at least the second."""
AIMS = {GOODPUT: 1.5, MEAN_JCT: 2.0}
MOST_LOST = 0.02
MOST_OFF = 0.10
"""Aim for mean JCT: largest relative difference between simulation and measurement."""
OVER = {STOCK.name: "over_stock", PRIORITY.name: "over_priority"}

Cells = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By kind of clients and load."""


@dataclass(frozen=True, slots=True)
class CellRuns:
    """Every system's runs of a cell, and their simulations."""

    real: Mapping[str, Runs]
    simulated: Mapping[str, Runs]


def cell_figures(
    runs: CellRuns, own: str, best: Mapping[str, str], classes: Mapping[Slo, str]
) -> dict[str, Any]:
    """One cell: every system's figures, and `own`'s comparison with stock at stock's `best` seats for each metric.

    `control`: the comparison of stock with itself, in mean JCT.
    """
    found: dict[str, Any] = {"systems": {name: figures(each, classes) for name, each in runs.real.items()}}
    if CONTROL.name in runs.real:
        twice = (runs.real[name].summaries() for name in (CONTROL.name, best[MEAN_JCT]))
        found["control"] = versus(MEAN_JCT, *twice)
    if own not in runs.real:
        return found
    for system, key in OVER.items():
        others = {metric: best[metric] if system == STOCK.name else system for metric in best}
        compared = {metric: other for metric, other in others.items() if other in runs.real}
        if compared:
            found[key] = {metric: _over(runs, metric, own, other) for metric, other in compared.items()}
    return found


def _over(runs: CellRuns, metric: str, own: str, other: str) -> dict[str, Any]:
    """The comparison of two systems, measured and simulated, and the simulation's error."""
    said = versus(metric, *(runs.simulated[name].summaries() for name in (own, other)))
    promised, came = (
        {name: mean_of_known(values(of[name].summaries(), metric)) for name in (other, own)}
        for of in (runs.simulated, runs.real)
    )
    return {
        "against": other,
        **versus(metric, *(runs.real[name].summaries() for name in (own, other))),
        "simulated": {
            "gain": said["gain"],
            "loss": said["loss"],
            "means": promised,
            "off": {name: loss(metric, promised[name], came[name]) for name in promised},
        },
    }


# ---- over all cells ------------------------------------------------------------------------------------


def _comparisons(cells: Cells, key: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for kind, loads in cells.items():
        for load, cell in loads.items():
            for metric, found in cell.get(key, {}).items():
                yield kind, load, metric, found


def verdicts(cells: Cells) -> dict[str, Any]:
    """The gains over stock, whether the aims are reached, and every cell that is lost, to stock or to priority."""
    over_stock = list(_comparisons(cells, OVER[STOCK.name]))
    headline: dict[str, dict[str, dict[str, float | None]]] = {}
    for kind, load, metric, found in over_stock:
        headline.setdefault(kind, {}).setdefault(load, {})[metric] = found["gain"]
    low = [found["loss"] for _, load, _, found in over_stock if float(load) <= LOW_LOAD]
    known = [each for each in low if each is not None]
    return {
        "headline": headline,
        "aims": {metric: _aim(over_stock, metric, least) for metric, least in AIMS.items()},
        "low_load_loss": max(known) if known else None,
        "low_load_aim": MOST_LOST,
        "promise": _promise(over_stock),
        "noise": _noise(cells),
        "losing_cells": [cell for key in OVER.values() for cell in _lost(cells, key)],
    }


def _noise(cells: Cells) -> dict[str, float]:
    """By load: the difference of stock from itself in mean JCT, as a share."""
    found: dict[str, float] = {}
    for loads in cells.values():
        for load, cell in loads.items():
            lost = cell.get("control", {}).get("loss")
            if lost is not None:
                found[load] = max(abs(lost), found.get(load, 0.0))
    return found


def _aim(
    over_stock: list[tuple[str, str, str, Mapping[str, Any]]], metric: str, least: float
) -> dict[str, Any]:
    """Near saturation: the aim, and the values by kind and load."""
    reached = {
        f"{kind}, load {load}": found["gain"]
        for kind, load, name, found in over_stock
        if name == metric and float(load) >= SATURATED_LOAD
    }
    held = [gain is not None and gain >= least for gain in reached.values()]
    return {"at_least": least, "reached": reached, "holds": bool(held) and all(held)}


def _promise(over_stock: list[tuple[str, str, str, Mapping[str, Any]]]) -> dict[str, Any]:
    """By kind and load: the error of the simulated mean JCT, of stock and of the policy, as a share."""
    off = {
        f"{kind}, load {load}": found["simulated"]["off"]
        for kind, load, metric, found in over_stock
        if metric == MEAN_JCT
    }
    held = [share is not None and abs(share) <= MOST_OFF for each in off.values() for share in each.values()]
    return {"at_most": MOST_OFF, "off": off, "holds": bool(held) and all(held)}


def _lost(cells: Cells, key: str) -> list[dict[str, Any]]:
    """The cells with a loss, the worst first."""
    lost = [
        {
            "class": kind,
            "load": float(load),
            "metric": metric,
            **{name: found[name] for name in ("against", "gain", "by_seed", "loss")},
        }
        for kind, load, metric, found in _comparisons(cells, key)
        if found["loss"] is not None and found["loss"] > 0
    ]
    return sorted(lost, key=lambda cell: -cell["loss"])


# ---- the table -----------------------------------------------------------------------------------------

_HEAD = (
    "| clients | load | goodput stock / priority / `{policy}` | gain (by seed) | simulated | mean JCT (s) stock / "
    "priority / `{policy}` | gain (by seed) | promised | p99 JCT (s) stock / `{policy}` | p99 TTFT (s) stock / "
    "`{policy}` |"
)


def markdown(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md, and the sentence before it."""
    policy = found["policy"]
    lines = [
        f"Measured on {found['machine']['processors']} ({found['machine']['instructions']}, "
        f"{found['machine']['gflops']:.0f} GFLOP/s a core), vLLM {found['vllm']}: capacity "
        f"{found['capacity_rps']:.1f} requests a second, and before the streams {_range(found['speeds'])} times as "
        f"many, {found['kv_blocks']} KV blocks, {found['requests']} requests a cell in {found['seeds']} "
        f"stream{'s' * (found['seeds'] > 1)}; stock's best seats: {_seats(found['best_seats'])}. Low-load loss "
        f"{_percent(found['low_load_loss'])}; losing cells: {len(found['losing_cells'])}. Stock a second time is as "
        f"far from itself in mean JCT: {_by_load(found['noise'])}.",
        "",
        _HEAD.format(policy=policy),
        "|" + "---|" * 10,
    ]
    for kind, loads in found["cells"].items():
        lines += [_row(kind, load, cell, policy) for load, cell in loads.items()]
    return "\n".join(lines)


def _range(ascending: Sequence[float]) -> str:
    return f"{ascending[0]:.2f} to {ascending[-1]:.2f}"


def _seats(best: Mapping[str, Mapping[str, int]]) -> str:
    each = [f"{kind} {metric} {seats}" for kind, of in best.items() for metric, seats in of.items()]
    return ", ".join(each)


def _by_load(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{_percent(share)} at load {load}" for load, share in shares.items()) or "not measured"


def _row(kind: str, load: str, cell: Mapping[str, Any], policy: str) -> str:
    systems, stock = cell["systems"], cell.get("over_stock", {})

    def of(metric: str, compared: str, *, priority: bool = True) -> str:
        """A metric of stock (at its best seats for the compared one), of priority, and of the policy."""
        if compared not in stock:
            return "–"
        names = [stock[compared]["against"], *([PRIORITY.name] if priority else []), policy]
        return " / ".join(number(systems[name][metric]) for name in names if name in systems)

    main = GOODPUT if GOODPUT in stock else MEAN_JCT
    return (
        f"| {kind} | {load} | {of(GOODPUT, GOODPUT)} | {_gain(stock, GOODPUT)} | {of(MEAN_JCT, MEAN_JCT)} | "
        f"{_gain(stock, MEAN_JCT)} | {of('p99_jct_s', main, priority=False)} | "
        f"{of('p99_ttft_s', main, priority=False)} |"
    )


def _gain(stock: Mapping[str, Any], metric: str) -> str:
    """Two cells of the table: the gain with its range by seed, and the simulated gain or means."""
    if metric not in stock:
        return "– | –"
    found = stock[metric]
    seeds = [each for each in found["by_seed"] if each is not None]
    ends = f" ({min(seeds):.2f} to {max(seeds):.2f})" if seeds else ""
    said = found["simulated"]
    promised = " / ".join(map(number, said["means"].values())) if metric == MEAN_JCT else number(said["gain"])
    return f"{number(found['gain'])}{ends} | {promised}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.2)
BROKEN_LOADS, BROKEN_KINDS = (0.8, 1.2), (NONE, TWO)
SEEDS, REQUESTS = 3, 1_500
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
                name: Runs([simulated_records(plan, engine, kind, run) for run in runs])
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


def simulated_engine(plan: Plan, profile_s: float) -> TwinEngine:
    """The engine on a virtual clock, with costs measured now unless stored, at the speed for which loads are
    defined.
    """
    found, costs = plan.prepared, profiled(plan.out / "cost.json", plan.engine, profile_s)
    engine = TwinEngine(plan.engine, costs, found.num_blocks, found.tokens_a_step, found.asynchronous)
    return at_capacity(engine, found)


def simulated_records(plan: Plan, engine: TwinEngine, kind: str, run: Run) -> list[Record]:
    """The same run on a virtual clock."""
    requests = plan.stream(kind, run.load, run.seed)
    return engine.records(run, requests, max_output_tokens=MAX_OUTPUT_TOKENS)


def facts(plan: Plan, grid: Grid) -> dict[str, Any]:
    """What was compared, and on what."""
    found = plan.prepared
    runs = {run for cell in grid.values() for runs in cell.values() for run in runs}
    speeds = sorted({kept(run, plan.out).speed for run in runs})
    return {
        "machine": {
            "processors": machine_name(),
            "instructions": instruction_set(),
            "gflops": matrix_gflops(),
        },
        "vllm": vllm_version(),
        "model": DEMO,
        "policy": plan.policy,
        "seeds": plan.seeds,
        "requests": plan.requests_a_stream * plan.seeds,
        "capacity_rps": found.capacity_rps,
        "speeds": speeds,
        "asynchronous": found.asynchronous,
        "kv_blocks": found.num_blocks,
        "host_gib": plan.engine.host_gib,
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
    """The command's options."""
    parser = command_line(__doc__)
    out_option(parser)
    markdown_option(parser, "the table of docs/headway-real.md instead")
    parser.add_argument(
        "--broken", action="store_true", help="predictions made useless, against fastserve and sarathi"
    )
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        help=f"of a cell, in its streams together (default {REQUESTS})",
    )
    stream_options(parser, seeds=SEEDS, loads=LOADS, profile_s=60.0)
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
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    if arguments.policy in (PRIORITY.name, *(REFERENCES if arguments.broken else ())):
        raise ConfigError(
            f"--policy is {arguments.policy!r}, which it would be compared with; accepted: another preset"
        )
    for name, least in (("requests", 1), ("seeds", 1), ("kv_blocks", 0), ("host_gib", 0)):
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
        requests_a_cell=arguments.requests,
        seeds=arguments.seeds,
        loads=loads,
        kinds=_once(arguments.kind or (BROKEN_KINDS if arguments.broken else KINDS)),
        systems=_once(arguments.system or SYSTEMS),
        policy=arguments.policy,
        engine=memory(arguments.kv_blocks, arguments.host_gib),
    )


def _once(values: Iterable[_Value]) -> tuple[_Value, ...]:
    """The values without repetitions."""
    return tuple(dict.fromkeys(values))


def main() -> None:
    """Print one JSON object, or the table."""
    arguments = options().parse_args()
    plan = plan_of(arguments)
    plan.open()
    say(f"capacity: {plan.prepared.capacity_rps:.1f} requests a second")
    measure(plan, plan.sweep())
    found = report_broken(plan) if arguments.broken else report(plan, arguments.profile_seconds)
    name = "broken" if arguments.broken else "headway-real"
    write_whole(plan.out / f"{name}.json", json.dumps(found).encode() + b"\n")
    table = broken_table if arguments.broken else markdown
    print(table(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
