"""A policy with useless predictions beside those that need none: `python bench/gain/broken_predictions.py --json`.

Simulated, on the engines and with the four clients of `bench/gain/predicted.py`, without targets and with two classes
of clients (seven in ten interactive, the others patient; targets by a rule from `vllm` at a fifth of capacity).
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
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option, stream_options
from bench.figures import GOODPUT, MEAN_JCT, Runs, figures, loss, number, values
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
from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.core.slo import Slo
from headway.errors import ConfigError, HeadwayError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.simulation import simulate_policy
from headway.policies.policy import Policy
from headway.policies.presets import find_preset
from headway.policies.protocols import Predicting
from headway.predict.lengths.choice import NONE as NOBODY
from headway.results import summarize
from headway.sim.simulation import PolicyFactory
from headway.statistics import mean_of_known
from headway.traces import TraceRequest

# ---- a cost model that is wrong about steps ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrongSteps:
    """What an engine has learned, with every step taken to last `factor` times as long as it does.

    It stays wrong however much is learned, since what is learned is the truth. Copies are told as they are.
    """

    learned: CostModel
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ConfigError(f"factor is {self.factor}; accepted: more than 0")

    @property
    def kv_tokens(self) -> int:
        """As they are."""
        return self.learned.kv_tokens

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens is wrongly said to take alone."""
        return self.factor * self.learned.prefill_s(num_tokens)

    def step_s(self, shape: BatchShape) -> float:
        """Seconds a step of this shape is wrongly said to take."""
        return self.factor * self.learned.step_s(shape)

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape is wrongly said to stay within with this probability."""
        return self.factor * self.learned.step_within_s(shape, confidence)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds a copy to the host takes."""
        return self.learned.swap_out_s(num_blocks)

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds a copy back to the device takes."""
        return self.learned.swap_in_s(num_blocks)

    def load_s(self, num_tokens: int) -> float:
        """Seconds a load from a connector's store takes."""
        return self.learned.load_s(num_tokens)


def wrong_by(factor: float) -> Callable[[CostModel], CostModel]:
    """Makes of a cost model one that is wrong about steps by this factor."""
    return partial(WrongSteps, factor=factor)


def told_wrongly(build: PolicyFactory, factor: float) -> PolicyFactory:
    """A factory of the same policies, which are told that steps take `factor` times as long; at 1 the same factory."""
    if factor == 1:
        return build

    def build_wrongly(cost: CostModel) -> Policy:
        return build(WrongSteps(cost, factor))

    return build_wrongly


# ---- what a governor goes by, and when ---------------------------------------------------------------

TRUSTING = "predictions"
NO_LENGTHS = "no lengths"
NO_STEPS = "arrival"
UNGOVERNED = ""
"""A policy without a governor."""


@runtime_checkable
class TimesSteps(Protocol):
    """An order that watches whether steps take as long as predicted."""

    @property
    def trusts_step_times(self) -> bool:
        """Whether it goes by predicted step times now."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """From when on it goes by what: the first is how it began."""

    at_s: float
    goes_by: str


class GovernorWatch:
    """Notes the changes of one policy; None, vLLM's own scheduler, never changes."""

    def __init__(self, policy: Policy | None) -> None:
        order = None if policy is None else policy.order
        # Asked once, as the answers take microseconds.
        self._lengths = order if isinstance(order, Predicting) else None
        self._steps = order if isinstance(order, TimesSteps) else None
        self.changes: list[Change] = []

    def look(self, now_s: float) -> None:
        """See what it goes by now. O(1)."""
        found = self.goes_by
        if not self.changes or self.changes[-1].goes_by != found:
            self.changes.append(Change(now_s, found))

    @property
    def goes_by(self) -> str:
        """`arrival` while step times are not trusted, whatever it thinks of lengths."""
        if self._steps is not None and not self._steps.trusts_step_times:
            return NO_STEPS
        if self._lengths is None:
            return UNGOVERNED
        return TRUSTING if self._lengths.trusts_predictions else NO_LENGTHS


