"""The two sides of `bench/simulator/fidelity.py`: real runs, simulated runs, their figures and their folder."""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import msgspec
from headway_reproduce.mid_model import ensure_mid_model

from bench.command import pauses, say
from bench.figures import means
from bench.real_runs import kept_apart, profile_for
from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.host_kv import HostKv
from headway.engine.profiling.profile import Measurements, Profiler
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import ReportedSizes, SteppedEngine
from headway.errors import ConfigError
from headway.json_file import read_json, write_json
from headway.lab.predictor_choice import length_source
from headway.lab.real_engine import ServedStep, run_real
from headway.lab.simulation import simulate_policy
from headway.policies.presets import build_policy, find_preset
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.results import read_records, summarize
from headway.results.records import write_records
from headway.sim.lengths import LengthSource
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System
from headway.statistics import mean, quantile, student_t
from headway.traces import LogNormal, Poisson, TraceRequest, at_once, generate
from headway.whole_file import write_whole

VLLM_FLAGS = (
    *("--max-num-seqs", "32", "--max-num-batched-tokens", "1024", "--block-size", "32"),
    "--enforce-eager",
)
INPUTS = LogNormal.fitted(256.0, 0.9, 1024)
OUTPUTS = LogNormal.fitted(48.0, 0.8, 192)
MAX_OUTPUT_TOKENS = 192
"""The limit that every request declares, which policies see."""
PREDICTOR = "noisy-oracle:tau=0.8"
OTHER_STREAM = 1000
"""Distance between the seeds of two streams."""


class FidelitySetup(msgspec.Struct, frozen=True, kw_only=True):
    """The compared setting: policies, loads, and the engine's memory. None for KV blocks: as many as vLLM takes.

    `narrow` is the batch width of presets that pause; the others run as many requests as there are slots. `slo` are the
    targets of every request.
    """

    policies: tuple[str, ...]
    loads: tuple[float, ...]
    num_blocks: int | None = None
    host_kv: HostKv | None = None
    max_model_len: int = 2048
    narrow: int | None = None
    slo: Slo = NO_TARGETS

    def batch_width(self, policy: str) -> int | None:
        """Most requests in a step under a policy; None: all slots."""
        return self.narrow if pauses(find_preset(policy)) else None

    def cells(self) -> list[tuple[str, float]]:
        """Every policy and load."""
        return [(policy, load) for policy in self.policies for load in self.loads]

    def vllm_flags(self) -> tuple[str, ...]:
        """The engine's flags; vLLM's own count includes its null block."""
        flags = (*VLLM_FLAGS, "--max-model-len", str(self.max_model_len))
        if self.num_blocks is None:
            return flags
        return (*flags, "--num-gpu-blocks-override", str(self.num_blocks + 1))


PLAIN = FidelitySetup(policies=("vllm", "sarathi", "sjf", "hrrn"), loads=(0.5, 0.8, 1.1))
SWAPS = FidelitySetup(
    policies=(
        *("adaptivellm", "adaptivellm-prompt", "adaptivellm-plus", "vllm-s", "vllm-s-fallback"),
        *("fastserve", "fastserve-v3", "fastserve-artifact", "fastserve-fcfs", "fixed-priority"),
        *("predicted", "headway"),
    ),
    loads=(0.9,),
    num_blocks=48,
    max_model_len=1280,
    host_kv=HostKv(blocks=96, bytes_per_s=200e6),
    narrow=3,
)
"""Room for four or five requests; at 200 MB/s swapping is cheaper for some requests and recomputing for others."""
TARGETED = FidelitySetup(
    policies=("ascendra-lp", "ascendra-hp"), loads=(0.9, 1.3), slo=Slo(ttft_s=2.0, tbt_s=0.25)
)
"""At a load of 1.3 the queue exceeds the target within ten seconds."""


def stream(rate_rps: float, seconds: float, seed: int, slo: Slo = NO_TARGETS) -> list[TraceRequest]:
    """Poisson arrivals for about `seconds`, with the lengths above and these targets."""
    requests = generate(Poisson(rate_rps), INPUTS, OUTPUTS, max(8, round(rate_rps * seconds)), seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS, slo=slo) for request in requests]


def predictions(policy: str, trace: Sequence[TraceRequest]) -> LengthSource | None:
    """The predictor of answer lengths for a policy that uses them, the same for every run of a stream; else None."""
    return length_source(PREDICTOR, trace) if build_policy(find_preset(policy)).uses_predictions else None


