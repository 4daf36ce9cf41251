from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli import main
from headway.cli.bench import _requests
from headway.core.slo import Slo
from headway.experiments.demo_stream import INTERACTIVE, demo_stream

Run = Callable[..., tuple[object, str]]

TRACE = "arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,6\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def bench(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    def run(*last: str, **flags: object) -> tuple[object, str]:
        """Exit code and stderr of a bench with these flags in place of good ones."""
        given = {"model": "demo", "trace": trace, "policies": "vllm,sjf", "out": tmp_path / "out", **flags}
        words = [
            word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        monkeypatch.setattr(sys, "argv", ["headway", "bench", *words, *last])
        # The demo model is made here, not among the user's own.
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(SystemExit) as raised:
            main()
        printed = capsys.readouterr()
        assert printed.out == ""
        return raised.value.code, printed.err

    return run


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"policies": "vllm,nope"}, "unknown policy 'nope'; accepted: vllm, "),
        ({"policies": ""}, "--policies is ''; accepted: names of the preset table, comma-separated"),
        ({"policies": " , ,"}, "--policies is ' , ,'; accepted: names of the preset table"),
        ({"policies": "vllm,sjf,vllm"}, "policies are 'vllm, sjf, vllm'; accepted: different names"),
        ({"trace": "missing.csv"}, "missing.csv"),
        ({"trace": "gen:nonsense"}, "'gen:nonsense'"),
        ({"limit": 0}, "limit is 0; accepted: 1 or more"),
        ({"trace": "demo", "limit": 0}, "limit is 0; accepted: 1 or more"),
        ({"rate_scale": 0}, "rate factor is 0.0; accepted: a finite number above 0"),
        ({"slo_ttft": -1}, "ttft_s is -1.0; accepted"),
        ({"slo_tbt": "nan"}, "tbt_s is nan; accepted"),
        ({"batch_width": 0}, "batch_width is 0; accepted: 1 or more"),
        ({"model": "./no-such-model"}, "model './no-such-model' does not exist"),
    ],
)
def test_what_is_not_accepted_is_said_before_anything_is_written(
    bench: Run, tmp_path: Path, flags: dict[str, object], complaint: str
) -> None:
    code, err = bench(**flags)
    assert code == 2
    assert err.startswith("error: ")
    assert complaint in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_trace_with_a_bad_line_names_it(bench: Run, trace: Path) -> None:
    trace.write_text(TRACE + "2,-5,1\n")
    code, err = bench()
    assert code == 2
    assert "trace.csv, line 4" in err


@pytest.mark.parametrize(
    ("vllm_flags", "complaint"),
    [
        (["--scheduling-policy", "priority"], "--scheduling-policy is 'priority'; accepted: fcfs"),
        (["--port", "9"], "--port cannot be used under Headway"),
        (["--additional-config", "{"], "--additional-config '{' is not JSON"),
    ],
)
def test_flags_for_vllm_are_checked_too(
    bench: Run, tmp_path: Path, vllm_flags: list[str], complaint: str
) -> None:
    code, err = bench("--", *vllm_flags)
    assert code == 2
    assert err.startswith(f"error: {complaint}")
    assert not (tmp_path / "out").exists()


def test_results_are_never_overwritten(bench: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    code, err = bench()
    assert code == 2
    assert err.startswith(f"error: {out} holds a run already")
    assert [path.name for path in out.iterdir()] == ["run.json"]


def test_a_file_in_place_of_the_folder_is_refused(bench: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    code, err = bench()
    assert code == 2
    assert err.startswith("error: ")
    assert "cannot be written" in err
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("flag", ["model", "trace", "policies", "out"])
def test_what_is_compared_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    given = {"model": "demo", "trace": "demo", "policies": "vllm", "out": "out"}
    words = [word for name, value in given.items() if name != flag for word in (f"--{name}", value)]
    monkeypatch.setattr(sys, "argv", ["headway", "bench", *words])
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    assert f"--{flag}" in capsys.readouterr().err


def test_default_targets_go_to_requests_that_name_none(trace: Path) -> None:
    assert {request.slo for request in _requests(str(trace), None, 1.0, 0, 0.5, None)} == {Slo(ttft_s=0.5)}
    demo = _requests("demo", 20, 1.0, 0, 0.5, None)
    assert INTERACTIVE in {request.slo for request in demo}
    assert [request.slo for request in demo] == [request.slo for request in demo_stream()[:20]]


def test_the_demo_stream_follows_the_seed_the_limit_and_the_rate() -> None:
    assert _requests("demo", None, 1.0, 3, None, None) == demo_stream(3)
    twice = _requests("demo", 50, 2.0, 0, None, None)
    assert [request.arrival_s for request in twice] == [
        request.arrival_s / 2 for request in demo_stream()[:50]
    ]
