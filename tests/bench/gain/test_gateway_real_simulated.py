"""What the simulator says beside `bench/gain/gateway_real.py`: of every system, on engines with known costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headway_reproduce.ascendra.real_stream import bursty_stream
from headway_reproduce.ascendra.real_systems import SYSTEMS

from bench.gain.gateway_real import Simulated
from headway.core.slo import Slo
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from tests.planner.costs import write_costs


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """Two GPUs in place of this machine; of the file only that they were measured counts."""
    file = write_costs(tmp_path_factory.mktemp("cost") / "cost.json", jobs=128, tokens=2048)
    return Simulated(file, calibration("a100-80g", model_shape("mistralai/Mistral-7B-v0.1"), 1, 1), 2)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_can_be_simulated(simulated: Simulated, system: str) -> None:
    # At one request a second everybody is in time; with a first token due within a microsecond nobody is.
    requests = bursty_stream(1.0, 8.0, 1, Slo(ttft_s=10.0, tbt_s=1.0))
    hopeless = [replace(request, slo=Slo(ttft_s=1e-6)) for request in requests]
    assert simulated.goodput(system, requests, 1) == 1.0
    assert simulated.goodput(system, hopeless, 1) == 0.0
