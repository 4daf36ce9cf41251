"""Shows the recommended number of instances to Prometheus, and to KEDA's `metrics-api` scaler at `GET /v1/scale`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.gateway.fleet.scaling import FleetScaling
from headway.gateway.http.refusal import GatewayError, json_page, refused
from headway.routing.scaling import ScalingReason, Served

PATH = "/v1/scale"
_NAME = "headway_recommended_instances"
_ACCEPTED = (
    "nothing is said of the number of instances; accepted: with --instances MIN..MAX or --scale MIN..MAX"
)


class ScaleReply(msgspec.Struct, kw_only=True):
    """The answer to `GET /v1/scale`; KEDA reads `recommended` (`valueLocation: recommended`, `targetValue: "1"`).

    Between `low` and `high` instances would do, for less and for more growth than assumed. `replays` has, by number of
    instances, the result of the last minutes with that growth. `doubt` says why replays cannot be trusted.
    """

    recommended: int
    low: int
    high: int
    reason: str
    current: int
    floor: int
    ceiling: int
    growth: float | None
    replays: dict[int, Served]
    doubt: str | None


class ScaleBoard(Collector):
    """Shows the recommendation of `scaling`; None if there is none."""

    def __init__(self, scaling: FleetScaling | None) -> None:
        self.scaling = scaling

    def reply(self) -> ScaleReply:
        """The current recommendation. Raises GatewayError (404) if nothing recommends."""
        scaling = self.scaling
        if scaling is None:
            raise GatewayError(404, "no_scale", _ACCEPTED)
        found, advice = scaling.recommendation, scaling.advice
        known = advice if found.reason is not ScalingReason.UNKNOWN else None
        return ScaleReply(
            recommended=found.instances,
            low=found.low,
            high=found.high,
            reason=found.reason,
            current=scaling.current,
            floor=scaling.bounds.floor,
            ceiling=scaling.bounds.ceiling,
            growth=None if known is None else known.growth,
            replays={} if known is None else dict(known.replays),
            doubt=None if known is None else known.doubt,
        )

    def collect(self) -> Iterator[Metric]:
        """The recommendation, its interval, and 1 for its reason."""
        if self.scaling is None:
            return
        found = self.scaling.recommendation
        yield GaugeMetricFamily(_NAME, "Instances that there should be", value=found.instances)
        yield GaugeMetricFamily(f"{_NAME}_low", "That would do if demand grew less", value=found.low)
        yield GaugeMetricFamily(f"{_NAME}_high", "That would be needed if demand grew more", value=found.high)
        family = GaugeMetricFamily(
            f"{_NAME}_reason", "1 for the reason of the recommended number", labels=("reason",)
        )
        for reason in ScalingReason:
            family.add_metric((reason,), found.reason is reason)
        yield family


def scale_route(board: ScaleBoard) -> Route:
    """`GET /v1/scale`."""

    async def scale(_request: Request) -> Response:
        try:
            return json_page(board.reply())
        except GatewayError as refusal:
            return refused(refusal)

    return Route(PATH, scale)
