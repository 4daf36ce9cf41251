"""The sums of `bench/gain/fastserve_real.py`, by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.gain.fastserve_real import (
    AMPLE,
    FASTSERVE,
    SHORT,
    Measured,
    gains,
    main,
    markdown,
    stream,
)
from bench.real_runs import STOCK, CapacityFacts, Run
from bench.side_by_side import compared
from headway.errors import ConfigError


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """Results of streams of 2 s, at a capacity of 10 requests a second."""
    found = Measured(tmp_path, SHORT, 2.0)
    found.open()
    (tmp_path / "prepared.json").write_bytes(
        msgspec.json.encode(CapacityFacts(capacity_rps=10.0, asynchronous=False))
    )
    return found


def test_gains_are_stock_over_own_in_the_mean_and_own_over_stock_in_the_tail() -> None:
    found = gains([4.0, 8.0], [1.0, 2.0])
    assert (found["mean_gain"], found["p99_ratio"]) == pytest.approx((4.0, 1.99 / 7.96), rel=1e-3)
    assert found[STOCK.name]["mean_jct_s"] == 6.0
    assert found[FASTSERVE.name]["mean_jct_s"] == 1.5
    assert gains([4.0, 8.0, 2.0, 2.0], [1.0, 9.0, 2.0, 1.0])["share_slower"] == 0.25


def test_a_stream_is_the_same_for_both_and_tells_nobody_the_lengths(measured: Measured) -> None:
    requests = measured.requests(Run(STOCK, "", 8, 0.5, 1))
    assert requests == measured.requests(Run(FASTSERVE, "", 256, 0.5, 1)) == stream(5.0, 10, 1)
    assert requests != measured.requests(Run(STOCK, "", 8, 0.5, 2))
    assert {request.max_output_tokens for request in requests} == {512}


def test_nothing_of_headway_is_on_stocks_engine() -> None:
    stock, own = SHORT.of(STOCK), SHORT.of(FASTSERVE)
    assert stock.vllm_flags() == own.vllm_flags()
    assert stock.settings().host_kv is None
    assert own.settings().host_kv is not None
    # Without host memory one engine is as good as the other.
    assert AMPLE.of(STOCK) == AMPLE.of(FASTSERVE)


def test_both_systems_at_a_load_and_seed_serve_together() -> None:
    runs = [
        Run(system, "", seats, load, seed)
        for system in (STOCK, FASTSERVE)
        for seats in (16, 256)
        for load in (0.5, 1.0)
        for seed in range(3)
    ]
    groups = compared(runs, by=lambda run: (run.seed, run.load))
    assert [len(group) for group in groups] == [4] * 6
    assert all(len({(run.seed, run.load) for run in group}) == 1 for group in groups)
    assert len({run.file(Path()) for run in runs}) == len(runs)


def test_streams_of_another_length_are_not_mixed_in(measured: Measured) -> None:
    measured.open()
    with pytest.raises(ConfigError, match=r"another bench \(seconds was 2.0, now 3.0\); give another folder"):
        Measured(measured.out, SHORT, 3.0).open()


@pytest.mark.parametrize("option", ["--seconds", "--seeds"])
def test_an_option_out_of_range_is_refused_before_anything_starts(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["fastserve_real", "--out", str(out), option, "0"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"{option} is 0; accepted: 1 or more" in capsys.readouterr().err
    assert not out.exists()


def test_the_table_has_a_row_for_each_number_of_seats_and_load() -> None:
    cell = {**gains([4.0, 8.0], [1.0, 2.0]), "mean_gain_by_seed": [3.0, 5.0]}
    found = {"short": {"capacity_rps": 3.0, "cells": {16: {"0.5": cell, "1": cell}}}}
    rows = [line for line in markdown(found).splitlines() if line.startswith("| 16")]
    assert rows[0] == "| 16 | 0.5 | 6.00 / 1.50 | 4.00 (3.00 to 5.00) | 0.25 | 0 % |"
    assert len(rows) == 2
