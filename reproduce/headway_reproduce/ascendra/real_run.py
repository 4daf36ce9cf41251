"""Ascendra on this machine's own engine: a stream through one gateway to small real instances, measured once."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from headway.core.record import Record
from headway.engine.machine import machine_name, vllm_version
from headway.errors import VLLM_COMES_BY
from headway.json_file import read_json, write_json
from headway.lab.kept_runs import release
from headway.lab.papers import PaperRequest, Tell
from headway.lab.policy_bench import all_finished, capacity_rps
from headway.lab.server import RunningServer
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.results import Summary, summarize
from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import mean, mean_of_all, median
from headway.traces import TraceRequest
from headway_reproduce.ascendra.real_servers import SYSTEMS, VLLM, AscendraServers, fleet, settle
from headway_reproduce.ascendra.real_stream import RULE_TEXT, SHAPE_TEXT, bursty_stream, targets
from headway_reproduce.process_cpu import cpu_s

CAPACITY_SEED, LIGHT_SEED, WARM_SEED = 99, 98, 97
CAPACITY_REQUESTS = 200
WARM_RPS, WARM_SECONDS = 10.0, 4.0
LIGHT_LOAD, LIGHT_SECONDS = 0.2, 10.0
PROBE_REQUESTS, PROBE_INPUT_TOKENS, PROBE_OUTPUT_TOKENS = 8, 32, 200


class StreamRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stream on a system, and the CPU use of each instance, in cores."""

    summary: Summary
    cores: dict[str, float]


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """Measured before the comparison.

    `decode_inflation`: the time between tokens at an instance while all instances work, over the same alone.
    """

    capacity_rps: float
    light: Summary
    decode_inflation: dict[str, float]


def serve_stream(fleet: AscendraServers, system: str, requests: Sequence[TraceRequest]) -> StreamRun:
    """Send a stream to a system's gateway and wait for every answer."""
    gc.collect()
    gateway, instances = fleet.gateways[system], fleet.instances[SYSTEMS[system].service]
    settle(gateway.url)
    before_s = {name: cpu_s(place.pid) for name, place in instances.items()}
    began_s = time.perf_counter()
    report = _replayed(gateway.url, requests)
    wall_s = time.perf_counter() - began_s
    after_s = {name: cpu_s(place.pid) for name, place in instances.items()}
    return StreamRun(
        summary=summarize(report.records),
        cores={name: (after_s[name] - before_s[name]) / wall_s for name in instances},
    )


def _replayed(url: str, requests: Sequence[TraceRequest]) -> ReplayReport:
    return asyncio.run(replay(requests, ReplayOptions(url=url)))


# ---- before anything is compared -----------------------------------------------------------------------


def warm_up(fleet: AscendraServers) -> None:
    """Send requests through every gateway for some seconds, so that no system pays for what happens only once.

    They come one after another, so that every pool gets some, and its step-time model learns.
    """
    for place in fleet.gateways.values():
        first = bursty_stream(WARM_RPS, WARM_SECONDS, WARM_SEED)
        _replayed(place.url, [replace(request, id=f"warm-{request.id}") for request in first])


def calibrated(fleet: AscendraServers, tell: Tell) -> Calibrated:
    """Measure the values that loads and targets derive from, on stock, whose requests have no targets here and are not
    dropped.

    Raises UpstreamError if a request fails.
    """
    url = fleet.gateways[COMPARED[1]].url
    burst = bursty_stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED)
    rate_rps = capacity_rps(burst, ReplayOptions(url=url))
    tell(f"capacity {rate_rps:.1f} requests a second")
    # Requests at nearly no load; Poisson arrivals.
    light = bursty_stream(LIGHT_LOAD * rate_rps, LIGHT_SECONDS, LIGHT_SEED, cv=1.0)
    return Calibrated(
        capacity_rps=rate_rps,
        light=summarize(all_finished(_replayed(url, light).records, len(light))),
        decode_inflation=_decode_inflation(fleet),
    )


