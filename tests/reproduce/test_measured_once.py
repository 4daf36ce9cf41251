from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from headway_reproduce import real_study
from headway_reproduce.real_study import NO_VLLM, MeasuredOnce, read_current

from headway.json_file import write_json


class Measured(MeasuredOnce, frozen=True, kw_only=True):
    """A figure."""

    figure: float


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_json(tmp_path / "kept.json", Measured(figure=1.5))
    return tmp_path / "kept.json"


def test_what_these_releases_measured_is_kept(path: Path) -> None:
    assert read_current(path, Measured) == Measured(figure=1.5)
    assert read_current(path.with_name("none.json"), Measured) is None


@pytest.mark.parametrize("what", ["release", "vllm_version"])
def test_another_release_measures_anew(path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(real_study, what, lambda: "99.0")
    assert read_current(path, Measured) is None


def test_where_there_is_no_vllm_headways_release_decides(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_study, "vllm_version", lambda: NO_VLLM)
    assert read_current(path, Measured) is not None
    write_json(path, msgspec.structs.replace(Measured(figure=1.5), headway="0.0.1"))
    assert read_current(path, Measured) is None
