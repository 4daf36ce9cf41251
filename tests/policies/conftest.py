"""A distribution that is installed only for one test, with a part and a preset of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
    name="guest", order="guest:share=0.25", batching="decode-first", eviction="recompute", leaving=("expired",),
    summary="s", source="t",
)
'''


Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes the guest distribution visible, with the given entry points, until the test ends."""

    def visible(entry_points: str) -> None:
        info = tmp_path / f"{MODULE}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        (tmp_path / f"{MODULE}.py").write_text(SOURCE)
        monkeypatch.syspath_prepend(tmp_path)

    yield visible
    sys.modules.pop(MODULE, None)
