"""Requests through a gateway over real engines that are killed and frozen: every one is accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.right import gateway_storm
from bench.right.gateway_storm import REAL


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_request_ends_once_whatever_happens_to_the_instances(tmp_path: Path) -> None:
    # This seed freezes hp-0 after 5.6 s and kills lp-0, with its streams, after 12.1 s of 16.
    plan = replace(REAL, requests=130, rate_rps=8.0, harm_every_s=5.0, freeze_s=3.0, seed=5)
    result = gateway_storm.run(plan, tmp_path)
    log = (tmp_path / "log").read_text(errors="replace")
    assert gateway_storm.passed(result), f"{result}\n{log[-3000:]}"
    assert sum(result["ends"].values()) == result["requests"] == 130
    assert result["ends"]["left"] > 0
    assert result["harm"]["kills"] >= 1
    assert result["harm"]["freezes"] >= 1
    assert 1 <= result["restarts"] <= result["harm"]["kills"]
    assert result["resumed"] > 0
