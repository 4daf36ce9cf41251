"""What steps cost on a real engine, for the simulator beside it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from bench.progress import say
from headway.engine.machine import machine_name, vllm_version
from headway.engine.profiling.profile import Measurements, Profiler
from headway.engine.profiling.result import Identity, conclude
from headway.engine.settings import EngineSettings
from headway.engine.vllm.stepped_engine import SteppedEngine
from headway.predict.cost_file import write_cost_file


def profiled(
    file: Path, model: str, vllm_flags: Sequence[str], settings: EngineSettings, seconds: float
) -> Path:
    """The cost file of an engine, measured for about so long unless it is there."""
    if not file.exists():
        say("profiling")
        engine = SteppedEngine(model, vllm_flags, settings)
        try:
            measured = Measurements(engine.sizes)
            profiler = Profiler(engine, measured, seconds=seconds)
            profiler.prepare(lambda share, what: None)
            profile_for(engine, profiler, seconds)
            conclude_profile(measured, model, file)
        finally:
            engine.close()
    return file


def profile_for(engine: SteppedEngine, profiler: Profiler, seconds: float) -> None:
    """Go on with the profile for about so long."""
    engine.schedule_with(EngineSettings())
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        profiler.play_next()


def conclude_profile(measured: Measurements, model: str, file: Path) -> None:
    """Write what was measured as a cost file. Raises ConfigError if it is too little."""
    identity = Identity(
        machine=machine_name(), model=model, vllm_version=vllm_version(), measured_on=date.today().isoformat()
    )
    result = conclude(measured, identity)
    write_cost_file(file, result.cost)
    say(json.dumps(result.to_dict()))
