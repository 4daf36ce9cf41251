"""The real engine's part of `bench/headway_real.py`: what comes first, and every run that is not kept yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from bench.client_classes import NONE
from bench.engine_time import EngineTime, WallTime
from bench.headway_real_engine import SLOTS, STOCK, Kept, Run, put_in, records, serve
from bench.headway_real_plan import CAPACITY_SEED, Plan, Prepared, capacity_burst
from bench.progress import say
from bench.serving_engine import ServingEngine
from bench.side_by_side import Gauge, Lane, compared, measure_side_by_side
from bench.taught_lengths import untaught_stream
from headway.results import summarize
from headway.whole_file import write_whole

LIGHT_LOAD = 0.2
CAPACITY_SEATS = (16, 32, 64)
"""With the most of them memory is so short that some is computed twice; capacity is the best of these."""
LIGHT_SEED = 98


def prepare(plan: Plan) -> None:
    """Measure what comes before everything else, unless it is kept."""
    if plan.preparation.exists():
        say(f"going on at {plan.prepared.capacity_rps:.1f} requests a second of capacity")
        return
    with plan.memory.of(STOCK).serving() as engine:
        capacity_rps, capacity_seats = max(
            (_throughput_rps(engine, WallTime(), seats=seats), seats) for seats in CAPACITY_SEATS
        )
        say(f"capacity: {capacity_rps:.1f} requests a second, at {capacity_seats} seats")
        light = untaught_stream(LIGHT_LOAD * capacity_rps, plan.seconds, LIGHT_SEED)
        put_in(engine, STOCK, SLOTS)
        found = Prepared(
            seconds=plan.seconds,
            memory=plan.memory,
            capacity_rps=capacity_rps,
            capacity_seats=capacity_seats,
            light=summarize(records(light, engine.serve(light, LIGHT_SEED, own_stops=True))),
            asynchronous=engine.asynchronous,
            tokens_a_step=engine.tokens_a_step,
            num_blocks=engine.num_blocks,
        )
    write_whole(plan.preparation, msgspec.json.encode(found))


def _throughput_rps(engine: ServingEngine, clock: EngineTime, *, seats: int) -> float:
    """What stock gets through with so many seats."""
    put_in(engine, STOCK, seats)
    served = engine.serve(capacity_burst(), CAPACITY_SEED, own_stops=True, clock=clock)
    return len(served) / max(each.finished_s for each in served)


def measure(plan: Plan, runs: Sequence[Run]) -> None:
    """Do all runs that are not kept yet, those of one load and seed side by side."""
    todo = [run for run in dict.fromkeys(runs) if not run.file(plan.out).exists()]
    found = plan.prepared
    work = partial(_throughput_rps, seats=found.capacity_seats)
    gauge = Gauge(plan.memory.of(STOCK), work, found.capacity_rps)
    measure_side_by_side([[_lane(plan, run) for run in group] for group in side_by_side(todo)], say, gauge)


def side_by_side(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of each seed and load that serve together."""
    return compared(runs, by=lambda run: (run.seed, run.load))


def _lane(plan: Plan, run: Run) -> Lane[ServingEngine, Kept]:
    requests = plan.stream(run.kind or NONE, run.load, run.seed)

    def keep(found: Kept) -> None:
        write_whole(run.file(plan.out), msgspec.json.encode(found))
        mean_jct_s = summarize(records(requests, found.served)).mean_jct_s or 0.0
        say(
            f"seed {run.seed}: {run.contender.name} ({run.kind or 'all kinds'}, {run.seats} seats) at load "
            f"{run.load:g}: mean JCT {mean_jct_s:.3f} s of {len(requests)} requests"
        )

    return Lane(plan.memory.of(run.contender), partial(serve, run=run, requests=requests), keep)
