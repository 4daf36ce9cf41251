from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from headway.core.slo import Slo
from headway.planner.objective import Objective
from headway.planner.planner import PlannedDeployment
from headway.planner.report import front, pareto_svg, plan_data, plan_table
from tests.planner.plans import TARGETS, planned, prepared

KEYS = {
    *(
        "simulated",
        "objective",
        "hardware",
        "requests",
        "left_out",
        "rate_rps",
        "targets",
        "target_ranges",
        "choice",
        "default",
        "gain",
    ),
    *(
        "command",
        "arguments",
        "machines",
        "gpus",
        "pareto",
        "fewest",
        "configurations",
        "rungs",
        "runs",
        "wall_s",
    ),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlannedDeployment:
    """Two GPUs, targets, and the fewest."""
    found = prepared(slo=TARGETS, gpus=2, load=1.1, fewest=True, aim=0.2)
    return planned(tmp_path_factory.mktemp("plan"), found, budget=6)


def shown(what: object) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_plan_on_all_gpus_says_so_where_fewer_meet_as_many_targets(tmp_path: Path) -> None:
    found = planned(tmp_path, prepared(slo=Slo(ttft_s=60.0), gpus=2, load=0.2), budget=4)
    text = shown(plan_table(found))
    assert found.choice.gpus == 2
    assert "--gpus 2 asks for a plan on 2; on 1 the best has goodput 1.000 too, and a mean JCT of " in text
    assert "--fewest plans for the fewest GPUs" in text


def test_the_object_has_every_key_and_is_json(plan: PlannedDeployment) -> None:
    data = plan_data(plan)
    assert set(data) == KEYS
    assert json.loads(json.dumps(data, allow_nan=False))["simulated"] is True
    assert shlex.split(data["command"]) == data["arguments"]
    assert data["choice"]["policy"] == plan.choice.policy
    assert data["configurations"]["possible"] == plan.prepared.space.size
    assert sum(data["configurations"]["impossible"].values()) > 0
    assert set(data["gpus"]) == {"1", "2"}
    assert data["fewest"]["aim"] == 0.2
    best = data["gpus"]["2"]["best"]["goodput"]
    assert best["low"] <= best["mean"] <= best["high"]


def test_the_table_has_the_choice_the_default_and_what_was_left_out(plan: PlannedDeployment) -> None:
    text = shown(plan_table(plan))
    assert "choice" in text
    assert "default" in text
    assert plan.choice.policy in text
    assert "samples that chose nothing" in text or "nothing tried is better" in text
    assert "fewest GPUs that hold a goodput of 0.2" in text
    assert f"tried 6 of {plan.prepared.space.size:,}" in text


def test_the_front_is_where_more_gpus_buy_more() -> None:
    assert front({1: 0.5, 2: 0.5, 4: 0.9, 8: 0.8}, Objective.GOODPUT) == [1, 4]
    assert front({4: 2.0, 1: 9.0, 2: 3.0}, Objective.JCT) == [1, 2, 4]


def test_the_picture_shows_both_curves(plan: PlannedDeployment) -> None:
    svg = pareto_svg(plan)
    assert svg.startswith("<svg")
    assert "planned" in svg
    assert "vllm, its own flags" in svg


def test_without_targets_the_table_is_about_time(tmp_path: Path) -> None:
    found = planned(tmp_path, prepared(), budget=3)
    assert plan_data(found)["objective"] == "mean_jct_s"
    assert plan_data(found)["choice"]["goodput"] is None
    assert "gain in mean JCT" in shown(plan_table(found)) or "nothing tried is better" in shown(
        plan_table(found)
    )
