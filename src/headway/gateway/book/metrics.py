"""The gateway's figures for Prometheus, made of the accounts when they are asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.gateway.book.account_rows import Prefill
from headway.gateway.book.accounts import Accounts, ClassAccount, ClassKey
from headway.gateway.book.histogram import Histogram
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Condition
from headway.gateway.request.admission_queue import Turnstile

PREFIX = "headway_gateway_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_CLASS = ("slo", "tenant")
_ENDS = ("finished", "expired", "shed", "failed", "cancelled", "rejected")


class GatewayMetrics(Collector):
    """Reads accounts and fleet at each scrape; the serving path has nothing to do for it.

    Labels are bounded: classes by the accounts, instances by the fleet. O(live + classes) a scrape.
    """

    def __init__(
        self,
        accounts: Accounts,
        turnstile: Turnstile,
        fleet: Fleet,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._accounts = accounts
        self._turnstile = turnstile
        self._fleet = fleet
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Every family, each with all of its samples."""
        yield from self._requests()
        yield from self._latencies()
        yield from self._moves()
        yield from self._instances()
        yield from self._now()

    def _requests(self) -> Iterator[Metric]:
        offered = _counter("requests_offered", "Requests taken in", _CLASS)
        ended = _counter("requests", "Requests ended, by outcome", (*_CLASS, "outcome"))
        met = _counter("requests_met", "Requests finished within all of their targets", _CLASS)
        tokens = _counter("output_tokens", "Tokens sent to clients", _CLASS)
        goodput = GaugeMetricFamily(
            f"{PREFIX}goodput_ratio",
            "Met over all ended but the cancelled and rejected, since the start",
            labels=_CLASS,
        )
        for key, account in self._classes():
            totals = account.totals
            offered.add_metric(key, totals.offered)
            met.add_metric(key, totals.met)
            tokens.add_metric(key, account.output_tokens)
            for outcome in _ENDS:
                ended.add_metric((*key, outcome), getattr(totals, outcome))
            if totals.goodput is not None:
                goodput.add_metric(key, totals.goodput)
        yield from (offered, ended, met, tokens, goodput)

    def _latencies(self) -> Iterator[Metric]:
        ttft = _histogram("time_to_first_token_seconds", "Arrival to first token, of finished requests")
        tbt = _histogram(
            "time_between_tokens_seconds", "Mean time per token after the first, of finished requests"
        )
        for key, account in self._classes():
            _add(ttft, key, account.ttft)
            _add(tbt, key, account.tbt)
        yield from (ttft, tbt)

    def _moves(self) -> Iterator[Metric]:
        accounts = self._accounts
        moves = _counter(
            "hand_offs", "Requests given up unstarted by one instance for another", ("source", "target")
        )
        for pair, count in accounts.moves.items():
            moves.add_metric(pair, count)
        refused = _counter("refusals", "Errors of the gateway's own", ("status", "code"))
        for (status, code), count in accounts.refused.items():
            refused.add_metric((str(status), code), count)
        resumed = _counter("resumed", "Streams that went on at another instance", ())
        resumed.add_metric((), accounts.resumed)
        retried = _counter("retried", "Requests sent again since their instance broke unheard", ())
        retried.add_metric((), accounts.retried)
        prefills = _counter(
            "prefills", "Requests of parted prefill and decode, by where prompts were computed", ("result",)
        )
        for result in Prefill:
            prefills.add_metric((result,), accounts.prefills[result])
        yield from (moves, refused, resumed, retried, prefills)

    def _instances(self) -> Iterator[Metric]:
        labels = ("name", "pool")  # `instance` is Prometheus's own label, for what it scrapes
        up = _gauge("instance_up", "1 if the instance is ready", labels)
        condition = _gauge(
            "instance_condition", "1 for the condition the instance is in", (*labels, "condition")
        )
        in_flight = _gauge("instance_in_flight", "Sequences of the requests there", labels)
        waiting = _gauge("instance_waiting", "Requests there without a token", labels)
        served = _counter("instance_served", "Requests it answered", labels)
        failures = _counter("instance_failures", "Times it was lost or answered garbage", labels)
        restarts = _counter("instance_restarts", "Times it was launched again", labels)
        for member in self._fleet.members:
            key = (member.name, member.pool)
            up.add_metric(key, member.condition is Condition.READY)
            for each in Condition:
                condition.add_metric((*key, each), member.condition is each)
            in_flight.add_metric(key, member.in_flight)
            seen = self._accounts.instances.get(member.name)
            waiting.add_metric(key, seen.waiting if seen else 0)
            served.add_metric(key, member.served)
            failures.add_metric(key, member.failures)
            restarts.add_metric(key, member.restarts)
        yield from (up, condition, in_flight, waiting, served, failures, restarts)

    def _now(self) -> Iterator[Metric]:
        accounts, now_s = self._accounts, self._clock()
        slacks = [slack for slack in accounts.slacks(now_s) if slack is not None]
        yield _single("live", "Requests that have not ended", len(accounts.live))
        yield _single(
            "waiting",
            "Sequences of the requests without their first token",
            self._turnstile.waiting,
        )
        yield _single(
            "in_time_so_far", "Live requests that have missed no target yet", accounts.in_time_so_far(now_s)
        )
        if slacks:
            yield _single(
                "slack_ratio_min",
                "Least share of its TTFT target that a waiting one has left",
                min(slacks),
            )

    def _classes(self) -> Iterator[tuple[ClassKey, ClassAccount]]:
        yield from list(self._accounts.classes.items())


def build_registry(metrics: GatewayMetrics) -> CollectorRegistry:
    """A registry of the gateway's own figures and its process's."""
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Prometheus's text format."""
    return generate_latest(registry)


def _counter(name: str, about: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", about, labels=labels)


def _gauge(name: str, about: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", about, labels=labels)


def _single(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", about, value=value)


def _histogram(name: str, about: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"{PREFIX}{name}", about, labels=_CLASS)


def _add(family: HistogramMetricFamily, key: ClassKey, histogram: Histogram) -> None:
    if histogram.count:
        family.add_metric(key, histogram.cumulative(), histogram.sum_s)
