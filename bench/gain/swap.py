"""AdaptiveLLM's choice beside always recomputing and always swapping: `python bench/gain/swap.py --json`.

The real CPU engine with a made model and few KV blocks, so that requests are preempted all the time: short prompts
and long ones (the paper's Summary), all there at once, outputs of set lengths, greedy. Policies of a family differ
in the eviction alone: `adaptivellm`, and its twins `recompute` and `swap`; copies wait. The same once more for
`adaptivellm-plus`, whose copies go on beside the steps, and of which `adaptivellm-plus_vs_vllm` tells what it is worth
beside today's `vllm`; `--blocks` sets how short memory is. Copies are held to bandwidths `slow`, `fast` and, if asked
for, `even`: multiples of the break-even at which a victim of that workload takes as long out and back as to prefill,
measured first. Every run begins with requests that do not count, from which costs are learned.

`adaptivellm` and its twins serve side by side, each on an engine and by a clock of its own, in turns of a tenth of a
second or a step, so that a machine's drift hits all alike. Where copies go on beside the steps, and so beside the
others' turns, policies take turns in rounds, every second one backwards. `adaptivellm_vs_better` is its throughput
over that of the twin with the lower median makespan: the median of the rounds' ratios, `spread` their least and
largest; `adaptivellm_vs_better_at_one_speed` takes each run's steps at what a law fitted to the steps of all runs says
of their shapes, and adds what they waited for copies, so that how busy the machine was does not count (nor what steps
lose to copies beside them). `copy_time_hidden`: the share of copy time that no step waited for. With copies
beside the steps that is: steps longer than others of their shape, and turns of the loop without work.

Under 8 minutes on 2 cores. The exit status tells of errors only: on another machine times are other times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeGuard

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, say
from bench.gain.swap_runs import (
    DEVICE_BLOCKS,
    FAMILIES,
    LOADS,
    SERIAL,
    Family,
    Load,
    StepSeconds,
    SwapCase,
    SwapEngine,
    SwapRun,
    Victim,
    WatchedEngine,
    at_one_speed_s,
    hidden_share,
    law_of,
    lengthened,
    policy_row,
    run_once,
    versus,
    victims_of,
)
from bench.side_by_side import Lane, measure_side_by_side
from headway.engine.machine import machine_name, vllm_version
from headway.statistics import median

BANDWIDTHS = {"slow": 0.25, "even": 1.0, "fast": 8.0}
"""Multiples of a workload's break-even."""
DEFAULT_BANDWIDTHS = ("slow", "fast")
DEFAULT_ROUNDS = 2
LEARNING_SHARE = 1.0
"""Requests served before a run's own, as a share of the run's own number."""

Runs = dict[str, dict[str, list[SwapRun]]]
"""By case, then by policy: one run a round."""


def measured_victims(loads: Sequence[Load]) -> dict[str, Victim]:
    """Each load's mean victim, measured on an engine of its own."""
    found: list[dict[str, Victim]] = []
    measure_side_by_side([[Lane(SwapEngine(), partial(victims_of, loads=loads), found.append)]], say)
    return found[0]


def measure(
    cases: Sequence[SwapCase],
    families: Sequence[Family],
    rounds: int,
    blocks: int = DEVICE_BLOCKS,
) -> Runs:
    """Run every policy of every case once a round: those whose copies wait side by side, the others one by one."""
    runs: Runs = {case.name: {name: [] for family in families for name in family.served()} for case in cases}

    def lane(case: SwapCase, number: int, family: Family, name: str) -> Lane[WatchedEngine, SwapRun]:
        def keep(run: SwapRun) -> None:
            runs[case.name][name].append(run)
            say(
                f"{case.name}, round {number + 1}, {name}: {run.makespan_s:.2f} s, "
                f"{run.swaps} swaps, {run.recomputes} recomputes, {run.copy_s:.2f} s of copies"
            )

        work = partial(
            run_once,
            load=case.load,
            settings=family.served()[name],
            seed=number,
            learning_share=LEARNING_SHARE,
            bytes_per_s=case.bytes_per_s,
        )
        return Lane(SwapEngine(blocks), work, keep)

    groups: list[list[Lane[WatchedEngine, SwapRun]]] = []
    for number, case, family in product(range(rounds), cases, families):
        names = list(family.served())[:: -1 if number % 2 else 1]
        lanes = [lane(case, number, family, name) for name in names]
        groups += [lanes] if family is SERIAL else [[each] for each in lanes]
    measure_side_by_side(groups, say)
    return runs


