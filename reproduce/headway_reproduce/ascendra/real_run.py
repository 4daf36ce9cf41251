"""One stream through one gateway to real instances: what became of it, and what it took of the machine's cores."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import msgspec

from headway.core.record import Record
from headway.lab.capacity import all_finished, capacity_rps
from headway.lab.papers import Tell
from headway.lab.process_cpu import CpuShare, Usage, share, usage
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.results import Summary, summarize
from headway.traces import TraceRequest
from headway_reproduce.ascendra.real_servers import Fleet, GatewayState, Place, settled_state
from headway_reproduce.ascendra.real_stream import Shape, bursty_stream
from headway_reproduce.ascendra.real_systems import SYSTEMS, calibrating

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
    fleet: Fleet, system: str, requests: Sequence[TraceRequest]
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


def _usages(fleet: Fleet, system: str) -> dict[str, Usage]:
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


def warm_up(fleet: Fleet) -> None:
    """Some seconds of requests through every gateway, so that no system pays for what happens only once.

    They come one after another, so that every pool gets some, and its step-time model something to learn from.
    """
    for place in fleet.gateways.values():
        first = bursty_stream(WARM_RPS, WARM_SECONDS, WARM_SEED)
        _replayed(place.url, [replace(request, id=f"warm-{request.id}") for request in first])


def calibrated(fleet: Fleet, shape: Shape, tell: Tell) -> Calibrated:
    """Measure what loads and targets go by, on stock. Raises UpstreamError if a request fails."""
    url = fleet.gateways[calibrating(fleet.gateways)].url
    rate_rps = _capacity_rps(url, shape)
    tell(f"capacity {rate_rps:.1f} requests a second")
    return Calibrated(
        capacity_rps=rate_rps,
        light=_light_load(url, rate_rps, shape),
        decode_inflation=_decode_inflation(fleet),
    )


def _capacity_rps(url: str, shape: Shape) -> float:
    requests = bursty_stream(1.0, CAPACITY_REQUESTS, CAPACITY_SEED, shape=shape)
    return capacity_rps(requests, ReplayOptions(url=url))


def _light_load(url: str, rate_rps: float, shape: Shape) -> Summary:
    """How requests fare when there is hardly anything to do; Poisson arrivals."""
    poisson = replace(shape, cv=1.0)
    requests = bursty_stream(LIGHT_LOAD * rate_rps, LIGHT_SECONDS, LIGHT_SEED, shape=poisson)
    return summarize(all_finished(_replayed(url, requests).records, len(requests)))


def _decode_inflation(fleet: Fleet) -> dict[str, float]:
    """How many times as long an instance's decode step takes while the others of its service work too.

    The same few requests are sent to each stock instance alone, then to all at once, past the gateway; what is
    compared is the median over the requests of the mean time between tokens.
    """
    places = fleet.instances[SYSTEMS[calibrating(fleet.gateways)].service]
    alone = {name: asyncio.run(_probed({name: place}))[name] for name, place in places.items()}
    together = asyncio.run(_probed(places))
    return {name: together[name] / alone[name] for name in places}


async def _probed(places: Mapping[str, Place]) -> dict[str, float]:
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
