"""The sums of `bench/gain/fastserve_real.py`, by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.gain.fastserve_real import AMPLE, FASTSERVE, SHORT, Measured, gains, stream
from bench.real_runs import STOCK, CapacityFacts, Run
from bench.side_by_side import compared


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
