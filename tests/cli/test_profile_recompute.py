from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from headway.cli import main
from headway.cli.output import progress
from headway.predict.recompute.rows import write_rows
from tests.predict.prefills import SIX, rows

Run = Callable[..., tuple[object, str, str]]


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[object, str, str]:
        """Exit code, stdout and stderr of a profile of the grid that starts no engine."""
        monkeypatch.setattr(sys, "argv", ["headway", "profile", "--recompute-grid", *words])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as raised:
            main()
        printed = capsys.readouterr()
        return raised.value.code, printed.out, printed.err

    return run


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "rows.json"
    write_rows(path, rows())
    return path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "--recompute-grid needs --out FILE to measure or --from FILE to fit again; found neither"),
        (["--out", "a", "--from", "b"], "found both"),
        (["--from", "b", "--model", "demo"], "--model and --recompute-grid are given"),
        (["--from", "b", "--seconds", "0"], "--seconds and --recompute-grid are given"),
        (["--from", "b", "--", "--max-num-seqs", "8"], "vLLM's own flags and --recompute-grid are given"),
        (["--from", "no-such-file"], "rows file no-such-file cannot be read"),
    ],
)
def test_what_is_not_accepted_is_said_in_a_line(profile: Run, words: list[str], complaint: str) -> None:
    code, out, err = profile(*words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert complaint in err


def test_rows_are_fitted_again_without_an_engine(profile: Run, measured: Path) -> None:
    code, out, err = profile("--from", str(measured), "--quick", "--json")
    assert code == 0
    data = json.loads(out)
    assert len(data["grid"]) == 8 * 3
    assert data["recompute_error"]["cells"] == 24
    assert data["recompute_error"]["held_out_rows"] == 2 * 27
    assert data["swap_error"]["measured_on"] == "cpu-engine"
    assert data["file"] == str(measured)
    for shown in (
        "RandomForest",
        "8x512",
        "step-time model",
        "machine itself",
        "swap: error",
        "at decision time",
    ):
        assert shown in err
    assert "0% fitting LinearRegression, degree 1" in err


@pytest.mark.parametrize(("noise", "flagged"), [(0.62, True), (0.02, False), (None, False)])
def test_errors_of_a_busy_machine_are_flagged(
    profile: Run, tmp_path: Path, noise: float | None, flagged: bool
) -> None:
    path = tmp_path / "busy.json"
    write_rows(path, msgspec.structs.replace(rows(), noise=noise))
    code, _, err = profile("--from", str(path), "--quick")
    assert code == 0
    assert ("this machine was busy: steps of one kind differ by 62%" in " ".join(err.split())) is flagged


def test_a_shape_less_is_said(profile: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_rows(path, rows(SIX[:1]))
    code, out, err = profile("--from", str(path), "--quick", "--json")
    assert code == 0
    assert json.loads(out)["recompute_error"]["held_out_shape"] is None
    assert "an unseen shape" not in err


def test_an_interrupted_file_with_too_little_is_refused(profile: Run, tmp_path: Path) -> None:
    path = tmp_path / "few.json"
    all_rows = rows()
    write_rows(path, msgspec.structs.replace(all_rows, steps=all_rows.steps[:60], interrupted=True))
    code, _, err = profile("--from", str(path))
    assert code == 2
    assert "too little was measured to judge by; missing: steps of 4x512" in err


def test_from_is_for_the_grid_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    words = ["headway", "profile", "--model", "demo", "--out", "cost.json", "--from", str(measured)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--from FILE is accepted with --recompute-grid only" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--model", "demo"], ["--out", "cost.json"]])
def test_without_the_grid_a_model_and_a_file_are_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "profile", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "--model M and --out FILE are needed; accepted without a model: --recompute-grid" in (
        capsys.readouterr().err
    )


def test_a_log_gets_a_line_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as tell:
        for step in range(101):
            tell(step / 100, f"step {step}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert (lines[0], lines[-1]) == ("  0% step 0", "100% step 100")
