"""The real engine's part of `bench/fidelity.py`."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from headway_reproduce.mid_model import ensure_mid_model

from bench.engine_costs import profile_for
from bench.fidelity_folder import Folder
from bench.fidelity_setup import RealRun, RealSide, Setup, predictions, stream
from bench.progress import say
from headway.engine.profiling.profile import Measurements, Profiler
from headway.engine.settings import EngineSettings
from headway.engine.vllm.stepped_engine import SteppedEngine
from headway.lab.real_engine import run_real

BURST_REQUESTS = 96


def measure_real(folder: Folder, setup: Setup, runs: int, run_s: float, profile_s: float) -> None:
    """Find the capacity, serve every cell that is not there yet, profile in between.

    A slice of the profile comes before every run, so that what else the machine does falls on both alike. Raises
    ConfigError if the folder is of another kind of runs.
    """
    begun = folder.begun(setup, runs, run_s)
    # All cells once, then all again, for the same reason.
    every = [RealRun(policy, load, run) for run, (policy, load) in product(range(runs), setup.cells())]
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


def _serve(folder: Folder, engine: SteppedEngine, side: RealSide, run: RealRun) -> None:
    gc.collect()
    settings = EngineSettings(policy=run.policy, batch_width=side.setup.batch_width(run.policy))
    trace = side.trace(run)
    real = run_real(engine, trace, settings, lengths=predictions(run.policy, trace))
    folder.keep_real(run, real.records, real.steps)
    done = folder.real(run)
    say(f"{run.policy} at {run.load:g}, run {run.number + 1}: {done.values} {done.counts}")


def _capacity_rps(engine: SteppedEngine) -> float:
    """Requests a second of a burst, all at once: the most this engine serves."""
    burst = [replace(request, arrival_s=0.0) for request in stream(1.0, BURST_REQUESTS, seed=99)]
    run = run_real(engine, burst, EngineSettings(policy="vllm"))
    return len(run.records) / max(record.finished_s or 0.0 for record in run.records)


def _started(setup: Setup) -> SteppedEngine:
    """The engine, its worker on the first core and this loop on the last, so that they do not trade places."""
    cores: Sequence[int] = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(cores) > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores[:-1])))
    settings = EngineSettings(host_kv=setup.host_kv)
    engine = SteppedEngine(str(ensure_mid_model()), setup.vllm_flags(), settings)
    os.sched_setaffinity(0, cores[-1:])
    return engine
