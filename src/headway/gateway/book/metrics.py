"""The gateway's Prometheus metrics, computed from the accounts at each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.gateway.book.accounts import Accounts, Prefill
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Condition
from headway.gateway.http.client_limits import ClientLimits, TurnedAway
from headway.routing.batch_service import BatchCounts

PREFIX = "headway_gateway_"

_CLASS = ("slo", "tenant")
_INSTANCE = ("name", "pool")
"""`instance` is avoided, since Prometheus uses that label for what it scrapes."""
_ENDS = ("finished", "expired", "shed", "failed", "cancelled", "rejected")


class GatewayMetrics(Collector):
    """Reads accounts and fleet at each scrape, so the serving path has no extra work.

    `waiting` counts the sequences without a first token; `batches` reports on the central queue, if there is one.
    Labels are bounded: classes by the accounts, instances by the fleet. O(live + classes) a scrape.
    """

    def __init__(
        self,
        accounts: Accounts,
        fleet: Fleet,
        limits: ClientLimits,
        waiting: Callable[[], int],
        *,
        batches: Callable[[], BatchCounts] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batches = batches
        self._accounts = accounts
        self._fleet = fleet
        self._limits = limits
        self._waiting = waiting
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family with all of its samples."""
        yield from self._requests()
        yield from self._latencies()
        yield from self._moves()
        yield from self._instances()
        yield from self._now()
        yield from self._limited()
        if self._batches is not None:
            yield from self._batched(self._batches())

    def _requests(self) -> Iterator[Metric]:
        offered = counter("requests_offered", "Requests taken in", _CLASS)
        ended = counter("requests", "Requests ended, by outcome", (*_CLASS, "outcome"))
        met = counter("requests_met", "Requests finished within all of their targets", _CLASS)
        tokens = counter("output_tokens", "Tokens sent to clients", _CLASS)
        about = "Met over all ended but the cancelled and rejected, since the start"
        goodput = gauge("goodput_ratio", about, _CLASS)
        for key, account in list(self._accounts.classes.items()):
            counts = account.totals
            offered.add_metric(key, counts.offered)
            met.add_metric(key, counts.met)
            tokens.add_metric(key, account.output_tokens)
            for outcome in _ENDS:
                ended.add_metric((*key, outcome), getattr(counts, outcome))
            if counts.goodput is not None:
                goodput.add_metric(key, counts.goodput)
        yield from (offered, ended, met, tokens, goodput)

    def _latencies(self) -> Iterator[Metric]:
        about = {"ttft": "Arrival to first token", "tbt": "Mean time per token after the first"}
        names = {"ttft": "time_to_first_token_seconds", "tbt": "time_between_tokens_seconds"}
        for latency, name in names.items():
            text = f"{about[latency]}, of finished requests"
            family = HistogramMetricFamily(f"{PREFIX}{name}", text, labels=_CLASS)
            for key, account in list(self._accounts.classes.items()):
                histogram = getattr(account, latency)
                if histogram.count:
                    family.add_metric(key, histogram.cumulative(), histogram.sum_s)
            yield family

    def _moves(self) -> Iterator[Metric]:
        accounts = self._accounts
        about = "Requests given up unstarted by one instance for another"
        moves = counter("hand_offs", about, ("source", "target"))
        for pair, count in accounts.moves.items():
            moves.add_metric(pair, count)
        refused = counter("refusals", "Errors of the gateway's own", ("status", "code"))
        for (status, code), count in accounts.refused.items():
            refused.add_metric((str(status), code), count)
        resumed = counter("resumed", "Streams that went on at another instance", ())
        resumed.add_metric((), accounts.resumed)
        retried = counter("retried", "Requests sent again since their instance broke unheard", ())
        retried.add_metric((), accounts.retried)
        about = "Requests of parted prefill and decode, by where prompts were computed"
        prefills = counter("prefills", about, ("result",))
        for result in Prefill:
            prefills.add_metric((result,), accounts.prefills[result])
        yield from (moves, refused, resumed, retried, prefills)

    def _instances(self) -> Iterator[Metric]:
        up = gauge("instance_up", "1 if the instance is ready", _INSTANCE)
        about = "1 for the condition the instance is in"
        condition = gauge("instance_condition", about, (*_INSTANCE, "condition"))
        in_flight = gauge("instance_in_flight", "Sequences of the requests there", _INSTANCE)
        waiting = gauge("instance_waiting", "Requests there without a token", _INSTANCE)
        served = counter("instance_served", "Requests it answered", _INSTANCE)
        failures = counter("instance_failures", "Times it was lost or answered garbage", _INSTANCE)
        restarts = counter("instance_restarts", "Times it was launched again", _INSTANCE)
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
        in_time = accounts.in_time_so_far(now_s)
        yield single("live", "Requests that have not ended", len(accounts.live))
        yield single("waiting", "Sequences of the requests without their first token", self._waiting())
        yield single("in_time_so_far", "Live requests that have missed no target yet", in_time)
        if slacks:
            about = "Least share of its TTFT target that a waiting one has left"
            yield single("slack_ratio_min", about, min(slacks))

    def _batched(self, counts: BatchCounts) -> Iterator[Metric]:
        told = {
            "queue_batches": ("Batches sent to instances", counts.sent),
            "queue_batch_members": ("Requests of those batches", counts.members),
            "queue_batches_split": ("Batches of which an instance gave members back", counts.split),
        }
        for name, (about, value) in told.items():
            family = counter(name, about, ())
            family.add_metric((), value)
            yield family
        yield single("queue_batches_waiting", "Batches that wait for an instance", counts.waiting)

    def _limited(self) -> Iterator[Metric]:
        limits = self._limits
        yield single("connections", "Connections that clients have open", limits.connections)
        about = "Connections there may be: half of the files that the process may open"
        yield single("connections_max", about, limits.max_connections)
        yield single("held_bytes", "Bytes of requests that are held, bodies twice", limits.held_bytes)
        yield single("held_bytes_max", "Bytes of requests that may be held", limits.max_bytes)
        about = "Connections and requests for which there was no room, by reason"
        turned = counter("turned_away", about, ("reason",))
        for reason in TurnedAway:
            turned.add_metric((reason,), limits.turned_away[reason])
        yield turned


def build_registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of these metrics and of the gateway's process."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def counter(name: str, about: str, labels: Sequence[str]) -> CounterMetricFamily:
    """A family of the gateway's counters."""
    return CounterMetricFamily(f"{PREFIX}{name}", about, labels=labels)


def gauge(name: str, about: str, labels: Sequence[str]) -> GaugeMetricFamily:
    """A family of the gateway's gauges."""
    return GaugeMetricFamily(f"{PREFIX}{name}", about, labels=labels)


def single(name: str, about: str, value: float) -> GaugeMetricFamily:
    """A gauge of the gateway without labels."""
    return GaugeMetricFamily(f"{PREFIX}{name}", about, value=value)
