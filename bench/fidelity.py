"""How near the simulator comes to the real engine: `python bench/fidelity.py --out DIR --json`.

Serves the same streams for real and simulated, with a made model of 46 million parameters: four policies at
three loads, the real engine twice each, so that its own run-to-run spread stands beside the simulator's error.
Slices of `headway profile` between the runs make the calibration. About 17 minutes on 2 cores;
`--simulate-only` compares again with the real runs already in DIR, in seconds. `--swaps` serves the presets
that swap, and their ablations, at one load with few KV blocks, host memory, and copies held to a stated
bandwidth, which is then the simulator's too; those that pause get a batch of three. About 30 minutes, or two for
each preset named by `--policy`. Those that go by predicted lengths are told the same ones on either side, made from
the true ones (Kendall's tau 0.8). `--targets` serves the two kinds of Ascendra's instances, each alone, around and
above capacity, with targets on every request, so that some are handed off and some expire; what is handed off comes
back to stay, as behind a gateway with no other instance. About 4 minutes.

Per cell: mean JCT, mean TTFT and p99 JCT, real (mean of the runs) and simulated; `error` is simulated / real - 1,
`spread` the runs' largest difference over their mean. Aim: errors of 3 %, 8 % and 8 % or less. `counts` are
steps, preemptions and blocks copied to the host of either side, means of its runs. A machine that does
other things too is faster in one run than in the next; `error_at_own_speed` compares each real run with one
simulated at the speed of its own steps (the worse of the runs), so that what remains is scheduling. `steps` says
how the law of step times did on the steps of the real runs, and what the loop took between steps. Writes the cost
file, the records of every run, the steps of the real ones, what is printed, and `fidelity.svg`. A command that
is stopped begins anew.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.fidelity_plot import fidelity_svg
from bench.fidelity_setup import PLAIN, SWAPS, TARGETED, Setup
from bench.fidelity_steps import Row, own_calibration, steps_report
from headway.core.cost import CostModel
from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.kv_host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.profile import Measurements, Profiler
from headway.engine.profile_result import Identity, conclude
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import EngineSizes, SteppedEngine
from headway.errors import ConfigError, HeadwayError
from headway.experiments.mid_model import ensure_mid_model
from headway.experiments.predictor_choice import length_source
from headway.experiments.real_engine import ServedStep, run_real
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.predict.calibration import Calibration
from headway.predict.cost_file import load_cost_file, write_cost_file
from headway.predict.transfer import TransferModel
from headway.results import read_records, summarize
from headway.results.records import RecordWriter
from headway.sim.length_source import LengthSource
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import LogNormal, Poisson, TraceRequest, generate
from headway.whole_file import write_whole

COST_FILE, REAL_FILE, STEPS_FILE = "cost.json", "real.json", "steps.jsonl"
METRICS = {"mean_jct_s": 0.03, "mean_ttft_s": 0.08, "p99_jct_s": 0.08}
"""Summary key -> the error that is aimed at."""
INPUTS = LogNormal.fitted(256.0, 0.9, 1024)
OUTPUTS = LogNormal.fitted(48.0, 0.8, 192)
MAX_OUTPUT_TOKENS = 192
"""What every request declares, and policies see."""
PREDICTOR = "noisy-oracle:tau=0.8"
BURST_REQUESTS = 96
DEFAULT_RUN_S = 30.0
DEFAULT_PROFILE_S = 90.0
SIMULATED_SEEDS = 3
"""Simulated runs a cell; their mean counts, as the clock draws noise."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stream, real or simulated: its metrics, and what it took."""

    values: Values
    counts: Values
    records: Sequence[Record] = ()


