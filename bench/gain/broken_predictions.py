"""A policy with useless predictions beside those that need none: `python bench/gain/broken_predictions.py --json`.

Simulated, on the engines and with the four clients of `bench/gain/predicted.py`, without targets and with two classes
of clients (seven in ten interactive, the others patient; targets by a rule from `vllm` at a fifth of capacity).
`--policy` (default headway) is told lengths that are random and sure of themselves, step times wrong by 3 times
either way, or both; beside these honest ones (Kendall's tau 0.8). Step times stay wrong however much is learned.

Per system, kind of clients and load: mean JCT without targets, else goodput (the share of all requests that met all
their targets), and `behind` the better of `fastserve` and `sarathi` (JCT as a share, goodput as a difference); aim 0.03
at most. `governor`: what the policy went by for which share of the time (looked at as each request ends), its steps,
and when they were in the first seed. `exceptions` names every cell that is farther behind. 432 runs of a second or two
of CPU; `--quick` makes 32. `--markdown` prints a table in place of the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.broken_ways import (
    REFERENCES,
    Change,
    GovernorWatch,
    Way,
    broken_cell,
    broken_table,
    broken_verdicts,
    governor_figures,
    told_wrongly,
    ways,
)
from bench.figures import GOODPUT, MEAN_JCT, Runs
from bench.gain.predicted import (
    HARDWARE,
    LIMIT_TOKENS,
    MODEL,
    REQUESTS,
    SYSTEMS,
    capacity,
    requests,
    system_of,
)
from bench.streams import KINDS, NONE, TWO, Targets, asked_by, rule_text, targets_from
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.errors import ConfigError, HeadwayError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.predictor_choice import length_source
from headway.lab.run_cells import in_processes
from headway.policies.policy import Policy
from headway.policies.presets import find_preset
from headway.predict.length_choice import NONE as NOBODY
from headway.results import summarize
from headway.sim.simulation import PolicyFactory, simulate
from headway.traces import TraceRequest

LOADS = (0.8, 1.0, 1.2)
SEEDS = 3
LIGHT_LOAD, LIGHT_SEED = 0.2, 98
HONEST = "noisy-oracle:tau=0.8"
QUICK_SYSTEMS, QUICK_LOADS, QUICK_SEEDS = ("roomy", "wide"), (1.2,), 1


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: what serves whom, under which policy, told what, and how much is asked of it."""

    system: str
    kind: str
    load: float
    seed: int
    policy: str
    way: Way
    rate_rps: float
    targets: Targets
    count: int = REQUESTS

    @property
    def name(self) -> str:
        """Who it is in the cell."""
        return self.policy if self.policy in REFERENCES else self.way.name


@dataclass(frozen=True, slots=True)
class Found:
    """What a run came to."""

    cell: Cell
    records: Sequence[Record]
    changes: Sequence[Change]
    end_s: float


def run(cell: Cell) -> Found:
    """Simulate a cell."""
    trace = asked_by(requests(cell.rate_rps, cell.seed, cell.count), cell.kind, cell.targets, cell.seed)
    return Found(cell, *simulated(trace, cell.system, cell.policy, cell.way, cell.seed))


def simulated(
    trace: Sequence[TraceRequest], system: str, policy: str, way: Way, seed: int
) -> tuple[list[Record], list[Change], float]:
    """The records of a run, what the governor went by, and when it ended."""
    records: list[Record] = []
    watches: list[GovernorWatch] = []
    build = told_wrongly(policy_factory(policy, OWN_PARTS, trace), way.steps)

    def ended(record: Record) -> None:
        records.append(record)
        watches[0].look(record.finished_s or 0.0)

    result = simulate(
        trace,
        noted(build, lambda made: watches.append(GovernorWatch(made))),
        system_of(system),
        on_record=ended,
        max_output_tokens=LIMIT_TOKENS,
        seed=seed,
        lengths=length_source(way.predictor, trace, seed),
    )
    return records, watches[0].changes, result.end_s


def noted(build: PolicyFactory, note: Callable[[Policy], None]) -> PolicyFactory:
    """A factory of the same policies that tells of each it makes."""

    def build_noted(cost: CostModel) -> Policy:
        policy = build(cost)
        note(policy)
        return policy

    return build_noted


