"""Measurements of a real engine that are kept in a file, and good for as long as the releases that made them run."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from headway.engine.machine import vllm_version
from headway.json_file import read_json
from headway.lab.kept_runs import release

NO_VLLM = "unknown"
"""What `vllm_version` says where there is none."""


class MeasuredOnce(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, with the releases of Headway and vLLM that it was measured with: those that run."""

    headway: str = msgspec.field(default_factory=release)
    vllm: str = msgspec.field(default_factory=vllm_version)

    def is_current(self) -> bool:
        """Whether the same releases run here; where vLLM does not, and nothing can be measured anew, Headway's."""
        return self.headway == release() and vllm_version() in (self.vllm, NO_VLLM)


T = TypeVar("T", bound=MeasuredOnce)


def read_current(path: Path, kind: type[T]) -> T | None:
    """What a file keeps; None if there is none, or of another release, whose figures may differ.

    Raises RecordError as `read_json`.
    """
    found = read_json(path, kind)
    return found if found is not None and found.is_current() else None