def _decode_inflation(fleet: AscendraServers) -> dict[str, float]:
    """The factor by which an instance's decode step slows down while the other instances of its service work too.

    The same few requests are sent to each stock instance alone, then to all at once, past the gateway. Compared is the
    median over requests of the mean time between tokens.
    """
    places = fleet.instances[VLLM]
    alone = {name: asyncio.run(_probed({name: place}))[name] for name, place in places.items()}
    together = asyncio.run(_probed(places))
    return {name: together[name] / alone[name] for name in places}


async def _probed(places: Mapping[str, RunningServer]) -> dict[str, float]:
    """Seconds between tokens at each place, with all of them serving at the same time."""
    requests = [
        TraceRequest(f"probe-{number}", 0.0, PROBE_INPUT_TOKENS, PROBE_OUTPUT_TOKENS)
        for number in range(PROBE_REQUESTS)
    ]
    reports = await asyncio.gather(
        *(replay(requests, ReplayOptions(url=place.url)) for place in places.values())
    )
    return {
        name: median(_between_tokens_s(record) for record in all_finished(report.records, len(requests)))
        for name, report in zip(places, reports, strict=True)
    }


def _between_tokens_s(record: Record) -> float:
    assert record.finished_s is not None
    assert record.first_token_s is not None
    return (record.finished_s - record.first_token_s) / (record.output_tokens - 1)


# ---- the comparison --------------------------------------------------------------------------------------

INSTANCES = 3
COMPARED = tuple(SYSTEMS)
LOADS = (1.0, 1.5)
SEEDS, SECONDS_A_RUN = 2, 12.0
TITLE = "The same on a real engine"
REAL_FILE = "ascendra-real-engine.json"
NEEDED = ("vllm", "aiohttp", "starlette", "uvicorn")
_SECONDS = 300.0
"""Seconds of measuring on two cores, roughly."""


class RealCell(msgspec.Struct, frozen=True, kw_only=True):
    """One system at one load: a run for each seed."""

    system: str
    load: float
    runs: tuple[StreamRun, ...]

    @property
    def goodput(self) -> float:
        """Mean over the seeds."""
        return mean(run.summary.goodput or 0.0 for run in self.runs)

    def mean(self, key: str) -> float | None:
        """The mean over the seeds of a summary key; None where one has no such value."""
        return mean_of_all(getattr(run.summary, key) for run in self.runs)