def light_targets(system: str, rate_rps: float) -> Targets:
    """Those that follow from `vllm` at light load."""
    trace = requests(LIGHT_LOAD * rate_rps, LIGHT_SEED)
    records, _, _ = simulated(trace, system, "vllm", Way("", NOBODY), LIGHT_SEED)
    return targets_from(summarize(records))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides what is simulated."""

    policy: str
    systems: Sequence[str]
    kinds: Sequence[str]
    loads: Sequence[float]
    seeds: int

    def cells(self, rates: Mapping[str, float], targets: Mapping[str, Targets]) -> Iterator[Cell]:
        """Every run, by what each system gets through and the targets of its clients."""
        told = [(name, Way("", NOBODY)) for name in REFERENCES]
        told += [(self.policy, way) for way in ways(HONEST)]
        for system in self.systems:
            for kind in self.kinds:
                for load in self.loads:
                    for seed in range(self.seeds):
                        for policy, way in told:
                            yield Cell(
                                system, kind, load, seed, policy, way, load * rates[system], targets[system]
                            )


def report(plan: Plan, jobs: int) -> dict[str, Any]:
    """All figures."""
    rates = {system: capacity(system) for system in plan.systems}
    targets = {system: light_targets(system, rates[system]) for system in plan.systems}
    todo = list(plan.cells(rates, targets))
    found: dict[Cell, Found] = {}
    for each in in_processes(run, todo, jobs):
        found[each.cell] = each
        print(f"\r{len(found)} of {len(todo)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    cells = tabled([found[cell] for cell in todo])
    return {
        "measured_on": "simulated",
        "hardware": HARDWARE,
        "model": MODEL,
        "policy": plan.policy,
        "seeds": plan.seeds,
        "capacity_rps": rates,
        "targets": {"rule": rule_text(), **{system: each.to_dict() for system, each in targets.items()}},
        **broken_verdicts(cells),
        "cells": cells,
    }


def tabled(found: Sequence[Found]) -> dict[str, dict[str, Any]]:
    """By system and kind of clients, then by load: who is how far behind."""
    cells: dict[tuple[str, str, float], dict[str, list[Found]]] = {}
    for each in found:
        cell = each.cell
        cells.setdefault((cell.system, cell.kind, cell.load), {}).setdefault(cell.name, []).append(each)
    table: dict[str, dict[str, Any]] = {}
    for (system, kind, load), by_name in cells.items():
        table.setdefault(f"{system}, {kind}", {})[f"{load:g}"] = broken_cell(
            MEAN_JCT if kind == NONE else GOODPUT,
            {name: Runs([each.records for each in several]) for name, several in by_name.items()},
            {name: _governor(several) for name, several in by_name.items() if name not in REFERENCES},
            next(iter(by_name.values()))[0].cell.targets.classes,
        )
    return table


def _governor(several: Sequence[Found]) -> dict[str, Any]:
    return governor_figures([each.changes for each in several], [each.end_s for each in several])


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/headway-real.md instead")
    parser.add_argument(
        "--quick", action="store_true", help="two systems, load 1.2, one seed, unless told otherwise"
    )
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument("--seeds", type=int, help=f"default {SEEDS}")
    parser.add_argument("--load", type=float, action="append", help=f"of capacity (default {LOADS})")
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="default: all")
    parser.add_argument(
        "--class", dest="kind", choices=KINDS, action="append", help=f"of clients (default {NONE}, {TWO})"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    if arguments.policy in REFERENCES:
        raise ConfigError(
            f"--policy is {arguments.policy!r}, which it would be compared with; accepted: another preset"
        )
    quick = arguments.quick
    usual_seeds = QUICK_SEEDS if quick else SEEDS
    seeds = usual_seeds if arguments.seeds is None else arguments.seeds
    for name, count in (("seeds", seeds), ("jobs", arguments.jobs)):
        if count < 1:
            raise ConfigError(f"--{name} is {count}; accepted: 1 or more")
    loads = tuple(arguments.load or (QUICK_LOADS if quick else LOADS))
    if min(loads) <= 0:
        raise ConfigError(f"--load is {min(loads):g}; accepted: more than 0")
    return Plan(
        policy=arguments.policy,
        systems=tuple(arguments.system or (QUICK_SYSTEMS if quick else SYSTEMS)),
        kinds=tuple(arguments.kind or (NONE, TWO)),
        loads=loads,
        seeds=seeds,
    )


def main() -> int:
    """Print one JSON object, or the table; 2 for an error, such as an option that is not accepted."""
    arguments = options().parse_args()
    try:
        found = report(plan_of(arguments), arguments.jobs)
    except HeadwayError as error:
        print(f"broken_predictions: {error}", file=sys.stderr)
        return 2
    print(broken_table(found) if arguments.markdown else json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
