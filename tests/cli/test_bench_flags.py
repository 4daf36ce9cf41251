from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Refused, words

TRACE = "arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,6\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def bench(refused: Refused, tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Says what is wrong with these flags in place of good ones, after what is understood of the trace."""
    good = {"model": "demo", "trace": trace, "policies": "vllm,sjf", "out": tmp_path / "out"}
    # The demo model is made here, not among the user's own.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(*last: str, **flags: object) -> str:
        return refused("bench", *words({**good, **flags}), *last).splitlines(keepends=True)[-1]

    return run


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"trace": "missing.csv"}, "missing.csv"),
        ({"limit": 0}, "--limit is 0; accepted: 1 or more"),
        ({"rate_scale": 0}, "rate factor is 0.0; accepted: a finite number above 0"),
        ({"load": 0}, "--load is 0; accepted: a finite number above 0"),
        ({"load": 0.9, "rate_scale": 2}, "--load is 0.9 and --rate-scale 2; accepted: one of the two"),
        ({"slo_ttft": -1}, "--slo-ttft is -1.0; accepted"),
        ({"batch_width": 0}, "--batch-width is 0; accepted: 1 or more"),
        ({"host_kv_gib": -1}, "--host-kv-gib is -1.0; accepted: more than 0"),
        ({"host_kv_gib": 1e9}, "--host-kv-gib is 1e+09 but this machine has"),
        ({"host_kv_bytes_per_s": 1e9}, "without host memory; add --host-kv-gib"),
        ({"predictor": "noisy-oracle"}, "predictor 'noisy-oracle': ''; accepted: tau=..., seed=N"),
        ({"predictor": "broken:way=up"}, "way of a broken predictor is 'up'; accepted: reversed"),
        ({"model": "./no-such-model"}, "model './no-such-model' does not exist"),
    ],
)
def test_what_is_not_accepted_is_said_before_anything_is_written(
    bench: Refused, tmp_path: Path, flags: dict[str, object], complaint: str
) -> None:
    err = bench(**flags)
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_model_that_stops_by_itself_needs_prompts(bench: Refused, tmp_path: Path) -> None:
    err = bench("--own-stops")
    assert "request '0' has no prompt" in err
    assert not (tmp_path / "out").exists()


def test_a_trace_with_a_bad_line_names_it(bench: Refused, trace: Path) -> None:
    trace.write_text(TRACE + "2,-5,1\n")
    err = bench("--strict")
    assert "trace.csv, line 4" in err


@pytest.mark.parametrize(
    ("vllm_flags", "complaint"),
    [
        (["--port", "9"], "--port cannot be used under Headway"),
        (["--additional-config", "{"], "--additional-config '{' is not JSON"),
    ],
)
def test_flags_for_vllm_are_checked_too(
    bench: Refused, tmp_path: Path, vllm_flags: list[str], complaint: str
) -> None:
    err = bench("--", *vllm_flags)
    assert err.startswith(f"error: {complaint}")
    assert not (tmp_path / "out").exists()


def test_results_are_never_overwritten(bench: Refused, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    err = bench()
    assert err.startswith(f"error: {out} holds a run already")
    assert [path.name for path in out.iterdir()] == ["run.json"]


def test_a_file_in_place_of_the_folder_is_refused(bench: Refused, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    err = bench()
    assert err.startswith("error: ")
    assert "cannot be written" in err
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("flag", ["model", "trace", "policies", "out"])
def test_what_is_compared_must_be_named(refused: Refused, flag: str) -> None:
    given = {"model": "demo", "trace": "demo", "policies": "vllm", "out": "out"}
    del given[flag]
    assert f"--{flag}" in refused("bench", *words(given))
