"""Source distributions and wheels, built and used in clean environments: `bench/right/packages.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from bench.right.packages import outside

SCRIPT = Path(__file__).parents[3] / "bench" / "right" / "packages.py"


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine: on the path, or one of pyenv's."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(found[-1]) if found else which(f"python{version}")


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_packages_work_without_the_repository(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    done = subprocess.run(
        [sys.executable, SCRIPT, "--python", python], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{python}: headway-")


def test_nothing_of_the_repository_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "src")
    assert "PYTHONPATH" not in outside()
    assert "PATH" in outside()
