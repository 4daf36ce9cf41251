"""The Ray application of deploy/, importable as Ray Serve imports it."""

from __future__ import annotations

from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(autouse=True)
def ray_app_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEPLOY / "ray"))
