"""The runs of a paper's experiments: each decided by plain data, simulated once, kept in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from headway.core.record import Record
from headway.errors import HeadwayError
from headway.lab.kept_runs import FILE as FILE
from headway.lab.kept_runs import Kept, release, run_kept
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory
from headway.lab.simulation import fingerprint, run_info
from headway.lab.stream import Stream
from headway.predict.calibration import Calibration
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.results import Summary, summarize
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest
from headway_reproduce.micro_batches import micro_batched
from headway_reproduce.policy_meter import Meter, metered


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """All that decides one simulated run of one engine.

    `seed` draws the workload `trace` (`gen:...`) anew, and the noise of the clock. Each pipeline stage is of `tp`
    GPUs. `parts` take the place of the policy's own; with `micro_batches` it fills a batch for each stage.
    `copy_bytes_per_s` takes the place of the hardware's own rate between device and host. With `every_step` no
    stretch of equal steps is stepped over, so that the time of every plan is measured, and the KV at each.
    """

    hardware: str
    model: str
    trace: str
    policy: str
    seed: int
    max_output_tokens: int
    limits: EngineLimits
    tp: int = 1
    parts: Parts = OWN_PARTS
    micro_batches: bool = False
    copy_bytes_per_s: float | None = None
    every_step: bool = False

    def digest(self) -> str:
        """Tells apart any two runs that may differ, in what is asked for, the costs, or the release."""
        said = [release(), _fingerprint(*_machine(self)), *sorted(asdict(self).items())]
        return sha256(repr(said).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to: `end_s` simulated seconds and `steps`; `meter` counts what the policy did."""

    summary: Summary
    end_s: float
    steps: int
    meter: Meter


def simulate_run(run: StudyRun) -> RunResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    records: list[Record] = []
    meter = Meter()
    requests = _requests(run.trace, run.seed)
    build = policy_factory(run.policy, run.parts, requests)
    if run.micro_batches:
        build = micro_batched(build)
    try:
        result = simulate(
            requests,
            metered(build, meter, count_kv=run.every_step),
            System(limits=run.limits, calibration=_costs(run)),
            on_record=records.append,
            max_output_tokens=run.max_output_tokens,
            seed=run.seed,
            shortcut=not run.every_step,
        )
    except HeadwayError as error:
        raise type(error)(f"{run.policy} on {run.model}, {run.trace}, seed {run.seed}: {error}") from error
    steps = sum(total.steps for total in result.totals.values())
    summary = summarize(records, run=run_info(result))
    return RunResult(summary=summary, end_s=result.end_s, steps=steps, meter=meter)


@lru_cache(maxsize=4)
def _requests(trace: str, seed: int) -> list[TraceRequest]:
    return Stream(trace).requests(seed)


def _costs(run: StudyRun) -> Calibration:
    costs, rate = _calibration(*_machine(run)), run.copy_bytes_per_s
    if rate is None:
        return costs
    return replace(
        costs,
        to_host=replace(costs.to_host, bytes_per_s=rate),
        to_device=replace(costs.to_device, bytes_per_s=rate),
    )


def _machine(run: StudyRun) -> tuple[str, str, int, int]:
    """What decides the costs: hardware, model, GPUs of a stage and stages."""
    return run.hardware, run.model, run.tp, run.limits.pipeline_stages


@lru_cache(maxsize=8)
def _calibration(hardware: str, model: str, tp: int, stages: int) -> Calibration:
    return calibration(hardware, model_shape(model), tp, stages)


@lru_cache(maxsize=8)
def _fingerprint(hardware: str, model: str, tp: int, stages: int) -> str:
    return fingerprint(_calibration(hardware, model, tp, stages))


# ---- what is done is kept ------------------------------------------------------------------------------


@dataclass(slots=True)
class KeptRuns(Kept[StudyRun, RunResult]):
    """Runs that are done, in DIR/runs.jsonl."""

    @classmethod
    def read(cls, root: Path) -> KeptRuns:
        """What a folder holds. Raises ConfigError if the file holds anything else or cannot be read."""
        kept = cls(root)
        kept.load(RunResult)
        return kept


def run_study(
    runs: Sequence[StudyRun],
    kept: KeptRuns,
    *,
    jobs: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Simulate the runs that are not kept yet, and keep them, as `run_kept`."""
    run_kept(runs, kept, simulate_run, jobs=jobs, tick=tick)