def shares(changes: Sequence[Change], end_s: float) -> dict[str, float]:
    """The share of the time from the first look to `end_s` that it went by each; empty without a governor."""
    if not changes or end_s <= changes[0].at_s:
        return {}
    until_s = [*(change.at_s for change in changes[1:]), end_s]
    found: dict[str, float] = {}
    for change, next_s in zip(changes, until_s, strict=True):
        if change.goes_by != UNGOVERNED:
            found[change.goes_by] = found.get(change.goes_by, 0.0) + next_s - change.at_s
    whole_s = end_s - changes[0].at_s
    return {name: seconds / whole_s for name, seconds in found.items()}


# ---- ways of breaking predictions, and their figures -------------------------------------------------

REFERENCES = ("fastserve", "sarathi")
"""What needs no predictions."""
MOST_BEHIND = 0.03
WRONG_BY = 3.0


@dataclass(frozen=True, slots=True)
class Way:
    """What predicts lengths, and how many times as long as they take steps are said to take."""

    name: str
    predictor: str
    steps: float = 1.0


def ways(honest: str) -> tuple[Way, ...]:
    """All of them, and beside them the predictor that is not broken."""
    random = "broken:way=random"
    return (
        Way("honest", honest),
        Way("random lengths", random),
        Way("steps x 3", honest, WRONG_BY),
        Way("steps / 3", honest, 1 / WRONG_BY),
        Way("random lengths, steps x 3", random, WRONG_BY),
        Way("random lengths, steps / 3", random, 1 / WRONG_BY),
    )


def governor_figures(changes: Sequence[Sequence[Change]], ends_s: Sequence[float]) -> dict[str, Any]:
    """Of several runs: what the governor went by for which share of the time, and its steps in the first."""
    by_run = [shares(each, end_s) for each, end_s in zip(changes, ends_s, strict=True)]
    names = sorted({name for each in by_run for name in each})
    return {
        "share_of_time": {name: mean_of_known([each.get(name, 0.0) for each in by_run]) for name in names},
        "steps": [len(each) - 1 for each in changes],
        "first_run": [{"at_s": round(change.at_s, 3), "goes_by": change.goes_by} for change in changes[0]],
    }


def broken_cell(
    metric: str, runs: Mapping[str, Runs], governor: Mapping[str, Any], classes: Mapping[Slo, str]
) -> dict[str, Any]:
    """One cell: every system's figures, and how far each way is behind the better of the references.

    `behind` is below 0 where it is ahead; None where nothing was measured.
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
    """The worst of all cells, by way, and the cells that are farther behind than they may be."""
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
    """The table of docs/headway-real.md: a row for each cell, a column for each way."""
    first = next(iter(next(iter(found["cells"].values())).values()))
    names = list(first["behind"])
    head = " | ".join(("clients | load | metric", *(f"`{name}`" for name in REFERENCES), *names))
    lines = [f"| {head} |", "|" + "---|" * (3 + len(REFERENCES) + len(names))]
    for kind, loads in found["cells"].items():
        lines += [_row(kind, load, cell, names) for load, cell in loads.items()]
    return "\n".join(lines)


def _row(kind: str, load: str, cell: Mapping[str, Any], names: Sequence[str]) -> str:
    metric, systems = cell["metric"], cell["systems"]
    values = [number(systems[name][metric]) for name in REFERENCES]
    values += [f"{number(systems[name][metric])} ({_percent(cell['behind'][name])})" for name in names]
    return f"| {kind} | {load} | {metric} | {' | '.join(values)} |"


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
    """One run: engine, clients, policy, what it is told, and load."""

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
    """What a run came to."""

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
    """The records of a run, what the governor went by, and when it ended."""
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

    def cells(self, rates: Mapping[str, float], targets: Mapping[str, Targets]) -> Iterator[BrokenCell]:
        """Every run, by what each system gets through and the targets of its clients."""
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
    rates = {system: capacity(system) for system in plan.systems}
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
    """By system and kind of clients, then by load: how far each contender is behind."""
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
