"""A policy with useless predictions beside those that need none: `python bench/gain/broken_predictions.py --json`.

Simulated, on engines that four clients share (`bench/gain/four_clients.py`), without targets and with two classes of
clients (seven in ten interactive, the others patient; targets by a rule from `vllm` at a fifth of capacity).
`--policy` (default headway) is told lengths that are random and sure of themselves, step times wrong by 3 times
either way, or both; beside these honest ones (Kendall's tau 0.8). Step times stay wrong however much is learned.

Per system, kind of clients and load: mean JCT without targets, else goodput (the share of all requests that met all
their targets), and `behind` the better of `fastserve` and `sarathi` (JCT as a share, goodput as a difference); aim
0.03 at most. `governor`: what the policy went by for which share of the time (looked at as each request ends), its
steps, and when they were in the first seed. `exceptions` names every cell that is farther behind. 432 runs of a
second or two of CPU; `--quick` makes 32. `--markdown` prints a table in place of the JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option, stream_options
from bench.figures import GOODPUT, MEAN_JCT, Runs, figures, loss, markdown_table, number, values
from bench.gain.four_clients import (
    HARDWARE,
    LIMIT_TOKENS,
    MODEL,
    REQUESTS,
    SYSTEMS,
    capacity_rps,
    requests,
    system_of,
)
from bench.governor import REFERENCES, Change, GovernorWatch, Way, governor_figures, told_wrongly, ways
from bench.streams import KINDS, NONE, TWO, Targets, asked_by, rule_text, targets_from
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.simulation import simulate_policy
from headway.policies.policy import Policy
from headway.policies.presets import find_preset
from headway.predict.lengths.choice import NONE as NOBODY
from headway.results import summarize
from headway.sim.simulation import PolicyFactory
from headway.statistics import mean_of_known
from headway.traces import TraceRequest

# ---- how far behind ------------------------------------------------------------------------------------

MOST_BEHIND = 0.03


def broken_cell(
    metric: str, runs: Mapping[str, Runs], governor: Mapping[str, Any], classes: Mapping[Slo, str]
) -> dict[str, Any]:
    """One cell: every system's figures, and the loss of each contender against the better of the references.

    `behind` is negative where a contender is ahead; None if nothing was measured.
    """
    found = {name: mean_of_known(values(each.summaries(), metric)) for name, each in runs.items()}
    behind = {
        name: {other: loss(metric, found[name], found[other]) for other in REFERENCES}
        for name in runs
        if name not in REFERENCES
    }
    return {
        "metric": metric,
        "systems": {name: figures(each, classes) for name, each in runs.items()},
        "behind_each": behind,
        "behind": {name: _worst(list(each.values())) for name, each in behind.items()},
        "governor": dict(governor),
    }


def _worst(losses: Sequence[float | None]) -> float | None:
    known = [each for each in losses if each is not None]
    return max(known) if known else None


def broken_verdicts(cells: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The worst of all cells by kind of prediction, and the cells whose loss exceeds the aim."""
    every = [
        (f"{kind}, load {load}", way, behind)
        for kind, loads in cells.items()
        for load, cell in loads.items()
        for way, behind in cell["behind"].items()
        if behind is not None
    ]
    return {
        "worst_behind": {
            way: max(behind for _, name, behind in every if name == way)
            for way in dict.fromkeys(name for _, name, _ in every)
        },
        "most_behind": MOST_BEHIND,
        "holds": all(behind <= MOST_BEHIND for _, _, behind in every),
        "exceptions": [
            {"cell": cell, "way": way, "behind": behind}
            for cell, way, behind in every
            if behind > MOST_BEHIND
        ],
    }


