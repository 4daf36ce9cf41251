"""Ascendra on this machine's own engine: three small instances behind the gateway, measured once, kept in one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec

from headway.engine.machine import machine_name, vllm_version
from headway.errors import VLLM_COMES_BY
from headway.json_file import write_json
from headway.lab.papers import Request, Tell
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.real_run import (
    Calibrated,
    StreamRun,
    calibrated,
    serve_stream,
    warm_up,
)
from headway_reproduce.ascendra.real_servers import Fleet, fleet
from headway_reproduce.ascendra.real_stream import Shape, TargetRule, bursty_stream
from headway_reproduce.ascendra.real_systems import ASCENDRA
from headway_reproduce.measured_once import MeasuredOnce, read_current

FILE = "ascendra-real-engine.json"
INSTANCES = 3
SYSTEMS = (ASCENDRA, "vllm round-robin, drop", "vllm least-work, drop")
"""All of them drop what is still waiting past its TTFT target, as in the paper's overload."""
LOADS = (1.0, 1.5)
SEEDS, SECONDS_A_RUN = 2, 12.0
SECONDS = 300.0
"""About how long all of it takes on two cores."""
NEEDED = ("vllm", "aiohttp", "starlette", "uvicorn")
TITLE = "The same on a real engine"


class RealCell(msgspec.Struct, frozen=True, kw_only=True):
    """One system at one load: a run for each seed."""

    system: str
    load: float
    runs: tuple[StreamRun, ...]

    @property
    def goodput(self) -> float:
        """Mean over the seeds."""
        return fmean(run.summary.goodput or 0.0 for run in self.runs)

    def mean(self, key: str) -> float | None:
        """The mean over the seeds of a summary key; None where one has no such value."""
        values = [getattr(run.summary, key) for run in self.runs]
        return None if None in values else fmean(values)


class AscendraReal(MeasuredOnce, frozen=True, kw_only=True):
    """What was measured, and on what."""

    hardware: str
    calibrated: Calibrated
    ttft_target_s: float
    tbt_target_s: float
    cells: tuple[RealCell, ...]


def real_seconds(request: Request) -> float:
    """About how long `real_runs` will take. Raises RecordError as it does."""
    if request.quick or read_current(request.root / FILE, AscendraReal) or _missing():
        return 0.0
    return SECONDS


def real_runs(request: Request, tell: Tell) -> AscendraReal | None:
    """What the folder keeps of these releases, else measured now and kept; None for --quick, or without what is needed.

    Raises UpstreamError if a server does not start, SimulationError if a request fails before anything is compared,
    RecordError if what is kept cannot be read.
    """
    path = request.root / FILE
    if request.quick:
        return None
    kept = read_current(path, AscendraReal)
    if kept is not None:
        return kept
    if _missing():
        return None
    tell(f"real engine: starting {2 * INSTANCES} instances of vLLM")
    with TemporaryDirectory() as logs, fleet(SYSTEMS, INSTANCES, Path(logs), tell) as servers:
        found = compared(servers, tell)
    write_json(path, found)
    return found


def _missing() -> list[str]:
    return [module for module in NEEDED if find_spec(module) is None]


def compared(servers: Fleet, tell: Tell) -> AscendraReal:
    """Every load on every system, turn by turn; who begins changes."""
    warm_up(servers)
    measured = calibrated(servers, Shape(), tell)
    slo = TargetRule().targets(measured.light)
    runs: dict[tuple[float, str], list[StreamRun]] = {(load, name): [] for load in LOADS for name in SYSTEMS}
    for turn in range(SEEDS * len(LOADS)):
        seed, place = divmod(turn, len(LOADS))
        load, first = LOADS[place], turn % len(SYSTEMS)
        requests = bursty_stream(load * measured.capacity_rps, SECONDS_A_RUN, seed, slo)
        for name in (*SYSTEMS[first:], *SYSTEMS[:first]):
            tell(f"real engine: {name}, load {load:g}, seed {seed + 1} of {SEEDS}")
            run, _ = serve_stream(servers, name, requests)
            runs[load, name].append(run)
    return AscendraReal(
        hardware=f"{machine_name()}, vLLM {vllm_version()}",
        calibrated=measured,
        ttft_target_s=slo.ttft_s or 0.0,
        tbt_target_s=slo.tbt_s or 0.0,
        cells=tuple(RealCell(system=name, load=load, runs=tuple(of)) for (load, name), of in runs.items()),
    )


