"""What `headway reproduce ascendra` says of its runs on a real engine, by made-up runs; and one real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from headway_reproduce.ascendra import real_run
from headway_reproduce.ascendra.real_run import (
    COMPARED,
    LOADS,
    REAL_FILE,
    AscendraReal,
    Calibrated,
    RealCell,
    StreamRun,
    real_part,
    real_runs,
    real_seconds,
)

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import RecordError
from headway.lab.papers import PaperRequest
from headway.results import Summary, summarize


def summary(met: int, dropped: int = 0) -> Summary:
    """Of ten requests, so many within a target of 1 s, and so many dropped."""
    records = [
        Record(
            id=f"{place}",
            arrival_s=0.0,
            prompt_tokens=8,
            outcome=Outcome.EXPIRED if place >= 10 - dropped else Outcome.FINISHED,
            output_tokens=4,
            first_token_s=0.5 if place < met else 2.0,
            finished_s=0.5 if place < met else 2.0,
            slo=Slo(ttft_s=1.0),
        )
        for place in range(10)
    ]
    return summarize(records)


def run(met: int, dropped: int = 0) -> StreamRun:
    return StreamRun(summary=summary(met, dropped), cores={"lp-0": 0.1, "lp-1": 0.2, "hp-0": 0.3})


@pytest.fixture
def found() -> AscendraReal:
    """Ascendra is better by a half at load 1, and the worse of three at load 1.5."""
    met = {1.0: (6, 4, 3), 1.5: (2, 4, 3)}
    light = replace(summary(10), p50_ttft_s=0.05)
    return AscendraReal(
        hardware="2 cores",
        calibrated=Calibrated(
            capacity_rps=20.0, light=light, decode_inflation={"0": 1.5, "1": 1.4, "2": 1.3}
        ),
        ttft_target_s=0.5,
        tbt_target_s=0.075,
        cells=tuple(
            RealCell(system=system, load=load, runs=(run(count, dropped=1), run(count)))
            for load, counts in met.items()
            for system, count in zip(COMPARED, counts, strict=True)
        ),
    )


def test_the_part_shows_every_system_at_every_load(found: AscendraReal) -> None:
    part = real_part(found)
    (table,) = part.tables
    assert [(row[0], row[1]) for row in table.rows] == [
        (f"{load:g}", system) for load in LOADS for system in COMPARED
    ]
    assert len(table.headings) == len(table.rows[0])
    first = dict(zip(table.headings, table.rows[0], strict=True))
    assert first["goodput"] == pytest.approx(0.6)
    assert first["dropped"] == pytest.approx(0.05)
    assert first["cores of the instances"] == "lp-0 0.10 lp-1 0.20 hp-0 0.30"
    assert any("0.500 s" in line for line in part.text)
    assert any("1.50" in line for line in part.text)


def test_quick_leaves_it_out(tmp_path: Path) -> None:
    request = PaperRequest(root=tmp_path, jobs=1, quick=True)
    assert real_seconds(request) == 0.0
    assert real_runs(request, lambda line: None) is None
    assert "--quick" in real_part(None).text[0]
    assert not real_part(None).tables


def test_what_is_kept_is_not_run_again(tmp_path: Path, found: AscendraReal) -> None:
    (tmp_path / REAL_FILE).write_bytes(msgspec.json.encode(found))
    request = PaperRequest(root=tmp_path, jobs=1)
    assert real_seconds(request) == 0.0
    assert real_runs(request, lambda line: None) == found


@pytest.mark.parametrize("other", [{"headway": "0.0.1"}, {"vllm": "0.11.0"}])
def test_what_another_release_measured_is_measured_again(
    tmp_path: Path, found: AscendraReal, other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_run, "find_spec", lambda name: name)
    (tmp_path / REAL_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(found, **other)))
    assert real_seconds(PaperRequest(root=tmp_path, jobs=1)) > 0


def test_where_there_is_no_vllm_headways_release_decides(
    tmp_path: Path, found: AscendraReal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_run, "find_spec", lambda name: None)
    kept = msgspec.structs.replace(found, vllm="0.11.0")
    (tmp_path / REAL_FILE).write_bytes(msgspec.json.encode(kept))
    request = PaperRequest(root=tmp_path, jobs=1)
    assert real_runs(request, lambda line: None) == kept
    assert real_seconds(replace(request, root=tmp_path / "empty")) == 0.0


def test_what_is_kept_must_be_such_runs(tmp_path: Path) -> None:
    (tmp_path / REAL_FILE).write_text('{"hardware": 3}')
    with pytest.raises(RecordError, match=REAL_FILE):
        real_runs(PaperRequest(root=tmp_path, jobs=1), lambda line: None)