def report(cases: Sequence[SwapCase], families: Sequence[Family], runs: Runs) -> dict[str, Any]:
    """`cells` and `copy_time_hidden`."""
    laws = {
        load.name: law_of([run for case in cases if case.load is load for run in _all(runs[case.name])])
        for load in {id(case.load): case.load for case in cases}.values()
    }
    cells = {case.name: _cell(case, families, runs[case.name], laws[case.load.name]) for case in cases}
    hidden = {case.name: _hidden(families, runs[case.name], laws[case.load.name]) for case in cases}
    return {"cells": cells, "copy_time_hidden": hidden}


def _all(by_policy: Mapping[str, Sequence[SwapRun]]) -> list[SwapRun]:
    return [run for found in by_policy.values() for run in found]


def _cell(
    case: SwapCase,
    families: Sequence[Family],
    runs: Mapping[str, Sequence[SwapRun]],
    law: StepSeconds,
) -> dict[str, Any]:
    cell: dict[str, Any] = {"bytes_per_s": case.bytes_per_s}
    for family in families:
        *twins, own = family.settings()
        cell.update((name, policy_row(runs[name], law)) for name in family.served())
        times_s = {name: [run.makespan_s for run in runs[name]] for name in family.served()}
        for other in family.beside:
            cell[f"{own}_vs_{other}"] = versus(times_s[own], {other: times_s[other]})["ratio"]
        found = versus(times_s[own], {twin: times_s[twin] for twin in twins})
        cell[f"{own}_vs_better"] = found["ratio"]
        cell[f"{own}_vs_better_spread"] = found["spread"]
        cell[f"{own}_better"] = found["better"]
        even_s = {name: [at_one_speed_s(run, law) for run in runs[name]] for name in (*twins, own)}
        cell[f"{own}_vs_better_at_one_speed"] = versus(even_s[own], {twin: even_s[twin] for twin in twins})[
            "ratio"
        ]
    return cell


def _hidden(
    families: Sequence[Family], runs: Mapping[str, Sequence[SwapRun]], law: StepSeconds
) -> dict[str, Any]:
    """For each policy that copied in every round, the medians over the rounds."""
    found: dict[str, Any] = {}
    for family in families:
        for name, settings in family.settings().items():
            serial = "serial=true" in settings.preset().eviction
            shares = [hidden_share(run, law, serial=serial) for run in runs[name]]
            if None in shares:
                continue
            found[name] = {"serial": serial, "hidden_share": median(filter(_known, shares))}
            if not serial:
                longer = (lengthened(run, law) for run in runs[name])
                found[name]["steps_longer_share"] = median(filter(_known, longer))
    return found


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None


def swap(
    loads: Sequence[Load],
    bandwidths: Mapping[str, float],
    families: Sequence[Family],
    rounds: int,
    blocks: int = DEVICE_BLOCKS,
) -> dict[str, Any]:
    """The whole report."""
    victims = measured_victims(loads)
    say(f"break-even: {victims}")
    cases = [
        SwapCase(load, name, factor * victims[load.name].break_even_bytes_per_s)
        for load, (name, factor) in product(loads, bandwidths.items())
    ]
    runs = measure(cases, families, rounds, blocks)
    found = report(cases, families, runs)
    return {
        "machine": f"{machine_name()}, vLLM {vllm_version()}",
        "rounds": rounds,
        "device_blocks": blocks,
        **found,
        "break_even": {name: asdict(each) for name, each in victims.items()},
    }


def main() -> None:
    """Print one JSON object; exit status 1 for an error."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--load", action="append", choices=[load.name for load in LOADS], help="only this one"
    )
    parser.add_argument(
        "--bandwidth", action="append", choices=list(BANDWIDTHS), help="default: slow and fast"
    )
    parser.add_argument(
        "--policy",
        action="append",
        choices=[family.preset for family in FAMILIES],
        help="only this one and its twins",
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help=f"default {DEFAULT_ROUNDS}")
    parser.add_argument(
        "--blocks", type=int, default=DEVICE_BLOCKS, help=f"KV blocks of the device (default {DEVICE_BLOCKS})"
    )
    arguments = parser.parse_args()
    loads = [load for load in LOADS if load.name in (arguments.load or [load.name])]
    chosen = arguments.bandwidth or DEFAULT_BANDWIDTHS
    bandwidths = {name: BANDWIDTHS[name] for name in chosen}
    families = [family for family in FAMILIES if family.preset in (arguments.policy or [family.preset])]
    print(json.dumps(swap(loads, bandwidths, families, arguments.rounds, arguments.blocks)))


if __name__ == "__main__":
    main()