def broken_table(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md: a row for each cell, a column for each kind of prediction."""
    first = next(iter(next(iter(found["cells"].values())).values()))
    names = list(first["behind"])
    head = ("clients", "load", "metric", *(f"`{name}`" for name in REFERENCES), *names)
    rows = [
        (kind, load, *_figures(cell, names))
        for kind, loads in found["cells"].items()
        for load, cell in loads.items()
    ]
    return markdown_table(head, rows)


def _figures(cell: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    metric, systems = cell["metric"], cell["systems"]
    behind = [f"{number(systems[name][metric])} ({_percent(cell['behind'][name])})" for name in names]
    return [metric, *(number(systems[name][metric]) for name in REFERENCES), *behind]


def _percent(behind: float | None) -> str:
    return "–" if behind is None else f"{100 * behind:+.1f} %"


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (0.8, 1.0, 1.2)
SEEDS = 3
LIGHT_LOAD, LIGHT_SEED = 0.2, 98
HONEST = "noisy-oracle:tau=0.8"
QUICK_SYSTEMS, QUICK_LOADS, QUICK_SEEDS = ("roomy", "wide"), (1.2,), 1


@dataclass(frozen=True, slots=True)
class BrokenCell:
    """One run: engine, clients, policy, predictions, and load."""

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
        """The contender's name in the cell."""
        return self.policy if self.policy in REFERENCES else self.way.name


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a run."""

    cell: BrokenCell
    records: Sequence[Record]
    changes: Sequence[Change]
    end_s: float


def run(cell: BrokenCell) -> Found:
    """Simulate a cell."""
    trace = asked_by(requests(cell.rate_rps, cell.seed, cell.count), cell.kind, cell.targets, cell.seed)
    return Found(cell, *simulated(trace, cell.system, cell.policy, cell.way, cell.seed))


def simulated(
    trace: Sequence[TraceRequest], system: str, policy: str, way: Way, seed: int
) -> tuple[list[Record], list[Change], float]:
    """The records of a run, the changes of the governor, and the end time."""
    records: list[Record] = []
    watches: list[GovernorWatch] = []
    build = told_wrongly(policy_factory(policy, OWN_PARTS, trace), way.steps)

    def ended(record: Record) -> None:
        records.append(record)
        watches[0].look(record.finished_s or 0.0)

    result = simulate_policy(
        trace,
        noted(build, lambda made: watches.append(GovernorWatch(made))),
        system_of(system),
        on_record=ended,
        max_output_tokens=LIMIT_TOKENS,
        seed=seed,
        lengths=way.predictor,
    )
    return records, watches[0].changes, result.end_s


def noted(build: PolicyFactory, note: Callable[[Policy], None]) -> PolicyFactory:
    """A factory of the same policies that reports each one it makes."""

    def build_noted(cost: CostModel) -> Policy:
        policy = build(cost)
        note(policy)
        return policy

    return build_noted


def light_targets(system: str, rate_rps: float) -> Targets:
    """Targets derived from `vllm` at light load."""
    trace = requests(LIGHT_LOAD * rate_rps, LIGHT_SEED)
    records, _, _ = simulated(trace, system, "vllm", Way("", NOBODY), LIGHT_SEED)
    return targets_from(summarize(records))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that determines what is simulated."""

    policy: str
    systems: Sequence[str]
    kinds: Sequence[str]
    loads: Sequence[float]
    seeds: int

    def cells(self, rates: Mapping[str, float], targets: Mapping[str, Targets]) -> Iterator[BrokenCell]:
        """Every run, given each system's capacity and its clients' targets."""
        told = [(name, Way("", NOBODY)) for name in REFERENCES]
        told += [(self.policy, way) for way in ways(HONEST)]
        for system in self.systems:
            for kind in self.kinds:
                for load in self.loads:
                    for seed in range(self.seeds):
                        for policy, way in told:
                            yield BrokenCell(
                                system, kind, load, seed, policy, way, load * rates[system], targets[system]
                            )


def report(plan: Plan, jobs: int) -> dict[str, Any]:
    """All figures."""
    rates = {system: capacity_rps(system) for system in plan.systems}
    targets = {system: light_targets(system, rates[system]) for system in plan.systems}
    todo = list(plan.cells(rates, targets))
    cells = tabled(list(all_done(run, todo, jobs).values()))
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
    """By system and kind of clients, then by load: each contender's loss."""
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
    """The command's options."""
    parser = command_line(__doc__)
    markdown_option(parser, "the table of docs/headway-real.md instead")
    parser.add_argument(
        "--quick", action="store_true", help="two systems, load 1.2, one seed, unless told otherwise"
    )
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    parser.add_argument("--seeds", type=int, help=f"default {SEEDS}")
    stream_options(parser, loads=LOADS)
    parser.add_argument("--system", choices=SYSTEMS, action="append", help="default: all")
    parser.add_argument(
        "--class", dest="kind", choices=KINDS, action="append", help=f"of clients (default {NONE}, {TWO})"
    )
    jobs_option(parser)
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the options ask for. Raises ConfigError for what is not accepted."""
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


def main() -> None:
    """Print one JSON object, or the table."""
    arguments = options().parse_args()
    found = report(plan_of(arguments), arguments.jobs)
    print(broken_table(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