def run_of(records: Sequence[Record], steps: int) -> Run:
    """The run that left these records, with so many steps that had work."""
    summary = summarize(records).to_dict()
    return Run(
        values={key: float(summary[key] or 0.0) for key in METRICS},
        counts={
            "steps": steps,
            "preemptions": sum(record.preemptions for record in records),
            "swapped_blocks": sum(record.swapped_blocks for record in records),
            "handed_off": sum(record.outcome is Outcome.HANDED_OFF for record in records),
            "expired": sum(record.outcome is Outcome.EXPIRED for record in records),
        },
        records=records,
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: every real run, every simulated one, and what is simulated at its speed.

    `own` holds, for each real run, what is simulated with the law fitted to the steps of that very run.
    """

    real: Sequence[Run]
    simulated: Sequence[Run]
    own: Sequence[Run]

    def to_dict(self) -> dict[str, Any]:
        """Means, errors and spreads, the latter as fractions."""
        runs = [run.values for run in self.real]
        real, simulated = _means(runs), _means([run.values for run in self.simulated])
        return {
            "real": real,
            "simulated": simulated,
            "error": {key: simulated[key] / real[key] - 1 for key in METRICS},
            "spread": {key: _spread([run[key] for run in runs]) for key in METRICS},
            "counts": {
                "real": _means([run.counts for run in self.real]),
                "simulated": _means([run.counts for run in self.simulated]),
            },
            "error_at_own_speed": {key: self._worst_at_own_speed(key) for key in METRICS},
        }

    def _worst_at_own_speed(self, key: str) -> float:
        """The error of the run that is farthest from its own simulated one."""
        pairs = zip(self.own, self.real, strict=True)
        return max((own.values[key] / run.values[key] - 1 for own, run in pairs), key=abs)


def _means(runs: Sequence[Values]) -> Values:
    return {key: sum(run[key] for run in runs) / len(runs) for key in runs[0]}


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / (sum(values) / len(values))


# ---- streams -----------------------------------------------------------------------------------------


def stream(rate_rps: float, seconds: float, seed: int, slo: Slo = NO_TARGETS) -> list[TraceRequest]:
    """Poisson arrivals for about so many seconds, with the lengths above and these targets."""
    requests = generate(Poisson(rate_rps), INPUTS, OUTPUTS, max(8, round(rate_rps * seconds)), seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS, slo=slo) for request in requests]


def predictions(policy: str, trace: Sequence[TraceRequest]) -> LengthSource | None:
    """Who says how long answers will be, to a policy that goes by it: the same for every run of a stream."""
    return length_source(PREDICTOR, trace) if build_policy(find_preset(policy)).uses_predictions else None


def capacity_rps(engine: SteppedEngine) -> float:
    """Requests a second of a burst, all at once: the most this engine serves."""
    burst = [replace(request, arrival_s=0.0) for request in stream(1.0, BURST_REQUESTS, seed=99)]
    run = run_real(engine, burst, EngineSettings(policy="vllm"))
    return len(run.records) / max(record.finished_s or 0.0 for record in run.records)


# ---- the two sides -----------------------------------------------------------------------------------


def conclude_profile(measured: Measurements, file: Path) -> None:
    """Write what was measured as a cost file."""
    identity = Identity(
        machine=machine_name(), model="mid", vllm_version=vllm_version(), measured_on=date.today().isoformat()
    )
    result = conclude(measured, identity)
    write_cost_file(file, result.cost)
    _say(json.dumps(result.to_dict()))


def profile_for(engine: SteppedEngine, profiler: Profiler, seconds: float) -> None:
    """Go on with the profile for about so long."""
    engine.schedule_with(EngineSettings())
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        profiler.play_next()


def with_link(calibration: Calibration, host_kv: HostKv | None) -> Calibration:
    """The calibration with copies as slow as the engine's were held to."""
    if host_kv is None or host_kv.bytes_per_s is None:
        return calibration
    link = TransferModel(start_s=0.0, bytes_per_s=host_kv.bytes_per_s)
    return replace(calibration, to_host=link, to_device=link)


def simulated(
    calibration: Calibration,
    trace: Sequence[TraceRequest],
    policy: str,
    side: RealSide,
    seed: int = 0,
) -> Run:
    """The same stream on one simulated engine of the same sizes."""
    sizes, host_kv = side.sizes, side.setup.host_kv
    limits = EngineLimits(
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        batch_width=side.setup.batch_width(policy),
        prefix_caching=sizes.prefix_caching,
        host_blocks=(host_kv and host_kv.blocks) or 0,
    )
    records: list[Record] = []

    def parts(cost: CostModel) -> Policy:
        return build_policy(find_preset(policy), cost=cost)

    result = simulate(
        trace,
        parts,
        System(limits=limits, calibration=calibration),
        on_record=records.append,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=seed,
        lengths=predictions(policy, trace),
    )
    return run_of(records, sum(totals.steps for totals in result.totals.values()))


# ---- the bench ---------------------------------------------------------------------------------------


class RealSide(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulated side needs to know of the real one; kept in the folder as `real.json`."""

    setup: Setup
    sizes: EngineSizes
    capacity_rps: float
    run_s: float
    runs: int

    def trace(self, load: float) -> list[TraceRequest]:
        """The stream of every run at this load."""
        return stream(load * self.capacity_rps, self.run_s, seed=int(100 * load), slo=self.setup.slo)


def measure_real(out: Path, setup: Setup, runs: int, run_s: float, profile_s: float) -> None:
    """Find the capacity, serve every cell, profile in between; all is left in `out`.

    A slice of the profile comes before every run, so that what else the machine does falls on both alike.
    `real.json` is written last: it says that the folder is whole.
    """
    (out / REAL_FILE).unlink(missing_ok=True)
    engine = start(setup)
    try:
        measured = Measurements(engine.sizes)
        profiler = Profiler(engine, measured, seconds=profile_s)
        profiler.prepare(lambda share, what: None)
        side = RealSide(
            setup=setup, sizes=engine.sizes, capacity_rps=capacity_rps(engine), run_s=run_s, runs=runs
        )
        _say(f"capacity {side.capacity_rps:.2f} requests a second")
        slice_s = profile_s / runs / len(setup.cells())
        with (out / STEPS_FILE).open("w") as steps:
            # All cells once, then all again, for the same reason.
            for run, (policy, load) in product(range(runs), setup.cells()):
                profile_for(engine, profiler, slice_s)
                gc.collect()
                settings = EngineSettings(policy=policy, batch_width=setup.batch_width(policy))
                trace = side.trace(load)
                real = run_real(engine, trace, settings, lengths=predictions(policy, trace))
                rows = ({"run": _name(policy, load, f"real-{run}"), **_row(served)} for served in real.steps)
                steps.writelines(json.dumps(row) + "\n" for row in rows)
                _keep(out, _name(policy, load, f"real-{run}"), real.records)
                done = run_of(real.records, len(real.steps))
                _say(f"{policy} at {load:g}, run {run + 1}: {done.values} {done.counts}")
        conclude_profile(measured, out / COST_FILE)
        write_whole(out / REAL_FILE, msgspec.json.encode(side))
    finally:
        engine.close()


def compare(out: Path) -> dict[str, Any]:
    """Simulate every cell and put it beside the real runs in `out`; takes seconds. Raises ConfigError without them."""
    if not (out / REAL_FILE).is_file():
        raise ConfigError(f"{out} has no {REAL_FILE}; accepted: a folder in which all real runs have ended")
    side = msgspec.json.decode((out / REAL_FILE).read_bytes(), type=RealSide)
    calibration = with_link(load_cost_file(out / COST_FILE).calibration(), side.setup.host_kv)
    rows = [json.loads(line) for line in (out / STEPS_FILE).read_text().splitlines()]
    table: dict[str, dict[str, Any]] = {policy: {} for policy in side.setup.policies}
    for policy, load in side.setup.cells():
        cell = _compare_cell(out, side, calibration, rows, policy, load).to_dict()
        _say(f"{policy} at {load:g}: errors {cell['error']}, {cell['counts']}")
        table[policy][f"{load:g}"] = cell
    return {
        "machine": machine_name(),
        "capacity_rps": side.capacity_rps,
        "cells": table,
        "steps": steps_report(rows, calibration),
    }


def _compare_cell(
    out: Path, side: RealSide, calibration: Calibration, rows: Sequence[Row], policy: str, load: float
) -> Cell:
    trace = side.trace(load)
    real: list[Run] = []
    own: list[Run] = []
    for run in range(side.runs):
        name = _name(policy, load, f"real-{run}")
        its_rows = [row for row in rows if row["run"] == name]
        real.append(run_of(read_records(out / f"{name}.jsonl"), len(its_rows)))
        own.append(simulated(own_calibration(calibration, its_rows), trace, policy, side))
    model: list[Run] = []
    for seed in range(SIMULATED_SEEDS):
        model.append(simulated(calibration, trace, policy, side, seed))
        _keep(out, _name(policy, load, f"simulated-{seed}"), model[-1].records)
    return Cell(real, model, own)


def _row(served: ServedStep) -> Row:
    step = served.step
    return {"shape": asdict(step.shape), "seconds": step.seconds - step.copy_wait_s, "gap_s": served.gap_s}


def _name(policy: str, load: float, which: str) -> str:
    return f"{policy}-{load:g}-{which}"


def _keep(out: Path, name: str, records: Sequence[Record]) -> None:
    file = out / f"{name}.jsonl"
    file.unlink(missing_ok=True)
    with RecordWriter(file) as writer:
        for record in records:
            writer.append(record)


def main() -> None:
    """Print one JSON object; exit status 1 if an error is larger than its aim, 2 for what is not accepted."""
    arguments = options().parse_args()
    out = arguments.out
    try:
        if not arguments.simulate_only:
            setup = setup_of(arguments)
            out.mkdir(parents=True, exist_ok=True)
            measure_real(out, setup, arguments.runs, arguments.seconds, arguments.profile_seconds)
        report = compare(out)
    except HeadwayError as error:
        _say(f"fidelity: {error}")
        sys.exit(2)
    (out / "fidelity.svg").write_text(fidelity_svg(report["cells"], tuple(METRICS)))
    text = json.dumps(report)
    (out / "fidelity.json").write_text(text + "\n")
    print(text)
    sys.exit(bool(missed(report["cells"])))


def options() -> argparse.ArgumentParser:
    """The command's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for all that is written")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--runs", type=int, default=2, help="real runs a cell (default 2)")
    parser.add_argument("--seconds", type=float, default=DEFAULT_RUN_S, help="of arrivals a run (default 30)")
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


def setup_of(arguments: argparse.Namespace) -> Setup:
    """What is to be compared. Raises ConfigError for what is not accepted, before an engine starts."""
    for name in ("runs", "seconds", "profile_seconds"):
        value = getattr(arguments, name)
        if not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}; accepted: more than 0")
    for policy in arguments.policy or ():
        find_preset(policy)
    setup = SWAPS if arguments.swaps else TARGETED if arguments.targets else PLAIN
    return msgspec.structs.replace(setup, policies=tuple(arguments.policy or setup.policies))


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Cells and metrics whose error is larger than its aim."""
    return [
        f"{policy} at {load}: {key}"
        for policy, row in cells.items()
        for load, cell in row.items()
        for key, aim in METRICS.items()
        if abs(cell["error"][key]) > aim
    ]


def start(setup: Setup) -> SteppedEngine:
    """The engine, its worker on the first core and this loop on the last, so that they do not trade places."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(cores) > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores[:-1])))
    settings = EngineSettings(host_kv=setup.host_kv)
    engine = SteppedEngine(str(ensure_mid_model()), setup.vllm_flags(), settings)
    os.sched_setaffinity(0, cores[-1:])
    return engine


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
