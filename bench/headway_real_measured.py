"""The real engine's part of `bench/headway_real.py`: what comes first, and every run that is not kept yet."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby

import msgspec

from bench.client_classes import NONE
from bench.engine_process import EngineProcess, serve_in_turn
from bench.fastserve_engine import ServingEngine
from bench.fastserve_real import say
from bench.headway_real_engine import SLOTS, STOCK, Memory, Run, put_in, records
from bench.headway_real_plan import Plan, Prepared
from bench.taught_lengths import untaught_stream
from headway.results import summarize
from headway.traces import TraceRequest
from headway.whole_file import write_whole

LIGHT_LOAD = 0.2
CAPACITY_REQUESTS = 800
"""So many that what the last long answers take alone hardly counts."""
CAPACITY_SEATS = (16, 32, 64)
"""With the most of them memory is so short that some is computed twice; capacity is the best of these."""
MOST_TOGETHER = 6
"""Engines at once; of more runs of a load and seed the others come after them."""
CAPACITY_SEED, LIGHT_SEED = 99, 98


def prepare(plan: Plan) -> None:
    """Measure what comes before everything else, unless it is kept."""
    if plan.preparation.exists():
        say(f"going on at {plan.prepared.capacity_rps:.1f} requests a second of capacity")
        return
    burst = untaught_stream(50.0, CAPACITY_REQUESTS / 50, CAPACITY_SEED)
    with plan.memory.of(STOCK).serving() as engine:
        at_once = [replace(request, arrival_s=0.0) for request in burst]
        capacity_rps = max(_throughput_rps(engine, at_once, seats) for seats in CAPACITY_SEATS)
        light = untaught_stream(LIGHT_LOAD * capacity_rps, plan.seconds, LIGHT_SEED)
        put_in(engine, STOCK, SLOTS)
        found = Prepared(
            seconds=plan.seconds,
            memory=plan.memory,
            capacity_rps=capacity_rps,
            light=summarize(records(light, engine.serve(light, LIGHT_SEED, own_stops=True))),
            asynchronous=engine.asynchronous,
            tokens_a_step=engine.tokens_a_step,
            num_blocks=engine.num_blocks,
        )
    write_whole(plan.preparation, msgspec.json.encode(found))


def _throughput_rps(engine: ServingEngine, at_once: Sequence[TraceRequest], seats: int) -> float:
    """What stock gets through with so many seats."""
    put_in(engine, STOCK, seats)
    served = engine.serve(at_once, CAPACITY_SEED, own_stops=True)
    found = len(served) / max(each.finished_s for each in served)
    say(f"{found:.1f} requests a second at {seats} seats")
    return found


def measure(plan: Plan, runs: Sequence[Run]) -> None:
    """Do all runs that are not kept yet, those of one load and seed in turns of a tenth of a second.

    A machine's speed drifts by a quarter within minutes, so what is compared works side by side, and each engine goes
    by its own time (`TurnTime`).
    """
    todo = [run for run in dict.fromkeys(runs) if not run.file(plan.out).exists()]
    groups = side_by_side(todo)
    with ExitStack() as stack:
        engines: dict[Memory, list[EngineProcess]] = defaultdict(list)
        for number, group in enumerate(groups):
            for memory, at_once in Counter(plan.memory.of(run.contender) for run in group).items():
                while len(engines[memory]) < at_once:
                    engines[memory].append(stack.enter_context(EngineProcess(memory)))
            _measure_together(plan, group, engines)
            say(f"{number + 1} of {len(groups)} groups of runs done")


def side_by_side(runs: Iterable[Run]) -> list[list[Run]]:
    """The runs of each seed and load, MOST_TOGETHER at a time."""
    cells = [list(cell) for _, cell in groupby(sorted(runs, key=_cell), key=_cell)]
    return [cell[at : at + MOST_TOGETHER] for cell in cells for at in range(0, len(cell), MOST_TOGETHER)]


def _cell(run: Run) -> tuple[int, float]:
    return run.seed, run.load


def _measure_together(
    plan: Plan, runs: Sequence[Run], engines: Mapping[Memory, Sequence[EngineProcess]]
) -> None:
    free = {memory: iter(pool) for memory, pool in engines.items()}
    streams = [plan.stream(run.kind or NONE, run.load, run.seed) for run in runs]
    chosen = [next(free[plan.memory.of(run.contender)]) for run in runs]
    found = serve_in_turn(chosen, list(zip(runs, streams, strict=True)))
    for run, requests, each in zip(runs, streams, found, strict=True):
        write_whole(run.file(plan.out), msgspec.json.encode(each))
        mean_jct_s = summarize(records(requests, each.served)).mean_jct_s or 0.0
        say(
            f"seed {run.seed}: {run.contender.name} ({run.kind or 'all kinds'}, {run.seats} seats) at load "
            f"{run.load:g}: mean JCT {mean_jct_s:.3f} s of {len(requests)} requests"
        )
