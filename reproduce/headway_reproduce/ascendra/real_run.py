"""Ascendra on this machine's own engine: a stream through one gateway to small real instances, measured once."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from headway.core.record import Record
from headway.engine.machine import machine_name, vllm_version
from headway.errors import VLLM_COMES_BY
from headway.lab.papers import Tell
from headway.lab.policy_bench import all_finished, capacity_rps
from headway.lab.server import RunningServer
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.results import Summary, summarize
from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import mean, mean_of_all, median
from headway.traces import TraceRequest
from headway_reproduce.ascendra.real_servers import (
    AscendraServers,
    GatewayState,
    fleet,
    settled_state,
)
from headway_reproduce.ascendra.real_stream import Shape, TargetRule, bursty_stream
from headway_reproduce.ascendra.real_systems import ASCENDRA, SYSTEMS, calibrating
from headway_reproduce.process_cpu import CpuShare, Usage, share, usage
from headway_reproduce.real_study import MeasuredOnce, RealMeasurement

HAND_OFFS = "hand-offs"
CLIENT, GATEWAY, OTHERS = "client", "gateway", "idle systems"
"""Keys of `shares` beside the instances' names."""

CAPACITY_SEED, LIGHT_SEED, WARM_SEED = 99, 98, 97
CAPACITY_REQUESTS = 200
WARM_RPS, WARM_SECONDS = 10.0, 4.0
LIGHT_LOAD, LIGHT_SECONDS = 0.2, 10.0
PROBE_REQUESTS, PROBE_INPUT_TOKENS, PROBE_OUTPUT_TOKENS = 8, 32, 200


class StreamRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream came to on a system.

    `shares` are of each instance, the gateway, the client and all the idle systems together, of one core each.
    `late_p99_s` is how late the client itself sent its requests. `served` counts, by instance, the answers that came
    from there, `hand_offs` the requests that one instance gave up and another took.
    """

    summary: Summary
    wall_s: float
    shares: dict[str, CpuShare]
    late_p99_s: float
    served: dict[str, int] = {}
    hand_offs: int = 0


class Calibrated(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured before anything is compared.

    `decode_inflation`: the time between tokens at an instance with all of them at work, over the same alone.
    """

    capacity_rps: float
    light: Summary
    decode_inflation: dict[str, float]


def serve_stream(
    fleet: AscendraServers, system: str, requests: Sequence[TraceRequest]
) -> tuple[StreamRun, list[Record]]:
    """Send a stream to a system's gateway and hear every answer out."""
    gc.collect()
    url = fleet.gateways[system].url
    counted, before, began_s = counts(settled_state(url)), _usages(fleet, system), time.perf_counter()
    report = _replayed(url, requests)
    wall_s, after = time.perf_counter() - began_s, _usages(fleet, system)
    count = counts(settled_state(url))
    count.subtract(counted)
    late_s = sorted(max(0.0, each) for each in report.lateness_s)
    run = StreamRun(
        summary=summarize(report.records),
        wall_s=wall_s,
        shares={name: share(before[name], after[name], wall_s) for name in before},
        late_p99_s=late_s[int(0.99 * (len(late_s) - 1))] if late_s else 0.0,
        hand_offs=count.pop(HAND_OFFS),
        served=dict(count),
    )
    return run, report.records


def _replayed(url: str, requests: Sequence[TraceRequest]) -> ReplayReport:
    return asyncio.run(replay(requests, ReplayOptions(url=url)))


def _usages(fleet: AscendraServers, system: str) -> dict[str, Usage]:
    """Of all that work for a system, and of the others, who should not."""
    service = SYSTEMS[system].service
    busy = {name: usage(place.pid) for name, place in fleet.instances[service].items()}
    idle = [place for name, places in fleet.instances.items() if name != service for place in places.values()]
    idle += [place for name, place in fleet.gateways.items() if name != system]
    return {
        **busy,
        GATEWAY: usage(fleet.gateways[system].pid),
        CLIENT: usage(os.getpid(), alone=True),
        OTHERS: joined([usage(place.pid) for place in idle]),
    }


def counts(state: GatewayState) -> Counter[str]:
    """Answers by instance, and hand-offs, since a gateway began."""
    found = Counter({each.name: each.served for each in state.instances})
    found[HAND_OFFS] = sum(each.total for each in state.hand_offs)
    return found


def joined(usages: Sequence[Usage]) -> Usage:
    """Several processes as one."""
    threads = {thread: time for each in usages for thread, time in each.threads.items()}
    return Usage(sum(each.cpu_s for each in usages), threads)


