"""A tenant that floods the engine beside one that does not: `python bench/gain/tenants.py --json`.

Simulated, on the engine `wide` of `bench/gain/four_clients.py` and with its requests. 15 in a hundred are one tenant's,
`calm`, the others another's, `flood`, both drawn alike; together they ask 0.5 or 1.5 of capacity, `calm` a fifth at
the most. Compared: `vllm`, `fastserve`, and `headway` told of tenants and not, without targets and with two classes
of clients (as in `bench/gain/broken_predictions.py`). Per tenant: mean JCT and goodput, means of three seeds, and for
`calm` its `slowdown`: mean JCT over that of its requests alone on the engine under `vllm`. 60 runs of a second or two
of CPU. `--markdown` prints a table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option
from bench.figures import markdown_table
from bench.gain.broken_predictions import HONEST, light_targets, simulated
from bench.gain.four_clients import HARDWARE, MODEL, capacity_rps, requests
from bench.governor import Way
from bench.streams import KINDS, NONE, TWO, Targets, asked_by
from headway.core.record import Record
from headway.results import summarize
from headway.statistics import mean_of_known
from headway.traces import TraceRequest

SYSTEM = "wide"
CALM, FLOOD = "calm", "flood"
CALM_SHARE = 0.15
LOADS = (0.5, 1.5)
SEEDS = 3
TOLD = {"vllm": False, "fastserve": False, "headway": True}
"""Policies, and whether they are told of tenants."""


@dataclass(frozen=True, slots=True)
class TenantCell:
    """One run."""

    policy: str
    named: bool
    kind: str
    load: float
    seed: int
    rate_rps: float
    targets: Targets
    alone: bool = False

    @property
    def name(self) -> str:
        """The table column that it belongs to."""
        return self.policy if self.named or not TOLD[self.policy] else f"{self.policy}, tenants not named"


def trace_of(cell: TenantCell) -> tuple[Sequence[TraceRequest], Mapping[str, str]]:
    """The requests of a cell, and each request's tenant."""
    rng = Random(f"tenants of {cell.seed}")
    asked = asked_by(requests(cell.load * cell.rate_rps, cell.seed), cell.kind, cell.targets, cell.seed)
    whose = {request.id: CALM if rng.random() < CALM_SHARE else FLOOD for request in asked}
    if cell.alone:
        asked = [request for request in asked if whose[request.id] == CALM]
    return [replace(each, tenant=whose[each.id] if cell.named else "") for each in asked], whose


def run(cell: TenantCell) -> Mapping[str, Sequence[Record]]:
    """A cell's records by tenant."""
    trace, whose = trace_of(cell)
    records, _, _ = simulated(trace, SYSTEM, cell.policy, Way("", HONEST), cell.seed)
    return {tenant: [record for record in records if whose[record.id] == tenant] for tenant in (CALM, FLOOD)}


def cells(rate_rps: float, targets: Targets) -> list[TenantCell]:
    """Every run: each policy, `headway` also without tenants' names, and the calm tenant alone."""
    made = []
    for kind in (NONE, TWO):
        for load in LOADS:
            for seed in range(SEEDS):
                cell = TenantCell("vllm", False, kind, load, seed, rate_rps, targets, alone=True)
                made.append(cell)
                for policy, shares in TOLD.items():
                    made += [
                        replace(cell, policy=policy, named=named, alone=False)
                        for named in sorted({False, shares})
                    ]
    return made


def report(jobs: int) -> dict[str, Any]:
    """All figures."""
    rate_rps = capacity_rps(SYSTEM)
    todo = cells(rate_rps, light_targets(SYSTEM, rate_rps))
    found = all_done(run, todo, jobs)
    table: dict[str, Any] = {}
    for kind in KINDS:
        for load in LOADS:
            these = [cell for cell in todo if (cell.kind, cell.load) == (kind, load)]
            if these:
                table[f"{kind}, {load:g}"] = _row(these, found)
    return {"measured_on": "simulated", "hardware": HARDWARE, "model": MODEL, "seeds": SEEDS, "cells": table}


def _row(
    these: Sequence[TenantCell], found: Mapping[TenantCell, Mapping[str, Sequence[Record]]]
) -> dict[str, Any]:
    """The figures of each column, by tenant."""
    alone = {cell.seed: summarize(found[cell][CALM]).mean_jct_s for cell in these if cell.alone}
    row: dict[str, Any] = {}
    for name in dict.fromkeys(cell.name for cell in these if not cell.alone):
        runs = [cell for cell in these if cell.name == name and not cell.alone]
        row[name] = {}
        for tenant in (CALM, FLOOD):
            summaries = {cell.seed: summarize(found[cell][tenant]) for cell in runs}
            row[name][tenant] = {
                "mean_jct_s": mean_of_known([each.mean_jct_s for each in summaries.values()]),
                "goodput": mean_of_known([each.goodput for each in summaries.values()]),
            }
            if tenant == CALM:
                row[name][tenant]["slowdown"] = mean_of_known(
                    [(each.mean_jct_s or 0.0) / (alone[seed] or 1.0) for seed, each in summaries.items()]
                )
    return row


def markdown(found: Mapping[str, Any]) -> str:
    """The table of docs/headway-real.md."""
    columns = list(next(iter(found["cells"].values())))
    rows = [
        (cell, *(_shown(row[name], targets=not cell.startswith(NONE)) for name in columns))
        for cell, row in found["cells"].items()
    ]
    return markdown_table(("clients, load", *(f"`{name}`" for name in columns)), rows)


def _shown(figures: Mapping[str, Mapping[str, float]], *, targets: bool) -> str:
    calm, flood = figures[CALM], figures[FLOOD]
    text = f"{calm['mean_jct_s']:.3g} ({calm['slowdown']:.2g} x) / {flood['mean_jct_s']:.3g} s"
    return f"{text}, {calm['goodput']:.2f} / {flood['goodput']:.2f}" if targets else text


def main() -> None:
    """Print one JSON object, or the table."""
    parser = command_line(__doc__)
    markdown_option(parser, "the table of docs/headway-real.md instead")
    jobs_option(parser)
    arguments = parser.parse_args()
    found = report(arguments.jobs)
    print(markdown(found) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
