from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from headway.policies.parts import BUILT_IN, part_settings
from headway.policies.presets import POOLED, PRESETS

Printed = tuple[list[list[str]], list[list[str]], list[list[str]]]


def run(*flags: str, columns: str = "") -> str:
    """The output of `headway policies` into a pipe of this width."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = columns
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli", "policies", *flags],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def rows(table: str) -> list[list[str]]:
    """The cells of a printed table, those that go over several lines put together again."""
    found: list[list[str]] = []
    for line in table.splitlines():
        if not line.startswith("│"):
            continue
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        if cells[0]:
            found.append(cells)
        else:
            found[-1] = [f"{before} {cell}".strip() for before, cell in zip(found[-1], cells, strict=True)]
    return found


@pytest.fixture(scope="module", params=["", "40"], ids=["any width", "a narrow window's"])
def printed(request: pytest.FixtureRequest) -> Printed:
    """Rows of the tables of presets, of policies for pools, and of parts."""
    text = run(columns=request.param)
    assert "…" not in text
    assert "\x1b" not in text
    presets, _, rest = text.partition("Policies of pools")
    pooled, _, parts = rest.partition("Parts")
    return rows(presets), rows(pooled), rows(parts)


def test_every_preset_is_a_row_with_all_its_parts(printed: Printed) -> None:
    shown = {row[0]: row[1:] for row in printed[0]}
    assert list(shown) == list(PRESETS)
    for name, preset in PRESETS.items():
        leaving = ", ".join(preset.leaving) or "–"
        assert shown[name] == [preset.order, preset.batching, preset.eviction, leaving, preset.summary]


def test_every_policy_for_pools_is_a_row(printed: Printed) -> None:
    shown = dict(printed[1])
    assert list(shown) == list(POOLED)
    for name, pools in POOLED.items():
        assert shown[name] == ", ".join(f"{pool}: {preset}" for pool, preset in pools.items())


def test_every_part_is_a_row_with_its_settings_and_summary(printed: Printed) -> None:
    shown = {(row[0], row[1]): row[2:] for row in printed[2]}
    assert list(shown) == [(kind, name) for kind, parts in BUILT_IN.items() for name in parts]
    for (kind, name), (settings, summary) in shown.items():
        part = BUILT_IN[kind][name]
        assert summary == (part.__doc__ or "").strip().split("\n")[0]
        assert settings.replace("–", "") == ", ".join(
            f"{key}={type_.__name__}" for key, type_ in part_settings(part).items()
        )


def test_json_is_the_table_as_it_is_in_the_code() -> None:
    table: dict[str, Any] = json.loads(run("--json"))
    assert list(table) == [*PRESETS, *POOLED]
    for name, preset in PRESETS.items():
        assert table[name] == {**asdict(preset), "leaving": list(preset.leaving)}
    for name, pools in POOLED.items():
        assert table[name] == {"pools": pools}


def test_help_shows_how_parts_are_named() -> None:
    text = run("--help")
    assert "name:setting=value" in text
    assert "--order slack --leaving expired" in text