# ---- what came out -------------------------------------------------------------------------------------


def real_part(found: AscendraReal | None) -> StudyPart:
    """The systems beside each other; or that they were not run, and why."""
    if found is None:
        needs = f" It needs {', '.join(_missing())}: {VLLM_COMES_BY}." if _missing() else ""
        return StudyPart(title=TITLE, text=[f"Not run: --quick leaves it out.{needs}"])
    return StudyPart(title=TITLE, text=[_targets(found), _crowding(found)], tables=[_table(found)])


def real_data(found: AscendraReal | None) -> Mapping[str, object] | None:
    """What scripts read; None where it was not run."""
    if found is None:
        return None
    return {
        "instances": INSTANCES,
        "capacity_rps": found.calibrated.capacity_rps,
        "ttft_target_s": found.ttft_target_s,
        "tbt_target_s": found.tbt_target_s,
        "goodput": {f"{load:g}": {cell.system: cell.goodput for cell in _at(found, load)} for load in LOADS},
        "over_best": {f"{load:g}": _over_best(found, load) for load in LOADS},
        "decode_inflation": found.calibrated.decode_inflation,
    }


def _at(found: AscendraReal, load: float) -> list[RealCell]:
    return [cell for cell in found.cells if cell.load == load]


def _over_best(found: AscendraReal, load: float) -> float | None:
    """Ascendra's goodput over the better of the others'; None where they have none."""
    goodput = {cell.system: cell.goodput for cell in _at(found, load)}
    best = max(value for name, value in goodput.items() if name != ASCENDRA)
    return goodput[ASCENDRA] / best if best else None


def _table(found: AscendraReal) -> StudyTable:
    return StudyTable(
        name="real-engine",
        title=f"{INSTANCES} instances of the demo model, a bursty stream at and above capacity",
        measured_on=f"real engine, {found.hardware}",
        headings=(
            *("load", "system", "goodput", "least and most", "TTFT p99, s", "TBT mean, s", "dropped"),
            "cores of the instances",
        ),
        rows=[_row(cell) for load in LOADS for cell in _at(found, load)],
        note=f"Mean of {SEEDS} seeds, with the least and the most goodput of one. Load 1 is what the instances get "
        f"through of such a stream under stock vLLM, all at once: {found.calibrated.capacity_rps:.1f} req/s. All drop "
        f"what still waits past its TTFT target. {Shape().text()}.",
        decimals=3,
        keys=2,
    )


def _row(cell: RealCell) -> list[Value]:
    goodputs = [run.summary.goodput or 0.0 for run in cell.runs]
    dropped = fmean(run.summary.expired / run.summary.requests for run in cell.runs)
    return [
        f"{cell.load:g}",
        cell.system,
        cell.goodput,
        f"{min(goodputs):.3f} to {max(goodputs):.3f}",
        cell.mean("p99_ttft_s"),
        cell.mean("mean_tbt_s"),
        dropped,
        " ".join(f"{name} {cores:.2f}" for name, cores in _cores(cell.runs)),
    ]


def _cores(runs: Iterable[StreamRun]) -> list[tuple[str, float]]:
    """What each instance used of a core, mean over the runs; instances come first in the shares."""
    shares = [run.shares for run in runs]
    return [(name, fmean(share[name].cores for share in shares)) for name in list(shares[0])[:INSTANCES]]


def _targets(found: AscendraReal) -> str:
    return (
        f"Targets: first token within {found.ttft_target_s:.3f} s, {found.tbt_target_s:.3f} s between tokens "
        f"({TargetRule().text()})."
    )


def _crowding(found: AscendraReal) -> str:
    """What sharing the machine cost."""
    inflation = found.calibrated.decode_inflation
    each = ", ".join(f"{name} {times:.2f}" for name, times in inflation.items())
    return (
        f"The instances share the machine with one another, the gateway and the client: with all at work the time "
        f"between tokens is so many times that of an instance alone: {each}."
    )
