"""The plan and the figures of `bench/gain/gateway_real.py`, by hand, and what the simulator says beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from headway_reproduce.ascendra.real_run import CLIENT, GATEWAY, OTHERS, Calibrated, StreamRun
from headway_reproduce.ascendra.real_stream import Shape, TargetRule, bursty_stream
from headway_reproduce.ascendra.real_systems import ASCENDRA, SYSTEMS
from headway_reproduce.process_cpu import CpuShare

from bench.gain.gateway_real import (
    GatewayRun,
    Plan,
    Simulated,
    cell,
    client_figures,
    headline,
    kept_run,
    over,
    system_figures,
)
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.results import Summary, summarize
from tests.planner.costs import write_costs

RR, LW = "vllm round-robin", "vllm least-work, drop"


def summary(met: int, *, dropped: int = 0, failed: int = 0, of: int = 10) -> Summary:
    """`met` requests within a target of 1 s, `dropped` and `failed` ones, and the others too late."""
    outcomes = [Outcome.EXPIRED] * dropped + [Outcome.FAILED] * failed
    outcomes += [Outcome.FINISHED] * (of - len(outcomes))
    return summarize(
        [
            Record(
                id=f"{place}",
                arrival_s=0.0,
                prompt_tokens=8,
                outcome=outcome,
                output_tokens=1,
                first_token_s=0.5 if place >= of - met else 2.0,
                finished_s=0.5 if place >= of - met else 2.0,
                slo=Slo(ttft_s=1.0),
            )
            for place, outcome in enumerate(outcomes)
        ]
    )


def stream_run(met: int, *, client: float = 0.1, late_s: float = 0.0, inflation: float = 1.0) -> StreamRun:
    shares = {
        "lp-0": CpuShare(0.8, inflation),
        GATEWAY: CpuShare(0.1, 1.0),
        CLIENT: CpuShare(client, 1.0),
        OTHERS: CpuShare(0.01, 9.0),
    }
    return StreamRun(
        summary=summary(met),
        wall_s=12.0,
        shares=shares,
        late_p99_s=late_s,
        served={"lp-0": met},
        hand_offs=10 - met,
    )


def test_goodput_is_a_mean_with_its_seeds_beside_it() -> None:
    found = system_figures([stream_run(4), stream_run(7, inflation=1.2)])
    assert found["goodput"] == {
        "mean": pytest.approx(0.55),
        "by_seed": [0.4, 0.7],
        "spread": pytest.approx(0.3),
    }
    # Inflation is told of instances only, whose cores others may have had.
    assert found["step_time_inflation"] == {"lp-0": pytest.approx(1.1)}
    assert (found["served"], found["hand_offs"]) == ({"lp-0": 5.5}, 4.5)
    assert set(found["cores"]) == {"lp-0", GATEWAY, CLIENT, OTHERS}


def test_dropped_and_failed_are_told_apart() -> None:
    run = msgspec.structs.replace(stream_run(5), summary=summary(5, dropped=3, failed=1))
    found = system_figures([run, stream_run(5)])
    assert (found["dropped"], found["failed"]) == (pytest.approx(0.15), pytest.approx(0.05))


def test_the_best_of_stock_is_by_mean_goodput_at_that_load() -> None:
    runs = {
        ASCENDRA: [stream_run(8), stream_run(6)],
        RR: [stream_run(5), stream_run(5)],
        LW: [stream_run(2), stream_run(9)],
    }
    found = cell(runs)
    assert found["best_of_stock"] == LW
    # 0.7 over 0.55, and seed by seed 0.8 over 0.2 and 0.6 over 0.9.
    assert found["over_best"]["ratio"] == pytest.approx(0.7 / 0.55)
    assert found["over_best"]["ratio_by_seed"] == pytest.approx([4.0, 2 / 3])
    assert found["over_best"]["points"] == pytest.approx(15.0)
    assert headline({"1.2": found}) == {
        "1.2": {
            "ascendra": pytest.approx(0.7),
            "best_of_stock": pytest.approx(0.55),
            "which": LW,
            "ratio": pytest.approx(0.7 / 0.55),
        }
    }


def test_one_system_alone_has_nobody_to_be_compared_with() -> None:
    found = cell({RR: [stream_run(5)]})
    assert "over_best" not in found
    assert headline({"1": found}) == {}


def test_nothing_over_nothing_is_no_ratio() -> None:
    assert over([0.5], [0.0])["ratio"] is None
    assert over([0.5], [0.0])["points_by_seed"] == [50.0]


def test_a_client_disturbs_by_the_cores_it_takes_or_by_being_late() -> None:
    # 0.3 of two cores is the limit.
    assert not client_figures([stream_run(5, client=0.29), stream_run(5)], cores=2)["disturbs"]
    assert client_figures([stream_run(5, client=0.31), stream_run(5)], cores=2)["disturbs"]
    assert client_figures([stream_run(5), stream_run(5, late_s=0.021)], cores=2)["disturbs"]


# ---- the plan ------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Two seeds of two loads, capacity 20 requests a second, 40 ms to the first token at light load."""
    light = replace(summary(1, of=1), p50_ttft_s=0.04)
    calibrated = Calibrated(capacity_rps=20.0, light=light, decode_inflation={"0": 1.1})
    found = Plan(
        out=tmp_path,
        instances=2,
        seconds=6.0,
        seeds=2,
        loads=(1.0, 1.5),
        systems=tuple(SYSTEMS),
        rule=TargetRule(ttft_factor=10.0, tbt_share=0.15),
        shape=Shape(),
    )
    found.open()
    (tmp_path / "calibrated.json").write_bytes(msgspec.json.encode(calibrated))
    return found


def test_every_system_is_run_once_for_each_stream_and_none_is_always_first(plan: Plan) -> None:
    runs = plan.runs()
    assert len(set(runs)) == len(runs) == 2 * 2 * len(SYSTEMS)
    streams = [runs[place : place + len(SYSTEMS)] for place in range(0, len(runs), len(SYSTEMS))]
    assert all(len({(run.load, run.seed) for run in stream}) == 1 for stream in streams)
    assert len({stream[0].system for stream in streams}) == len(streams)
    assert len({run.file(plan.out) for run in runs}) == len(runs)


def test_all_systems_of_a_seed_and_load_get_the_same_stream(plan: Plan) -> None:
    streams = [plan.stream(GatewayRun(system, 1.5, 0)) for system in SYSTEMS]
    assert all(stream == streams[0] for stream in streams)
    assert len(streams[0]) == 1.5 * 20 * 6
    (slo,) = {request.slo for request in streams[0]}
    assert slo.ttft_s == pytest.approx(0.4)
    assert slo.tbt_s == pytest.approx(0.06)
    assert plan.stream(GatewayRun(ASCENDRA, 1.5, 1)) != streams[0]


def test_a_run_is_kept_and_read_back(plan: Plan) -> None:
    run = GatewayRun("vllm least-work, drop", 1.5, 1)
    found = stream_run(4)
    run.file(plan.out).write_bytes(msgspec.json.encode(found))
    assert kept_run(run, plan.out) == found


@pytest.mark.parametrize("other", [{"instances": 3}, {"seconds": 12.0}])
def test_runs_of_another_kind_are_not_mixed(plan: Plan, other: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="another folder"):
        replace(plan, **other).open()  # type: ignore[arg-type]


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