# ---- before anything is compared -----------------------------------------------------------------------


def warm_up(fleet: AscendraServers) -> None:
    """Some seconds of requests through every gateway, so that no system pays for what happens only once.

    They come one after another, so that every pool gets some, and its step-time model something to learn from.
    """
    for place in fleet.gateways.values():
        first = bursty_stream(WARM_RPS, WARM_SECONDS, WARM_SEED)
        _replayed(place.url, [replace(request, id=f"warm-{request.id}") for request in first])


def calibrated(fleet: AscendraServers, shape: Shape, tell: Tell) -> Calibrated:
    """Measure what loads and targets go by, on stock. Raises UpstreamError if a request fails."""
    url = fleet.gateways[calibrating(fleet.gateways)].url
    burst = bursty_stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED, shape=shape)
    rate_rps = capacity_rps(burst, ReplayOptions(url=url))
    tell(f"capacity {rate_rps:.1f} requests a second")
    # How requests fare when there is hardly anything to do; Poisson arrivals.
    light = bursty_stream(LIGHT_LOAD * rate_rps, LIGHT_SECONDS, LIGHT_SEED, shape=replace(shape, cv=1.0))
    return Calibrated(
        capacity_rps=rate_rps,
        light=summarize(all_finished(_replayed(url, light).records, len(light))),
        decode_inflation=_decode_inflation(fleet),
    )


def _decode_inflation(fleet: AscendraServers) -> dict[str, float]:
    """How many times as long an instance's decode step takes while the others of its service work too.

    The same few requests are sent to each stock instance alone, then to all at once, past the gateway; what is
    compared is the median over the requests of the mean time between tokens.
    """
    places = fleet.instances[SYSTEMS[calibrating(fleet.gateways)].service]
    alone = {name: asyncio.run(_probed({name: place}))[name] for name, place in places.items()}
    together = asyncio.run(_probed(places))
    return {name: together[name] / alone[name] for name in places}


async def _probed(places: Mapping[str, RunningServer]) -> dict[str, float]:
    """Seconds between tokens at each, all being asked at the same time."""
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
COMPARED = (ASCENDRA, "vllm round-robin, drop", "vllm least-work, drop")
"""All of them drop what is still waiting past its TTFT target, as in the paper's overload."""
LOADS = (1.0, 1.5)
SEEDS, SECONDS_A_RUN = 2, 12.0
TITLE = "The same on a real engine"


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


class AscendraReal(MeasuredOnce, frozen=True, kw_only=True):
    """What was measured, and on what."""

    hardware: str
    calibrated: Calibrated
    ttft_target_s: float
    tbt_target_s: float
    cells: tuple[RealCell, ...]


def _measure(tell: Tell) -> AscendraReal:
    """Raises UpstreamError if a server does not start, SimulationError if a request fails before the comparison."""
    tell(f"real engine: starting {2 * INSTANCES} instances of vLLM")
    with TemporaryDirectory() as logs, fleet(COMPARED, INSTANCES, Path(logs), tell) as servers:
        return compared(servers, tell)


MEASUREMENT = RealMeasurement(
    file="ascendra-real-engine.json",
    kind=AscendraReal,
    needed=("vllm", "aiohttp", "starlette", "uvicorn"),
    seconds=300.0,
    measure=_measure,
)


def compared(servers: AscendraServers, tell: Tell) -> AscendraReal:
    """Every load on every system, turn by turn; who begins changes."""
    warm_up(servers)
    measured = calibrated(servers, Shape(), tell)
    slo = TargetRule().targets(measured.light)
    runs: dict[tuple[float, str], list[StreamRun]] = {(load, name): [] for load in LOADS for name in COMPARED}
    for turn in range(SEEDS * len(LOADS)):
        seed, place = divmod(turn, len(LOADS))
        load, first = LOADS[place], turn % len(COMPARED)
        requests = bursty_stream(load * measured.capacity_rps, SECONDS_A_RUN, seed, slo)
        for name in (*COMPARED[first:], *COMPARED[:first]):
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
        missing = MEASUREMENT.missing()
        needs = f" It needs {', '.join(missing)}: {VLLM_COMES_BY}." if missing else ""
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
    """What each instance used of a core, mean over the runs; instances come first in the shares."""
    shares = [run.shares for run in runs]
    return [(name, mean(share[name].cores for share in shares)) for name in list(shares[0])[:INSTANCES]]


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