class AscendraReal(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement, with the releases of Headway and vLLM that it was made with."""

    headway: str = msgspec.field(default_factory=release)
    vllm: str = msgspec.field(default_factory=vllm_version)
    hardware: str
    calibrated: Calibrated
    ttft_target_s: float
    tbt_target_s: float
    cells: tuple[RealCell, ...]


def _measure(tell: Tell) -> AscendraReal:
    """Measure everything. Raises UpstreamError if a server does not start, SimulationError if a request fails
    before the comparison.
    """
    tell(f"real engine: starting {2 * INSTANCES} instances of vLLM")
    with TemporaryDirectory() as logs, fleet(INSTANCES, Path(logs), tell) as servers:
        return compared(servers, tell)


def missing() -> list[str]:
    """The modules that are needed and not installed."""
    return [module for module in NEEDED if find_spec(module) is None]


def real_seconds(request: PaperRequest) -> float:
    """Seconds that `real_runs` will take, roughly. Raises RecordError as it does."""
    return 0.0 if request.quick or _kept(request) or missing() else _SECONDS


def real_runs(request: PaperRequest, tell: Tell) -> AscendraReal | None:
    """What the folder keeps of these releases, else measured now and kept; None if left out or impossible.

    Raises RecordError if what is kept cannot be read, and what measuring raises.
    """
    if request.quick:
        return None
    found = _kept(request)
    if found is None and not missing():
        found = _measure(tell)
        write_json(request.root / REAL_FILE, found)
    return found


def _kept(request: PaperRequest) -> AscendraReal | None:
    """The kept measurement; None if there is none or another release made it. Without vLLM, where nothing can be
    measured anew, only Headway's release counts.
    """
    found = read_json(request.root / REAL_FILE, AscendraReal)
    if found is None or found.headway != release():
        return None
    return found if find_spec("vllm") is None or found.vllm == vllm_version() else None


def compared(servers: AscendraServers, tell: Tell) -> AscendraReal:
    """Run every load on every system, in turns; each turn begins with another system."""
    warm_up(servers)
    measured = calibrated(servers, tell)
    slo = targets(measured.light)
    runs: dict[tuple[float, str], list[StreamRun]] = {(load, name): [] for load in LOADS for name in COMPARED}
    for turn in range(SEEDS * len(LOADS)):
        seed, place = divmod(turn, len(LOADS))
        load, first = LOADS[place], turn % len(COMPARED)
        requests = bursty_stream(load * measured.capacity_rps, SECONDS_A_RUN, seed, slo)
        for name in (*COMPARED[first:], *COMPARED[:first]):
            tell(f"real engine: {name}, load {load:g}, seed {seed + 1} of {SEEDS}")
            runs[load, name].append(serve_stream(servers, name, requests))
    return AscendraReal(
        hardware=f"{machine_name()}, vLLM {vllm_version()}",
        calibrated=measured,
        ttft_target_s=slo.ttft_s or 0.0,
        tbt_target_s=slo.tbt_s or 0.0,
        cells=tuple(RealCell(system=name, load=load, runs=tuple(of)) for (load, name), of in runs.items()),
    )


# ---- what came out -------------------------------------------------------------------------------------


def real_part(found: AscendraReal | None) -> StudyPart:
    """A table of the systems; or a statement that they were not run, and why."""
    if found is None:
        needs = f" It needs {', '.join(missing())}: {VLLM_COMES_BY}." if missing() else ""
        return StudyPart(title=TITLE, text=[f"Not run: --quick leaves it out.{needs}"])
    return StudyPart(title=TITLE, text=[_targets(found), _crowding(found)], tables=[_table(found)])


def _table(found: AscendraReal) -> StudyTable:
    return StudyTable(
        name="real-engine",
        title=f"{INSTANCES} instances of the demo model, a bursty stream at and above capacity",
        measured_on=f"real engine, {found.hardware}",
        headings=(
            *("load", "system", "goodput", "least and most", "TTFT p99, s", "TBT mean, s", "dropped"),
            "cores of the instances",
        ),
        rows=[_row(cell) for load in LOADS for cell in found.cells if cell.load == load],
        note=f"Mean of {SEEDS} seeds, with the least and the most goodput of one. Load 1 is what the instances get "
        f"through of such a stream under stock vLLM, all at once: {found.calibrated.capacity_rps:.1f} req/s. All drop "
        f"what still waits past its TTFT target. {SHAPE_TEXT}.",
        decimals=3,
        keys=2,
    )


def _row(cell: RealCell) -> list[Value]:
    goodputs = [run.summary.goodput or 0.0 for run in cell.runs]
    dropped = mean(run.summary.expired / run.summary.requests for run in cell.runs)
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
    """The CPU use of each instance in cores, mean over the runs."""
    cores = [run.cores for run in runs]
    return [(name, mean(each[name] for each in cores)) for name in cores[0]]


def _targets(found: AscendraReal) -> str:
    return (
        f"Targets: first token within {found.ttft_target_s:.3f} s, {found.tbt_target_s:.3f} s between tokens "
        f"({RULE_TEXT})."
    )


def _crowding(found: AscendraReal) -> str:
    """The cost of sharing the machine, in words."""
    inflation = found.calibrated.decode_inflation
    each = ", ".join(f"{name} {times:.2f}" for name, times in inflation.items())
    return (
        f"The instances share the machine with one another, the gateway and the client: with all at work the time "
        f"between tokens is so many times that of an instance alone: {each}."
    )
