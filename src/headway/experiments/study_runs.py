"""The runs of a paper's experiments: each decided by plain data, simulated once, kept in one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import version
from io import BufferedWriter
from pathlib import Path

import msgspec

from headway.core.record import Record
from headway.errors import ConfigError, HeadwayError
from headway.experiments.micro_batches import micro_batched
from headway.experiments.policy_choice import OWN_PARTS, Parts, policy_factory
from headway.experiments.policy_meter import Meter, metered
from headway.experiments.run_cells import in_processes
from headway.experiments.simulation import fingerprint, run_info
from headway.experiments.stream import Stream
from headway.predict.calibration import Calibration
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.results import Summary, summarize
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest
from headway.whole_file import write_whole

FILE = "runs.jsonl"


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
        said = [_release(), _fingerprint(*_machine(self)), *sorted(asdict(self).items())]
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


@lru_cache(maxsize=1)
def _release() -> str:
    return version("headway")


@lru_cache(maxsize=8)
def _fingerprint(hardware: str, model: str, tp: int, stages: int) -> str:
    return fingerprint(_calibration(hardware, model, tp, stages))


# ---- what is done is kept ------------------------------------------------------------------------------


class _Line(msgspec.Struct, frozen=True):
    """A line of the file."""

    digest: str
    result: RunResult


@dataclass(slots=True)
class KeptRuns:
    """Runs that are done, in DIR/runs.jsonl: a line each, written as it ends, so that a kill loses none of them.

    The same file serves any number of studies: a run is found by its digest.
    """

    root: Path
    done: dict[str, RunResult] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path) -> KeptRuns:
        """What a folder holds; a last line cut short by a kill is dropped.

        Raises ConfigError if the file holds anything else or cannot be read.
        """
        path = root / FILE
        kept = cls(root)
        if not path.exists():
            return kept
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            for line in whole.splitlines():
                found = msgspec.json.decode(line, type=_Line)
                kept.done[found.digest] = found.result
            if whole != content:
                write_whole(path, whole)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{path} holds something else than runs ({error}); give another folder"
            ) from error
        return kept

    def result(self, run: StudyRun) -> RunResult | None:
        """What a run came to; None if it is not done."""
        return self.done.get(run.digest())

    @contextmanager
    def adding(self) -> Iterator[Callable[[StudyRun, RunResult], None]]:
        """A function that keeps one run more. Raises ConfigError if the folder cannot be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file: BufferedWriter = (self.root / FILE).open("ab")
        except OSError as error:
            raise ConfigError(f"{self.root}: cannot be written ({error.strerror})") from error

        def add(run: StudyRun, result: RunResult) -> None:
            digest = run.digest()
            file.write(msgspec.json.encode(_Line(digest, result)) + b"\n")
            file.flush()
            self.done[digest] = result

        with file:
            yield add


def run_study(
    runs: Sequence[StudyRun],
    kept: KeptRuns,
    *,
    jobs: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Simulate the runs that are not kept yet, in up to `jobs` processes (None: one a core), and keep them.

    `tick` hears of each as it is kept. KeyboardInterrupt passes through with all processes ended and what is
    done kept. The first run that raises ends the others.
    """
    todo = [run for run in runs if kept.result(run) is None]
    jobs = jobs or os.cpu_count() or 1
    with kept.adding() as add:
        if min(jobs, len(todo)) <= 1:
            for run in todo:
                add(run, simulate_run(run))
                tick()
            return
        with closing(in_processes(_simulated, todo, jobs)) as results:
            for run, result in results:
                add(run, result)
                tick()


def _simulated(run: StudyRun) -> tuple[StudyRun, RunResult]:
    return run, simulate_run(run)
