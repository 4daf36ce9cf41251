"""The scene of `bench/gain/batch_simulated.py`."""

from __future__ import annotations

import pytest

from bench.gain import batch_simulated
from bench.gain.batch_simulated import Engine, Scene, of_a_batch, run
from headway.core.slo import NO_TARGETS

ENGINE = Engine("h100", "Qwen/Qwen3-8B", "headway")


def test_capacity_is_that_of_the_engine_at_work() -> None:
    # 40 fit into a step or two: all of them decode together, and 95 in 100 are counted.
    requests = [of_a_batch(number, 0.0) for number in range(40)]
    ends_s = [record.finished_s or 0.0 for record in ENGINE.served(requests)]
    assert ENGINE.capacity_rps(requests) >= 0.95 * len(requests) / max(ends_s)
    assert requests[0].slo != NO_TARGETS


def test_a_batch_gets_answers_and_costs_others_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_simulated, "SECONDS", 12.0)
    alone, beside = (run(Scene(ENGINE, rps=8.0, batch_rps=batch_rps, seed=0)) for batch_rps in (0.0, 4.0))
    assert alone["batch_rps"] == 0.0 < beside["batch_rps"]
    assert alone["goodput"] == beside["goodput"] == 1.0
    assert alone["mean_jct_s"] < beside["mean_jct_s"]
