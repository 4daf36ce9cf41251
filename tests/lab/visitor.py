"""Somebody else's package with a policy of its own, which tests edit between two commands."""

from __future__ import annotations

import sys
from pathlib import Path

NAME = "visitor"
PACKAGE = "headway_visitor"

PRESET = """
from headway.policies.presets import Preset

PRESET = Preset(
    name="visitor", order="visitor", batching="decode-first:token_budget={token_budget}", eviction="recompute",
    summary="s", source="t",
)
"""
ORDER = """
from headway.policies.order.arrival import Arrival
from headway_visitor.weights import WEIGHT


class Visitor(Arrival):
    '''First come, first served. {remark}'''
"""
WEIGHTS = "WEIGHT = {weight}\n"


def write(
    folder: Path, *, token_budget: int = 64, version: str = "1.0", remark: str = "", weight: int = 1
) -> None:
    """Put the package there as it is now; `folder` is to be on the path."""
    info = folder / f"{PACKAGE}-1.0.dist-info"
    package = folder / PACKAGE
    for each in (info, package):
        each.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(
        f"[headway.order]\n{NAME} = {PACKAGE}.order:Visitor\n[headway.preset]\n{NAME} = {PACKAGE}:PRESET\n"
    )
    (package / "__init__.py").write_text(PRESET.format(token_budget=token_budget))
    (package / "order.py").write_text(ORDER.format(remark=remark))
    (package / "weights.py").write_text(WEIGHTS.format(weight=weight))


def forget() -> None:
    """Import it anew when it is asked for again, as another process would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
