"""Headway keeps LLM serving on schedule. The names below are its Python API (docs/python.md).

Each is imported when it is first used, so that `import headway` costs nothing, in a vLLM process too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.api import Plan, Simulation, plan, preset, presets, simulate
    from headway.core.record import Record
    from headway.core.slo import Slo
    from headway.errors import HeadwayError
    from headway.lab.engine_sizes import EngineSizes
    from headway.lab.trace import Trace
    from headway.results import read_records, summarize
    from headway.traces import TraceRequest

__all__ = [
    "EngineSizes",
    "HeadwayError",
    "Plan",
    "Record",
    "Simulation",
    "Slo",
    "Trace",
    "TraceRequest",
    "plan",
    "preset",
    "presets",
    "read_records",
    "simulate",
    "summarize",
]

_HOMES = {
    "headway.api": ("Plan", "Simulation", "plan", "preset", "presets", "simulate"),
    "headway.core.record": ("Record",),
    "headway.core.slo": ("Slo",),
    "headway.errors": ("HeadwayError",),
    "headway.lab.engine_sizes": ("EngineSizes",),
    "headway.lab.trace": ("Trace",),
    "headway.results": ("read_records", "summarize"),
    "headway.traces": ("TraceRequest",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
