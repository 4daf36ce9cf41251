"""Prices of GPUs: one plan on each priced kind, and the cheapest that meets the aim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from headway.errors import ConfigError
from headway.planner.planner import PlannedDeployment
from headway.planner.request import PlanRequest
from headway.statistics import Interval

ACCEPTED = "HARDWARE=X, the price of one GPU for an hour, such as h100=2.5"


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Hardware -> the price of one GPU for an hour. Raises ConfigError for text without a price, or a repeated kind."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, price = text.rpartition("=")  # data sheets in a name contain such signs too
        try:
            value = float(price)
        except ValueError:
            value = 0.0
        if not name or name in prices or not 0 < value < float("inf"):
            raise ConfigError.of("price", repr(text), f"{ACCEPTED}, once for each")
        prices[name] = value
    return prices


def priced(request: PlanRequest, prices: dict[str, float]) -> list[PlanRequest]:
    """The plan for each priced kind of GPU, the request's own first; the request itself if none has a price.

    Raises ConfigError if the request's own kind has no price, and for a load relative to each kind's capacity.
    """
    if not prices:
        return [request]
    if request.hardware not in prices:
        raise ConfigError.of("price", f"not given for {request.hardware}", ACCEPTED)
    if len(prices) > 1 and request.load is not None:
        raise ConfigError.of(
            "load",
            f"{request.load} with several prices, and would be another load on each GPU",
            "--rate-scale",
        )
    names = [request.hardware, *(name for name in prices if name != request.hardware)]
    return [replace(request, hardware=name, price=prices[name], fewest=True) for name in names]


def per_hour(planned: PlannedDeployment) -> float | None:
    """Hourly price of the fewest GPUs that hold the aim; None without a price, or if not even all of them do."""
    price, fewest = planned.prepared.request.price, planned.fewest
    return None if price is None or fewest is None or fewest.gpus is None else price * fewest.gpus


def cheapest(plans: Sequence[PlannedDeployment]) -> PlannedDeployment:
    """The plan that holds the aim most cheaply, the first among equals; the first plan if none holds it."""
    holding = [(cost, place) for place, each in enumerate(plans) if (cost := per_hour(each)) is not None]
    return plans[min(holding)[1]] if holding else plans[0]


def said_of_prices(plans: Sequence[PlannedDeployment]) -> list[str]:
    """A line for each kind of GPU: how many hold the aim, their price, and their goodput."""
    if plans[0].prepared.request.price is None:
        return []
    return [_said(each, each is cheapest(plans)) for each in plans]


def _said(planned: PlannedDeployment, is_choice: bool) -> str:
    request, fewest, cost = planned.prepared.request, planned.fewest, per_hour(planned)
    assert fewest is not None
    goodput = f"goodput {_interval(fewest.goodput)} where {fewest.aim:g} is asked for"
    if cost is None:
        return f"{request.hardware}: not even {request.gpus} keep the targets ({goodput})"
    marks = ["cheapest"] * is_choice + ["the interval reaches below: one more may be wise"] * (
        not fewest.sure
    )
    said = f"; {', '.join(marks)}" if marks else ""
    return f"{request.hardware}: {fewest.gpus} GPUs, {cost:.2f} an hour ({goodput}){said}"


def _interval(interval: Interval | None) -> str:
    return (
        "not measured"
        if interval is None
        else f"{interval.mean:.3f}, 95 %: {interval.low:.3f} to {interval.high:.3f}"
    )


def prices_data(plans: Sequence[PlannedDeployment]) -> dict[str, Any] | None:
    """Prices for scripts; None without prices."""
    if plans[0].prepared.request.price is None:
        return None
    return {
        each.prepared.request.hardware: {
            "per_gpu_hour": each.prepared.request.price,
            "gpus": None if each.fewest is None else each.fewest.gpus,
            "per_hour": per_hour(each),
            "is_choice": each is cheapest(plans),
        }
        for each in plans
    }