@dataclass(frozen=True, slots=True)
class FidelityStream:
    """One stream of a cell, served by the real engine."""

    policy: str
    load: float
    number: int

    @property
    def name(self) -> str:
        """Stem of its files' names."""
        return f"{self.policy}-{self.load:g}-real-{self.number}"

    @property
    def simulated_name(self) -> str:
        """Stem of the file name of the simulated stream."""
        return f"{self.policy}-{self.load:g}-simulated-{self.number}"


class RealSide(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulated side needs to know about the real one."""

    setup: FidelitySetup
    sizes: ReportedSizes
    capacity_rps: float
    run_s: float
    runs: int

    def trace(self, run: FidelityStream) -> list[TraceRequest]:
        """The stream of a run: the same for every policy at its load."""
        seed = round(100 * run.load) + OTHER_STREAM * run.number
        return stream(run.load * self.capacity_rps, self.run_s, seed, self.setup.slo)


# ---- figures of a cell: real runs beside simulated ones ----------------------------------------------

METRICS = {"mean_jct_s": 0.03, "mean_ttft_s": 0.08, "p99_jct_s": 0.08}
"""Summary key -> the aimed error, with the machine at its own speed."""

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class FidelityRun:
    """One run of a stream, real or simulated: its metrics, counts and duration."""

    values: Values
    counts: Values
    records: Sequence[Record] = ()


def run_of(records: Sequence[Record], steps: int) -> FidelityRun:
    """The run with these records, and with this many steps that had work."""
    summary = summarize(records).to_dict()
    return FidelityRun(
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


def mean_run(runs: Sequence[FidelityRun]) -> FidelityRun:
    """The mean of several simulations of one stream, as one run; its records are the first one's."""
    values, counts = means([run.values for run in runs]), means([run.counts for run in runs])
    return FidelityRun(values, counts, runs[0].records)


@dataclass(frozen=True, slots=True)
class FidelityCell:
    """One policy at one load: real runs, one for each stream, and the same streams simulated.

    `simulated` uses the profile's costs, `own` the costs at the machine's speed in each real run.
    """

    real: Sequence[FidelityRun]
    simulated: Sequence[FidelityRun]
    own: Sequence[FidelityRun]

    def to_dict(self) -> dict[str, Any]:
        """Means over the streams, and their errors as fractions."""
        return {
            "real": means([run.values for run in self.real]),
            "simulated": means([run.values for run in self.simulated]),
            "error": self._errors(self.simulated),
            "error_at_own_speed": self._errors(self.own),
            "half_width": {key: self._half_width(key) for key in METRICS},
            "counts": {
                "real": means([run.counts for run in self.real]),
                "simulated": means([run.counts for run in self.own]),
            },
        }

    def _errors(self, simulated: Sequence[FidelityRun]) -> Values:
        found, real = means([run.values for run in simulated]), means([run.values for run in self.real])
        return {key: found[key] / real[key] - 1 for key in METRICS}

    def _half_width(self, key: str) -> float | None:
        """Half the width of the 95 % interval around the error at own speed, with streams taken as random; None for one
        stream.

        The interval is that of a ratio of means, with normal deviations: Student's t.
        """
        count = len(self.real)
        if count < 2:
            return None
        pairs = [(own.values[key], run.values[key]) for own, run in zip(self.own, self.real, strict=True)]
        real = mean(value for _, value in pairs)
        ratio = mean(own for own, _ in pairs) / real
        variance = fsum((own - ratio * value) ** 2 for own, value in pairs) / (count - 1)
        return student_t(count - 1) * sqrt(variance / count) / real


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Cells and metrics whose error at the machine's own speed is larger than its aim."""
    return [
        f"{policy} at {load}: {key}"
        for policy, row in cells.items()
        for load, cell in row.items()
        for key, aim in METRICS.items()
        if abs(cell["error_at_own_speed"][key]) > aim
    ]


# ---- the law of step times on the steps of the real runs ---------------------------------------------

Row = dict[str, Any]
"""A step of a real run: `run`, `shape`, `seconds`, `gap_s`."""


def steps_report(rows: Sequence[Row], calibration: Calibration) -> dict[str, dict[str, float]]:
    """By kind of step: how many, seconds measured, measured over predicted (`in_all`, and its quantiles).

    `gaps` is the loop's time between steps with work at hand, which no step's time includes. `noise` is the mean of the
    simulator clock's draws: it should equal `in_all` over all steps.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        shape = BatchShape(**row["shape"])
        pairs[shape.kind].append((row["seconds"], calibration.step.step_s(shape) + calibration.host_s))
    report = {kind: _ratios(found) for kind, found in pairs.items()}
    report["all"] = _ratios([pair for found in pairs.values() for pair in found])
    gaps = sorted(row["gap_s"] for row in rows if row["gap_s"] is not None)
    report["gaps"] = {
        "steps": len(gaps),
        "share": sum(gaps) / report["all"]["seconds"],
        "median_s": quantile(gaps, 0.5),
        "p99_s": quantile(gaps, 0.99),
    }
    report["noise"] = {"mean": mean_noise(calibration)}
    return report


def at_speed_of(calibration: Calibration, rows: Sequence[Row]) -> Calibration:
    """The same costs, all scaled by the one factor that makes these steps' total time right.

    The shape of the law stays as it was profiled, and so does the noise.
    """
    shapes = [BatchShape(**row["shape"]) for row in rows]
    device_s = mean_noise(calibration) * fsum(map(calibration.step.step_s, shapes))
    host_s = fsum(calibration.host_s + calibration.host_job_s * shape.num_jobs for shape in shapes)
    factor = fsum(row["seconds"] for row in rows) / (device_s + host_s)
    return replace(
        calibration,
        host_s=factor * calibration.host_s,
        host_job_s=factor * calibration.host_job_s,
        residuals=tuple(factor * residual for residual in calibration.residuals),
    )


def mean_noise(calibration: Calibration) -> float:
    """The mean of the simulator clock's draws."""
    residuals = calibration.residuals
    return mean(map(mean, pairwise(residuals))) if len(residuals) > 1 else residuals[0]


def _ratios(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    ordered = sorted(measured_s / predicted_s for measured_s, predicted_s in pairs)
    measured_s = sum(measured for measured, _ in pairs)
    return {
        "steps": len(pairs),
        "seconds": measured_s,
        "in_all": measured_s / sum(predicted for _, predicted in pairs),
        "p10": quantile(ordered, 0.1),
        "median": quantile(ordered, 0.5),
        "p90": quantile(ordered, 0.9),
    }


# ---- the folder, so that a stopped command goes on ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Folder:
    """All files of a bench: `real.json` first, then profile and runs, each as it ends."""

    path: Path

    @property
    def cost_file(self) -> Path:
        """The file of the profiled costs."""
        return self.path / "cost.json"

    # ---- the real side ---------------------------------------------------------------------------------

    def side(self) -> RealSide | None:
        """The stored side; None in an empty folder."""
        return read_json(self.path / "real.json", RealSide)

    def begun(self, setup: FidelitySetup, runs: int, run_s: float) -> RealSide | None:
        """The side of a command that is continued, with its policies beside the stored ones; None for one that begins.

        Raises ConfigError if the folder is of another kind of runs.
        """
        found = self.side()
        if found is None:
            return None
        others = dict.fromkeys((*found.setup.policies, *setup.policies))
        wanted = msgspec.structs.replace(setup, policies=found.setup.policies)
        if (wanted, runs, run_s) != (found.setup, found.runs, found.run_s):
            raise ConfigError(
                f"{self.path} holds other runs ({found.runs} of {found.run_s:g} s a cell, loads "
                f"{', '.join(f'{load:g}' for load in found.setup.loads)}); accepted: the same, or another folder"
            )
        return msgspec.structs.replace(
            found, setup=msgspec.structs.replace(found.setup, policies=tuple(others))
        )

    def keep_side(self, side: RealSide) -> None:
        """Store the side, before the first run."""
        write_json(self.path / "real.json", side)

    # ---- the profile -----------------------------------------------------------------------------------

    def measurements(self) -> Measurements | None:
        """The measurements of the profile so far."""
        return read_json(self.path / "profile.json", Measurements)

    def keep_measurements(self, measured: Measurements) -> None:
        """Store the profile's measurements so far."""
        write_json(self.path / "profile.json", measured)

    # ---- runs ------------------------------------------------------------------------------------------

    def _records_file(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"

    def _steps_file(self, run: FidelityStream) -> Path:
        return self.path / f"{run.name}-steps.json"

    def has(self, run: FidelityStream) -> bool:
        """Whether a real run has ended."""
        return self._records_file(run.name).is_file()

    def keep_real(self, run: FidelityStream, records: Sequence[Record], steps: Sequence[ServedStep]) -> None:
        """Store a real run that has ended; its records, which mark it as ended, come last."""
        write_whole(self._steps_file(run), json.dumps([_row(step) for step in steps]).encode())
        self.keep(run.name, records)

    def keep(self, name: str, records: Sequence[Record]) -> None:
        """Store the records of a run, real or simulated."""
        write_records(self._records_file(name), records)

    def steps(self, run: FidelityStream) -> list[Row]:
        """The steps of a real run."""
        found: list[Row] = json.loads(self._steps_file(run).read_bytes())
        return found

    def real(self, run: FidelityStream) -> FidelityRun:
        """Read a real run."""
        return run_of(read_records(self._records_file(run.name)), len(self.steps(run)))


def _row(served: ServedStep) -> Row:
    step = served.step
    return {"shape": asdict(step.shape), "seconds": step.seconds - step.copy_wait_s, "gap_s": served.gap_s}


# ---- the real side -----------------------------------------------------------------------------------

BURST_REQUESTS = 96


def measure_real(folder: Folder, setup: FidelitySetup, runs: int, run_s: float, profile_s: float) -> None:
    """Find the capacity, serve every cell that is not there yet, profile in between.

    A slice of the profile comes before every run, so that what else the machine does falls on both alike. Raises
    ConfigError if the folder is of another kind of runs.
    """
    begun = folder.begun(setup, runs, run_s)
    # All cells once, then all again, for the same reason.
    every = [FidelityStream(policy, load, run) for run, (policy, load) in product(range(runs), setup.cells())]
    todo = [run for run in every if not folder.has(run)]
    if not todo:
        return
    engine = _started(setup)
    try:
        measured = folder.measurements() or Measurements(engine.sizes)
        profiler = Profiler(engine, measured, seconds=profile_s)
        profiler.prepare(lambda share, what: None)
        side = begun or RealSide(
            setup=setup, sizes=engine.sizes, capacity_rps=_capacity_rps(engine), run_s=run_s, runs=runs
        )
        folder.keep_side(side)
        say(f"{len(todo)} of {len(every)} runs to do; capacity {side.capacity_rps:.2f} requests a second")
        for run in todo:
            profile_for(engine, profiler, profile_s / len(every))
            folder.keep_measurements(measured)
            _serve(folder, engine, side, run)
    finally:
        engine.close()


def _serve(folder: Folder, engine: SteppedEngine, side: RealSide, run: FidelityStream) -> None:
    gc.collect()
    settings = EngineSettings(policy=run.policy, batch_width=side.setup.batch_width(run.policy))
    trace = side.trace(run)
    real = run_real(engine, trace, settings, lengths=predictions(run.policy, trace))
    folder.keep_real(run, real.records, real.steps)
    done = folder.real(run)
    say(f"{run.policy} at {run.load:g}, run {run.number + 1}: {done.values} {done.counts}")


def _capacity_rps(engine: SteppedEngine) -> float:
    """Requests a second of a burst, all at once: this engine's throughput."""
    burst = at_once(stream(1.0, BURST_REQUESTS, seed=99))
    run = run_real(engine, burst, EngineSettings(policy="vllm"))
    return len(run.records) / max(record.finished_s or 0.0 for record in run.records)


def _started(setup: FidelitySetup) -> SteppedEngine:
    settings = EngineSettings(host_kv=setup.host_kv)
    return kept_apart(lambda: SteppedEngine(str(ensure_mid_model()), setup.vllm_flags(), settings))


# ---- the simulated side ------------------------------------------------------------------------------


def with_link(calibration: Calibration, host_kv: HostKv | None) -> Calibration:
    """The calibration with copies limited to the engine's bandwidth."""
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
) -> FidelityRun:
    """The same stream on one simulated engine of the same sizes."""
    sizes, host_kv = side.sizes, side.setup.host_kv
    limits = EngineLimits(
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_cudagraph_capture_size=sizes.graphed_tokens,
        batch_width=side.setup.batch_width(policy),
        prefix_caching=sizes.prefix_caching,
        host_blocks=(host_kv and host_kv.blocks) or 0,
    )
    result = simulate_policy(
        trace,
        policy,
        System(limits=limits, calibration=calibration),
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=seed,
        lengths=predictions(policy, trace),
    )
    return run_of(result.records, result.total("steps"))
