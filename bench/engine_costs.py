"""What steps cost on a real engine, for the simulator beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.fidelity import conclude_profile, profile_for
from bench.progress import say
from headway.engine.profile import Measurements, Profiler
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine


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
            conclude_profile(measured, file)
        finally:
            engine.close()
    return file
