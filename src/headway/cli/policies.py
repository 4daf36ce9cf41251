"""`headway policies`: the preset table, as it is in the code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from rich.table import Table

EPILOG = """A part is `name` or `name:setting=value,...`; any combination may be given to `headway serve`:

  headway serve demo --policy vllm --order slack --leaving expired --leaving queue-bound:max_waiting=1000

Other packages add parts by entry points in the groups headway.order, headway.batching, headway.eviction
and headway.leaving, and rows in headway.preset.
"""

PIPED_WIDTH = 300
"""Columns when the table goes to a file or another program: nothing is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesFlags:
    """How the table is shown."""

    as_json: Annotated[bool, Setting("Print the table as one JSON object.", shown=Shown(flag="--json"))] = (
        False
    )


def policies(flags: PoliciesFlags) -> None:
    """Show the preset table: the parts of each policy, and all parts there are."""
    from rich.console import Console

    from headway.policies.presets import POOLED, known_presets

    if flags.as_json:
        rows = {name: asdict(row) for name, row in known_presets().items()}
        pooled = {name: {"pools": dict(pools)} for name, pools in POOLED.items()}
        typer.echo(json.dumps({**rows, **pooled}))
        return
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(_preset_table())
    console.print(_pooled_table())
    console.print(_part_table())


def _table(title: str, *headings: str) -> Table:
    """An empty table that does not truncate cells in a narrow window."""
    from rich.table import Column, Table

    return Table(*(Column(heading, overflow="fold") for heading in headings), title=title)


def _preset_table() -> Table:
    from headway.policies.presets import known_presets

    table = _table("Policies", "policy", "order", "batching", "eviction", "leaving", "what it does")
    for row in known_presets().values():
        table.add_row(
            row.name, row.order, row.batching, row.eviction, ", ".join(row.leaving) or "–", row.summary
        )
    return table


def _pooled_table() -> Table:
    from headway.policies.presets import POOLED

    table = _table(
        "Policies of pools of instances (--pools lp=2,hp=1)", "policy", "instances of each pool serve by"
    )
    for name, pools in POOLED.items():
        table.add_row(name, ", ".join(f"{pool}: {preset}" for pool, preset in pools.items()))
    return table


def _part_table() -> Table:
    from headway.policies.parts import BUILT_IN, known_parts, part_settings

    table = _table("Parts", "kind", "part", "settings", "what it does")
    for kind in BUILT_IN:
        for name, part in known_parts(kind).items():
            settings = ", ".join(f"{key}={kind_.__name__}" for key, kind_ in part_settings(part).items())
            summary = (part.__doc__ or "").strip().split("\n")[0]
            table.add_row(kind, name, settings or "–", summary)
    return table
