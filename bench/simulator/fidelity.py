"""How near the simulator comes to the real engine: `python bench/simulator/fidelity.py --out DIR --json`.

Serves the same streams for real and simulated, with a made model of 46 million parameters: four policies at
three loads, four streams each. Slices of `headway profile` between the runs make the calibration. About half an
hour on 2 cores; `--simulate-only` compares with the real runs already in DIR, in seconds. `--swaps` serves the
presets that swap, and their ablations, at one load with few KV blocks, host memory, and copies held to a stated
bandwidth, which is then the simulator's too; those that pause get a batch of three. About an hour, or three
minutes for each preset named by `--policy`. Those that go by predicted lengths are told the same ones on either
side, made from the true ones (Kendall's tau 0.8). `--targets` serves the two kinds of Ascendra's instances,
each alone, around and above capacity, with targets on every request, so that some are handed off and some
expire; what is handed off comes back to stay, as behind a gateway with no other instance. About 8 minutes.

Per cell: mean JCT, mean TTFT and p99 JCT, real and simulated, means over the streams; `error` is simulated /
real - 1. A machine that does other things too is faster in one run than in the next, and in a queue a little
more time a step is much more waiting. So `error_at_own_speed` simulates each stream at the speed that its real
run had, all of the profile's costs times one factor, by which its steps took as long in all as they did: what
remains is the shape of the law, and scheduling. `half_width` is that of its 95 % interval, for as many streams
as there are. Aim: errors at own speed of 3 %, 8 % and 8 % or less. `counts` are steps, preemptions and blocks
copied to the host of either side. `steps` says how the law of step times did on the steps of the real runs, and
what the loop took between steps. Writes the cost file, the records of every run, the steps of the real ones, and
what is printed. What is in DIR is not served again: a command that was stopped goes on, and
presets may be added one by one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec

from bench.command import command_line, say, stream_options
from bench.real_runs import MID, conclude_profile
from bench.simulator.fidelity_runs import (
    PLAIN,
    SWAPS,
    TARGETED,
    FidelityCell,
    FidelityRun,
    FidelitySetup,
    FidelityStream,
    Folder,
    RealSide,
    at_speed_of,
    mean_run,
    measure_real,
    missed,
    simulated,
    steps_report,
    with_link,
)
from headway.engine.machine import machine_name
from headway.errors import ConfigError
from headway.policies.presets import find_preset
from headway.predict.steps.calibration import Calibration, load_cost_file
from headway.whole_file import write_whole

# ---- the bench ---------------------------------------------------------------------------------------

DEFAULT_RUN_S = 30.0
DEFAULT_PROFILE_S = 90.0
SIMULATED_SEEDS = 3
"""Simulated runs of a stream, whose mean counts, as the clock draws noise."""
DEFAULT_RUNS = 4


def compare(folder: Folder) -> dict[str, Any]:
    """Simulate every cell whose real runs have ended and compare; takes seconds.

    Raises ConfigError if there is none, or too little was profiled.
    """
    side, measured = folder.side(), folder.measurements()
    cells = [] if side is None else [cell for cell in side.setup.cells() if _is_whole(folder, side, *cell)]
    if side is None or measured is None or not cells:
        raise ConfigError(
            f"{folder.path} has no cell of which all real runs have ended; leave out --simulate-only"
        )
    conclude_profile(measured, MID, folder.cost_file)
    calibration = with_link(load_cost_file(folder.cost_file).calibration(), side.setup.host_kv)
    table: dict[str, dict[str, Any]] = {}
    for policy, load in cells:
        cell = _compared(folder, side, calibration, policy, load).to_dict()
        say(f"{policy} at {load:g}: errors {cell['error_at_own_speed']}, {cell['counts']}")
        table.setdefault(policy, {})[f"{load:g}"] = cell
    rows = [row for cell in cells for run in _real_runs(side, *cell) for row in folder.steps(run)]
    return {
        "machine": machine_name(),
        "capacity_rps": side.capacity_rps,
        "cells": table,
        "steps": steps_report(rows, calibration),
    }


def _real_runs(side: RealSide, policy: str, load: float) -> list[FidelityStream]:
    return [FidelityStream(policy, load, number) for number in range(side.runs)]


def _is_whole(folder: Folder, side: RealSide, policy: str, load: float) -> bool:
    return all(folder.has(run) for run in _real_runs(side, policy, load))


def _compared(
    folder: Folder, side: RealSide, calibration: Calibration, policy: str, load: float
) -> FidelityCell:
    runs = _real_runs(side, policy, load)

    def simulated_as(run: FidelityStream, costs: Calibration) -> FidelityRun:
        trace = side.trace(run)
        return mean_run([simulated(costs, trace, policy, side, seed) for seed in range(SIMULATED_SEEDS)])

    model = [simulated_as(run, calibration) for run in runs]
    for run, found in zip(runs, model, strict=True):
        folder.keep(run.simulated_name, found.records)
    own = [simulated_as(run, at_speed_of(calibration, folder.steps(run))) for run in runs]
    return FidelityCell([folder.real(run) for run in runs], model, own)


def main() -> None:
    """Print one JSON object; exit status 1 if an error is larger than its aim."""
    arguments = options().parse_args()
    folder = Folder(arguments.out)
    if not arguments.simulate_only:
        setup = setup_of(arguments)
        measure_real(folder, setup, arguments.runs, arguments.seconds, arguments.profile_seconds)
    report = compare(folder)
    text = json.dumps(report)
    write_whole(folder.path / "fidelity.json", f"{text}\n".encode())
    print(text)
    sys.exit(bool(missed(report["cells"])))


def options() -> argparse.ArgumentParser:
    """The command's options."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is written")
    parser.add_argument(
        "--runs", type=int, default=DEFAULT_RUNS, help=f"streams a cell (default {DEFAULT_RUNS})"
    )
    stream_options(parser, seconds=DEFAULT_RUN_S)
    parser.add_argument("--profile-seconds", type=float, default=DEFAULT_PROFILE_S, help="default 90")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--swaps", action="store_true", help="the presets that swap, with host memory")
    kind.add_argument("--targets", action="store_true", help="Ascendra's instances, with targets")
    parser.add_argument("--policy", action="append", help="this preset in place of those (repeatable)")
    parser.add_argument(
        "--simulate-only",
        action="store_true",
        help="against the real runs that DIR holds already, as they are",
    )
    return parser


def setup_of(arguments: argparse.Namespace) -> FidelitySetup:
    """The comparison that the options describe. Raises ConfigError, before an engine starts, for an option that is
    not accepted.
    """
    for name in ("runs", "seconds", "profile_seconds"):
        value = getattr(arguments, name)
        if not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}; accepted: more than 0")
    for policy in arguments.policy or ():
        find_preset(policy)
    setup = SWAPS if arguments.swaps else TARGETED if arguments.targets else PLAIN
    return msgspec.structs.replace(setup, policies=tuple(arguments.policy or setup.policies))


if __name__ == "__main__":
    main()
