"""Shows the last report of shadows on the dashboard, in Prometheus and at `GET /shadow`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.errors import UpstreamError
from headway.gateway.http.refusal import GatewayError, json_page, refused
from headway.http_client import NOT_AS_EXPECTED
from headway.routing.scaling import Advice

PATH = "/shadow"
ENGINE_PATH = "/v1/shadow"
"""Path at which an instance reports to a shadow. Each instance has counts of its own, so the gateway cannot forward
it.
"""
_ASK_AN_INSTANCE = (
    "a gateway has several queues to shadow; accepted: the URL of an instance, or `headway serve --shadow`"
)
_PREFIX = "headway_shadow_"
_FIGURES = {
    "goodput": ("goodput_ratio", "Share of the judged requests within their targets, by policy"),
    "mean_jct_s": (
        "mean_jct_seconds",
        "Mean completion time of those finished under all policies, by policy",
    ),
    "mean_ttft_s": ("mean_ttft_seconds", "Mean time to first token, by policy"),
    "p99_ttft_s": ("p99_ttft_seconds", "99th percentile of the time to first token, by policy"),
}


class ShadowFigures(msgspec.Struct, kw_only=True):
    """The result of one policy over the judged requests; None if nothing could be measured.

    `mean_jct_s` is over those that finished under every policy.
    """

    goodput: float | None
    mean_jct_s: float | None
    finished: int
    mean_ttft_s: float | None
    p99_ttft_s: float | None


class ShadowState(msgspec.Struct, kw_only=True):
    """The last report: made at `at` (seconds since 1970), on the `requests` of `window_s` that were judged.

    `figures` are by policy: `live` is what happened, then the simulated ones, beginning with the live policy's own.
    `assumed` requests did not finish live; `missed` ones ended between two polls and were not reported. `step_error` is
    the median error of simulated steps; `failed` says which policy has no figures and why. `known_s` says how far back
    all requests are known, if that is too little for the requested window: `window_s` is then the later half of it.
    `cannot_judge` says how the simulated live policy differs too much from `live`; `figures` then has no other policy.
    `advice` is the number of instances that would do, if requested.
    """

    at: float
    window_s: float
    requests: int
    assumed: int
    missed: int
    step_error: float
    figures: dict[str, ShadowFigures]
    failed: dict[str, str]
    known_s: float | None = None
    cannot_judge: str | None = None
    advice: Advice | None = None


class ShadowReply(msgspec.Struct):
    """The answer to `GET /shadow`; empty before the first report."""

    report: ShadowState | None


class ShadowBoard(Collector):
    """Holds the last report of `headway shadow`, away from the serving path."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.report: ShadowState | None = None
        self._wall_clock = wall_clock

    def take(self, line: bytes) -> None:
        """Take a report as the command prints it. Raises UpstreamError if the line is not one."""
        try:
            self.report = msgspec.json.decode(line, type=ShadowState)
        except NOT_AS_EXPECTED as error:
            raise UpstreamError(f"the report of a shadow is not understood: {error}") from None

    def collect(self) -> Iterator[Metric]:
        """The figures of the last report by policy, and its age."""
        report = self.report
        if report is None:
            return
        for key, (name, about) in _FIGURES.items():
            family = GaugeMetricFamily(f"{_PREFIX}{name}", about, labels=("policy",))
            for policy, figures in report.figures.items():
                value = getattr(figures, key)
                if value is not None:
                    family.add_metric((policy,), value)
            yield family
        singles = {
            "requests": ("Requests that the last report judged", float(report.requests)),
            "step_error_ratio": ("Median error of simulated step times", report.step_error),
            "can_judge": (
                "1 where the live policy simulated is near what was seen; 0: no other policy has figures",
                float(report.cannot_judge is None),
            ),
            "age_seconds": ("Since the last report", max(0.0, self._wall_clock() - report.at)),
        }
        for name, (about, value) in singles.items():
            yield GaugeMetricFamily(f"{_PREFIX}{name}", about, value=value)


def shadow_routes(board: ShadowBoard) -> list[Route]:
    """`GET /shadow`: the last report. A shadow that polls the gateway is sent to its instances."""

    async def last(_request: Request) -> Response:
        return json_page(ShadowReply(board.report))

    async def engines(_request: Request) -> Response:
        return refused(GatewayError(404, "ask_an_instance", _ASK_AN_INSTANCE))

    return [Route(PATH, last), Route(f"{ENGINE_PATH}/{{counts:path}}", engines)]
