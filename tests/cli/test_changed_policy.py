"""Folders of runs whose policy, from somebody else's package, was changed before the same command came again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import words
from tests.lab import visitor

pytestmark = pytest.mark.slow

FLAGS = {
    "hardware": "h100",
    "model": "Qwen/Qwen3-8B",
    "trace": "gen:poisson:rate=30/input=constant:tokens=500/output=constant:tokens=20/count=60",
    "policies": "vllm,visitor",
    "jobs": 1,
}

Again = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def again(tmp_path: Path) -> Again:
    """Runs a command with its folder in a process of its own, once the package was written with these changes."""

    def run(command: str, *last: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        packages = tmp_path / "packages"
        visitor.write(packages, **changes)
        # -B: else an edit within a second would not be seen.
        given = [*words(FLAGS | {"out": tmp_path / command}), "--json", *last]
        return subprocess.run(
            [sys.executable, "-B", "-m", "headway.cli", command, *given],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(packages)},
        )

    return run


def test_it_is_another_simulation(again: Again, tmp_path: Path) -> None:
    assert again("simulate").returncode == 0
    assert again("simulate").returncode == 0
    refused = again("simulate", token_budget=2048)
    assert (refused.returncode, refused.stdout) == (2, "")
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(
        f"error: {tmp_path / 'simulate'} holds another simulation (policy visitor was {{'order': "
    )
    assert "'decode-first:token_budget=64'" in last
    assert "'decode-first:token_budget=2048'" in last
    assert "policy vllm" not in last


def test_a_plan_simulates_it_again_and_no_other(again: Again) -> None:
    def runs(**changes: int) -> dict[str, int]:
        done = again("plan", *words({"gpus": 1, "budget": 2, "seeds": 1}), **changes)
        found: dict[str, int] = json.loads(done.stdout)["runs"]
        return found

    first, second, changed = runs(), runs(), runs(weight=2)
    assert (second["simulated"], second["kept"]) == (0, sum(first.values()))
    assert changed["simulated"] > 0
    assert changed["kept"] > 0
