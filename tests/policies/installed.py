"""Installs a distribution that exists only on `sys.path`, with parts and presets of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODULE = "headway_guest"
SOURCE = '''
from headway.core.cost import CostModel
from headway.policies.order.arrival import Arrival
from headway.policies.presets import Preset


class Guest(Arrival):
    """An order with one setting of each type, and the cost model."""

    def __init__(
        self, cost: CostModel | None, share: float = 0.5, name: str = "x", on: bool = False, k: int | None = None
    ) -> None:
        super().__init__()
        self.settings = (share, name, on, k)
        self.cost = cost


PRESET = Preset(
    name="guest", order="guest:share=0.25", batching="decode-first", eviction="recompute", summary="s", source="t"
)
'''


def install(folder: Path, entry_points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a distribution with these entry points visible until the test ends."""
    info = folder / f"{MODULE}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
