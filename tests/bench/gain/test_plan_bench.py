from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.gain.planner import GENERATED, SHARED, Bench
from headway.errors import ConfigError
from headway.lab.trace import Trace

pytestmark = pytest.mark.slow


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with no shared data beside it."""
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")


@pytest.mark.usefixtures("alone")
def test_where_there_are_no_shared_traces_others_take_their_place(tmp_path: Path) -> None:
    bench = Bench(out=tmp_path, data=None, budget=3, jobs=1, limit=200)
    for trace in SHARED:
        assert bench.source(trace) == GENERATED[trace]
        assert len(Trace(bench.source(trace), 50).requests()) == 50
    folder = tmp_path / "data" / "traces"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"which has no .*; accepted: the folder that holds traces/"):
        replace(bench, data=tmp_path / "data").source("code")
    (folder / SHARED["code"]).write_bytes(b"")
    assert replace(bench, data=tmp_path / "data").source("code").endswith(SHARED["code"])
