"""The real engine's part of `bench/headway_real.py`: what comes first, and every run that is not kept yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import msgspec

from bench.client_classes import NONE
from bench.engine_process import EngineProcess
from bench.fastserve_real import say
from bench.headway_real_engine import SLOTS, STOCK, Memory, Run, put_in, records
from bench.headway_real_plan import Plan, Prepared
from bench.taught_lengths import untaught_stream
from headway.results import summarize
from headway.whole_file import write_whole

LIGHT_LOAD = 0.2
CAPACITY_REQUESTS = 1_200
"""So many that what the last long answers take alone hardly counts."""
CAPACITY_SEED, LIGHT_SEED = 99, 98


def prepare(plan: Plan) -> None:
    """Measure what comes before everything else, unless it is kept."""
    if plan.preparation.exists():
        say(f"going on at {plan.prepared.capacity_rps:.1f} requests a second of capacity")
        return
    burst = untaught_stream(50.0, CAPACITY_REQUESTS / 50, CAPACITY_SEED)
    with Memory(plan.kv_blocks).serving(stock=True) as engine:
        at_once = [replace(request, arrival_s=0.0) for request in burst]
        put_in(engine, STOCK, SLOTS)
        served = engine.serve(at_once, CAPACITY_SEED, own_stops=True)
        capacity_rps = len(served) / max(each.finished_s for each in served)
        say(f"capacity {capacity_rps:.1f} requests a second")
        light = untaught_stream(LIGHT_LOAD * capacity_rps, plan.seconds, LIGHT_SEED)
        put_in(engine, STOCK, SLOTS)
        found = Prepared(
            seconds=plan.seconds,
            kv_blocks=plan.kv_blocks,
            capacity_rps=capacity_rps,
            light=summarize(records(light, engine.serve(light, LIGHT_SEED, own_stops=True))),
            asynchronous=engine.asynchronous,
            tokens_a_step=engine.tokens_a_step,
            num_blocks=engine.num_blocks,
        )
    write_whole(plan.preparation, msgspec.json.encode(found))


def measure(plan: Plan, runs: Sequence[Run]) -> None:
    """Do all runs that are not kept yet, load by load, on engines that take turns stream by stream.

    A machine's speed drifts by a quarter within minutes, so what is compared runs side by side; whichever came first
    at one load comes last at the next.
    """
    todo = [run for run in dict.fromkeys(runs) if not run.file(plan.out).exists()]
    cells = sorted({(run.seed, run.load) for run in todo})
    with ExitStack() as stack:
        engines = {
            stock: stack.enter_context(EngineProcess(plan.kv_blocks, stock=stock))
            for stock in sorted({_is_stock(run) for run in todo})
        }
        for number, cell in enumerate(cells):
            here = [run for run in todo if (run.seed, run.load) == cell]
            for run in here if number % 2 == 0 else reversed(here):
                _measure_one(plan, run, engines[_is_stock(run)])
            say(f"{number + 1} of {len(cells)} loads and seeds done")


def _is_stock(run: Run) -> bool:
    return run.contender.stock is not None


def _measure_one(plan: Plan, run: Run, engine: EngineProcess) -> None:
    requests = plan.stream(run.kind or NONE, run.load, run.seed)
    found = engine.serve(run, requests)
    write_whole(run.file(plan.out), msgspec.json.encode(found))
    mean_jct_s = summarize(records(requests, found.served)).mean_jct_s or 0.0
    say(
        f"seed {run.seed}: {run.contender.name} ({run.kind or 'all kinds'}, {run.seats} seats) at load {run.load:g}: "
        f"mean JCT {mean_jct_s:.3f} s of {len(requests)} requests"
    )
