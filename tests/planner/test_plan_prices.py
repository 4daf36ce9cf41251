from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.planner.planner import Fewest, PlannedDeployment
from headway.planner.prices import cheapest, parse_prices, per_hour, priced, prices_data, said_of_prices
from headway.statistics import Interval
from tests.planner.plans import TARGETS, ask, planned, prepared

ASKED = ask(slo=TARGETS)


def test_prices_are_of_gpus_by_name_or_data_sheet() -> None:
    sheet = "custom:tflops=312,bandwidth=2039,memory=80"
    assert parse_prices(["h100=2.5", f"{sheet}=1"]) == {"h100": 2.5, sheet: 1.0}


@pytest.mark.parametrize(
    "texts", [["h100"], ["=2"], ["h100=0"], ["h100=-1"], ["h100=x"], ["h100=inf"], ["h100=1"] * 2]
)
def test_what_is_no_price_is_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"price is '.*'; accepted: HARDWARE=X"):
        parse_prices(texts)


def test_each_gpu_with_a_price_is_planned_for_the_fewest() -> None:
    assert priced(ASKED, {}) == [ASKED]
    plans = priced(ASKED, {"l40s": 0.9, "h100": 2.5})
    assert [(each.hardware, each.price, each.fewest) for each in plans] == [
        ("h100", 2.5, True),
        ("l40s", 0.9, True),
    ]


def test_prices_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ConfigError, match="price is not given for h100; accepted: HARDWARE=X"):
        priced(ASKED, {"l40s": 0.9})
    with pytest.raises(ConfigError, match=r"load is 1\.2 with several prices.*accepted: --rate-scale"):
        priced(replace(ASKED, load=1.2), {"l40s": 0.9, "h100": 2.5})
    assert len(priced(replace(ASKED, load=1.2), {"h100": 2.5})) == 1


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> PlannedDeployment:
    folder: Path = tmp_path_factory.mktemp("priced")
    return planned(folder, prepared(slo=TARGETS, fewest=True, price=2.5, aim=0.01), budget=2)


def of(
    plan: PlannedDeployment, hardware: str, price: float, gpus: int | None, low: float = 0.91
) -> PlannedDeployment:
    """The plan as if it had come to so many GPUs of this kind."""
    request = replace(plan.prepared.request, hardware=hardware, price=price, gpus=8)
    fewest = Fewest(gpus=gpus, aim=0.9, goodput=Interval(0.93, low, 0.95))
    return replace(plan, prepared=replace(plan.prepared, request=request), fewest=fewest)


def test_the_cheapest_that_holds_the_aim_is_chosen_and_said_with_its_interval(
    plan: PlannedDeployment,
) -> None:
    assert per_hour(plan) == 2.5
    plans = [of(plan, "h100", 2.5, 1), of(plan, "l40s", 0.8, 3, low=0.85), of(plan, "a100-80g", 0.1, None)]
    assert cheapest(plans) is plans[1]
    assert said_of_prices(plans) == [
        "h100: 1 GPUs, 2.50 an hour (goodput 0.930, 95 %: 0.910 to 0.950 where 0.9 is asked for)",
        "l40s: 3 GPUs, 2.40 an hour (goodput 0.930, 95 %: 0.850 to 0.950 where 0.9 is asked for); cheapest, the "
        "interval reaches below: one more may be wise",
        "a100-80g: not even 8 keep the targets (goodput 0.930, 95 %: 0.910 to 0.950 where 0.9 is asked for)",
    ]
    data = prices_data(plans)
    assert data is not None
    assert data["l40s"] == {"per_gpu_hour": 0.8, "gpus": 3, "per_hour": pytest.approx(2.4), "is_choice": True}
    assert data["a100-80g"]["per_hour"] is None


def test_without_prices_nothing_is_said_of_them(plan: PlannedDeployment) -> None:
    free = replace(plan, prepared=replace(plan.prepared, request=replace(plan.prepared.request, price=None)))
    assert said_of_prices([free]) == []
    assert prices_data([free]) is None


def test_where_none_holds_the_aim_the_first_is_told(plan: PlannedDeployment) -> None:
    plans = [of(plan, "h100", 2.5, None), of(plan, "l40s", 0.8, None)]
    assert cheapest(plans) is plans[0]
