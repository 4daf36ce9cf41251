"""Shows the state of batches: in a batch's own object, on the dashboard, and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.gateway.batch.batches import Batches
from headway.gateway.batch.objects import Status
from headway.gateway.batch.open_batch import OpenBatch
from headway.gateway.book.dashboard_state import BatchState
from headway.gateway.book.metrics import counter, gauge, single


class BatchOutlook(msgspec.Struct, kw_only=True):
    """What a batch's object says under `headway`: whether its window will be kept, at the rate of the last ten minutes.

    `expected_at` is when the last answer comes, `unfinished` how many requests will have none when the window closes;
    both are None before a rate is known. `held` says why nothing is sent at present, empty if it is.
    """

    in_flight: int
    requests_per_s: float | None
    needed_per_s: float | None
    expected_at: int | None
    unfinished: int | None
    in_time: bool | None
    held: str


class BatchBoard(Collector):
    """Reads all batches on demand. O(unfinished batches)."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def outlook(self, batch_id: str) -> BatchOutlook | None:
        """The outlook of a batch; None once it has ended."""
        batch = self._batches.open.get(batch_id)
        if batch is None:
            return None
        forecast = batch.forecast
        ends_in_s = None if forecast is None else forecast.ends_in_s
        return BatchOutlook(
            in_flight=batch.sequences,
            requests_per_s=None if forecast is None else round(forecast.requests_per_s, 3),
            needed_per_s=None if forecast is None else round(forecast.needed_per_s, 3),
            expected_at=None if ends_in_s is None else round(self._batches.wall_clock() + ends_in_s),
            unfinished=None if forecast is None else forecast.unfinished,
            in_time=None if forecast is None else forecast.in_time,
            held=batch.held,
        )

    def states(self) -> list[BatchState]:
        """The unfinished batches, and the last that ended."""
        now = self._batches.wall_clock()
        return [_state(batch, now) for batch in (*self._batches.open.values(), *self._batches.ended)]

    def collect(self) -> Iterator[Metric]:
        """Totals over all batches; none for a single batch, so that labels are bounded."""
        batches, opened = self._batches, self._batches.open.values()
        statuses = Counter(batch.record.status for batch in opened)
        unended = gauge("batches", "Batches that have not ended", ("status",))
        ended = counter("batches_ended", "Batches that have ended", ("status",))
        for status in Status:
            if status.is_final:
                ended.add_metric((status,), batches.ends[status])
            else:
                unended.add_metric((status,), statuses[status])
        requests = counter("batch_requests", "Requests of batches that have their answer kept", ("result",))
        tokens = counter("batch_tokens", "Tokens of the requests of batches", ("kind",))
        for result in ("completed", "failed"):
            requests.add_metric((result,), batches.results[result])
        for kind in ("input", "output"):
            tokens.add_metric((kind,), batches.results[f"{kind}_tokens"])
        yield from (unended, ended, requests, tokens)
        left = sum(batch.record.left for batch in opened)
        yield single("batch_requests_left", "Requests of batches without an answer", left)
        yield single("batch_in_flight", "Sequences of batches with the instances", batches.in_flight)
        yield single(
            "batch_in_flight_max", "Sequences of batches that may be there now", batches.pace.allowed
        )
        unfinished = sum(batch.forecast.unfinished for batch in opened if batch.forecast is not None)
        about = "Requests that will have no answer when their window closes, at the recent rate"
        yield single("batch_requests_late", about, unfinished)


def _state(batch: OpenBatch, now: float) -> BatchState:
    record, forecast = batch.record, batch.forecast
    going_on = forecast is not None and not record.status.is_final
    return BatchState(
        id=record.id,
        tenant=record.tenant,
        status=record.status,
        total=record.total,
        completed=record.completed,
        failed=record.failed,
        in_flight=batch.sequences,
        left_s=batch.left_s(now),
        expected_s=forecast.ends_in_s if forecast is not None and going_on else None,
        unfinished=forecast.unfinished if forecast is not None and going_on else 0,
    )
