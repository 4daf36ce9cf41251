"""The dashboard: the page `/dashboard`, and the state from which it is drawn."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from importlib import metadata, resources
from itertools import islice, pairwise
from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headway.gateway.book.accounts import Accounts, InstanceAccount, recent_rank
from headway.gateway.book.classes import ClassAccount, ClassKey, RequestCounts
from headway.gateway.book.dashboard_state import (
    SLACK_BANDS,
    SPARK_STEP_S,
    SPARK_STEPS,
    BatchState,
    ClassState,
    DashboardState,
    DoorState,
    HandOff,
    InstanceState,
    RecentLoad,
    RecentRequest,
    SlackBand,
    Span,
)
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.kv_figures import KvFigures, KvWatch
from headway.gateway.fleet.member import Member
from headway.gateway.http.refusal import json_page
from headway.routing import Router
from headway.routing.ascendra import Ascendra

Key = TypeVar("Key", bound=Hashable)
Growth = tuple[int, ...]


class GrowthWindow(Generic[Key]):
    """Samples of running totals by key, none older than `keep_s` except the one at which the oldest window starts.

    A key may join at any time; before, it counts as zero. Totals only grow, and all have `width` numbers. However
    frequent the samples, those kept are `spacing_s` apart, except for the newest; keys with unchanged totals share one
    tuple. O(keys) a sample.
    """

    def __init__(self, width: int, keep_s: float, spacing_s: float = 0.5) -> None:
        self._zero: Growth = (0,) * width
        self._keep_s = keep_s
        self._spacing_s = spacing_s
        self._times_s: deque[float] = deque()
        self._samples: deque[dict[Key, Growth]] = deque()
        self._edges: dict[tuple[float, int], list[dict[Key, Growth]]] = {}

    def add(self, now_s: float, totals: Mapping[Key, Growth]) -> None:
        """Add the current totals. Times do not fall."""
        self._edges.clear()
        last = self._samples[-1] if self._samples else {}
        sample = {key: last[key] if last.get(key) == value else value for key, value in totals.items()}
        if len(self._times_s) > 1 and now_s - self._times_s[-2] < self._spacing_s:
            self._times_s.pop()
            self._samples.pop()
        self._times_s.append(now_s)
        self._samples.append(sample)
        while len(self._times_s) > 1 and self._times_s[1] <= now_s - self._keep_s:
            self._times_s.popleft()
            self._samples.popleft()

    def span_s(self, window_s: float) -> float:
        """How much of the last `window_s` has samples: less at first, 0 before the second sample."""
        if not self._times_s:
            return 0.0
        return min(window_s, self._times_s[-1] - self._times_s[0])

    def growth(self, key: Key, window_s: float) -> Growth:
        """The growth of a key's totals in the last `window_s`, or in the sampled part of it."""
        return self.series(key, window_s, 1)[0]

    def series(self, key: Key, step_s: float, steps: int) -> list[Growth]:
        """The growth in each of the last `steps` times `step_s`, oldest first; zeros without samples."""
        found = [sample.get(key, self._zero) for sample in self._at_edges(step_s, steps)]
        return [
            self._zero
            if earlier is later
            else tuple(after - before for before, after in zip(earlier, later, strict=True))
            for earlier, later in pairwise(found)
        ]

    def _at_edges(self, step_s: float, steps: int) -> list[dict[Key, Growth]]:
        """The newest sample at or before each edge between the steps; before the first sample, the first.

        All keys share the edges, so they are looked up once after each sample.
        """
        if not self._times_s:
            return [{}] * (steps + 1)
        edges = self._edges.get((step_s, steps))
        if edges is None:
            times_s, now_s = list(self._times_s), self._times_s[-1]
            before = (bisect_right(times_s, now_s - step_s * back) - 1 for back in range(steps, -1, -1))
            edges = self._edges[step_s, steps] = [self._samples[max(0, index)] for index in before]
        return edges


MINUTE_S = 60.0
FIVE_MINUTES_S = 300.0
SAMPLE_EVERY_S = 1.0
FRESH_S = 0.5
MOST_CLASSES = 40
"""Rows of targets and tenants on the page, those with the most requests first."""
MOST_RECENT = 20
"""Ended requests on the page, newest first."""

_DECIMALS = 3
_COUNTS = RequestCounts.__slots__
_ALL = ClassAccount()
"""Represents all classes together among the sampled accounts."""
_BAND_FLOORS = (0.0, 0.25, 0.5, 0.75)

_PAGES = (
    ("/dashboard", "dashboard.html", "text/html"),
    ("/dashboard/dashboard.css", "dashboard.css", "text/css"),
    ("/dashboard/dashboard.js", "dashboard.js", "text/javascript"),
    ("/dashboard/draw.js", "draw.js", "text/javascript"),
    ("/dashboard/explain.js", "explain.js", "text/javascript"),
)
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Dashboard:
    """The gateway's state for people: the accounts, their recent growth, and the fleet.

    `run` samples the accounts every second; `state` takes a sample too, so it is always current. `max_queue` is how
    many requests may be without their first token, `shadows` and `batches` provide the reports of shadows and batches,
    `clock` is that of accounts and fleet, `wall_clock` gives seconds since 1970. O(n) a sample and a state, n live
    requests and classes.
    """

    def __init__(
        self,
        accounts: Accounts,
        fleet: Fleet,
        router: Router,
        *,
        max_queue: int | None = None,
        shadows: ShadowBoard | None = None,
        batches: Callable[[], list[BatchState]] = list,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._accounts = accounts
        self._fleet = fleet
        self._router = router
        self._max_queue = max_queue
        self._shadows = shadows
        self._batches = batches
        self._clock = clock
        self._wall_clock = wall_clock
        self.kv = KvWatch(fleet, clock)
        self._started_s = clock()
        self._json, self._stale_from_s = b"", self._started_s
        self._classes: GrowthWindow[ClassAccount] = GrowthWindow(len(_COUNTS), FIVE_MINUTES_S)
        self._tokens: GrowthWindow[str] = GrowthWindow(1, FIVE_MINUTES_S)
        self._moves: GrowthWindow[tuple[str, str]] = GrowthWindow(1, MINUTE_S)
        self.sample()

    def state_json(self) -> bytes:
        """The state as JSON, made anew at most every half second for all viewers."""
        now_s = self._clock()
        if now_s >= self._stale_from_s:
            self._json, self._stale_from_s = msgspec.json.encode(self.state()), now_s + FRESH_S
        return self._json

    async def run(self) -> None:
        """Sample every second until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self.sample()

    def sample(self) -> None:
        """Add a sample of the current totals."""
        now_s, accounts = self._clock(), self._accounts
        totals = {account: _counted_here(account) for account in accounts.classes.values()}
        self._classes.add(now_s, {**totals, _ALL: _counts(accounts.own_totals)})
        self._tokens.add(now_s, {"output": (accounts.output_tokens,)})
        self._moves.add(now_s, {pair: (count,) for pair, count in accounts.moves.items()})

    def state(self) -> DashboardState:
        """Everything the page shows, now."""
        self.sample()
        classes = self._busiest_classes()
        # Offset from the accounts' clock to the time of day. It is rounded because two clocks are never read at the
        # same instant, and the page identifies rows by their times, which must not change.
        offset_s = round(self._wall_clock() - self._clock(), _DECIMALS)
        return DashboardState(
            version=metadata.version("headway"),
            model=self._fleet.facts.model,
            at_s=self._wall_clock(),
            up_s=self._clock() - self._started_s,
            load=self._load(),
            overall=self._class_state(ClassKey("", ""), _ALL),
            instances=self._instances(),
            max_queue=self._max_queue,
            door=self._door(),
            slack=slack_bands(self._accounts.slacks(self._clock())),
            classes=[self._class_state(key, self._accounts.classes[key]) for key in classes],
            classes_left_out=len(self._accounts.classes) - len(classes),
            hand_offs=self._hand_offs(),
            in_time_so_far=self._accounts.in_time_so_far(self._clock()),
            prefills={str(where): count for where, count in self._accounts.prefills.items()},
            resumed=self._accounts.resumed,
            refusals=[replace(each, at_s=each.at_s + offset_s) for each in self._accounts.refusals],
            recent=self._recent(offset_s),
            shadow=None if self._shadows is None else self._shadows.report,
            batches=self._batches(),
        )

    def _busiest_classes(self) -> list[ClassKey]:
        """The classes with the most recent requests, in the order of targets and tenant."""
        keys = self._accounts.classes
        came = {key: self._classes.growth(account, FIVE_MINUTES_S)[0] for key, account in keys.items()}
        return sorted(sorted(keys, key=lambda key: -came[key])[:MOST_CLASSES])

    def _class_state(self, key: ClassKey, account: ClassAccount) -> ClassState:
        return ClassState(
            slo=key.slo,
            tenant=key.tenant,
            minute=_span(self._classes.growth(account, MINUTE_S)),
            five_minutes=_span(self._classes.growth(account, FIVE_MINUTES_S)),
            spark=[RequestCounts(*growth).goodput for growth in self._sparks(account)],
        )

    def _sparks(self, account: ClassAccount) -> list[Growth]:
        return self._classes.series(account, SPARK_STEP_S, SPARK_STEPS)

    def _load(self) -> RecentLoad:
        span_s = self._classes.span_s(MINUTE_S) or SAMPLE_EVERY_S
        requests = self._sparks(_ALL)
        tokens = self._tokens.series("output", SPARK_STEP_S, SPARK_STEPS)
        return RecentLoad(
            requests_per_s=self._classes.growth(_ALL, MINUTE_S)[0] / span_s,
            output_tokens_per_s=self._tokens.growth("output", MINUTE_S)[0] / span_s,
            requests_spark=[step[0] / SPARK_STEP_S for step in requests],
            output_tokens_spark=[step[0] / SPARK_STEP_S for step in tokens],
        )

    def _instances(self) -> list[InstanceState]:
        now_s = self._clock()
        tickets = self._router.tickets if isinstance(self._router, Ascendra) else ()
        return [
            _instance(member, self._accounts, now_s, self.kv.of(member.name), member.name in tickets)
            for member in self._fleet.members
        ]

    def _door(self) -> DoorState:
        waiting = self._accounts.waiting_at_door
        oldest_s = self._clock() - waiting[0].arrival_s if waiting else None
        return DoorState(waiting=len(waiting), oldest_s=oldest_s)

    def _hand_offs(self) -> list[HandOff]:
        return [
            HandOff(source=pair[0], target=pair[1], total=count, minute=self._moves.growth(pair, MINUTE_S)[0])
            for pair, count in sorted(self._accounts.moves.items())
        ]

    def _recent(self, offset_s: float) -> list[RecentRequest]:
        """The last requests that ended, newest first, with the time of day."""
        return [
            RecentRequest(
                id=entry.id,
                at_s=entry.arrival_s + offset_s,
                tenant=entry.tenant,
                instances=list(entry.places),
                outcome=entry.outcome_name,
                met=entry.met,
                ttft_s=entry.ttft_s,
                lasted_s=(entry.ended_s or entry.arrival_s) - entry.arrival_s,
                tokens=entry.tokens,
            )
            for entry in islice(reversed(self._accounts.recent), MOST_RECENT)
        ]


def slack_bands(slacks: Iterable[float | None]) -> list[SlackBand]:
    """How many values fall into each of SLACK_BANDS; a value on a border belongs to the band above."""
    counts = [0] * len(SLACK_BANDS)
    for slack in slacks:
        counts[-1 if slack is None else bisect_right(_BAND_FLOORS, slack)] += 1
    return [SlackBand(*band) for band in zip(SLACK_BANDS, counts, strict=True)]


def dashboard_routes(dashboard: Dashboard) -> list[Route]:
    """The page, its style and script, and its state. Everything is served here, so the page works offline."""

    async def state(_request: Request) -> Response:
        return json_page(msgspec.Raw(dashboard.state_json()))

    files = resources.files("headway.gateway.book")
    pages = {
        path: Response((files / name).read_bytes(), media_type=media_type, headers=_HEADERS)
        for path, name, media_type in _PAGES
    }
    pages["/dashboard/"] = RedirectResponse("../dashboard")
    pages["/"] = RedirectResponse("dashboard")
    routes = [Route(path, page, methods=["GET"]) for path, page in pages.items()]
    return [*routes, Route("/dashboard/state", state)]


def _counts(totals: RequestCounts) -> tuple[int, ...]:
    return tuple(getattr(totals, name) for name in _COUNTS)


def _counted_here(account: ClassAccount) -> tuple[int, ...]:
    """The counts of a class itself; classes merged into it are no growth."""
    both = zip(_counts(account.totals), _counts(account.folded), strict=True)
    return tuple(total - folded for total, folded in both)


def _span(growth: tuple[int, ...]) -> Span:
    return Span(**dict(zip(_COUNTS, growth, strict=True)), goodput=RequestCounts(*growth).goodput)


def _instance(member: Member, accounts: Accounts, now_s: float, kv: KvFigures, ticket: bool) -> InstanceState:
    """A member with its account; an instance that was sent nothing yet has none."""
    account = accounts.instances.get(member.name) or InstanceAccount()
    return InstanceState(
        name=member.name,
        pool=member.pool,
        condition=str(member.condition),
        for_s=now_s - member.since_s,
        reason=member.reason,
        in_flight=account.in_flight,
        waiting=account.waiting,
        served=member.served,
        failures=member.failures,
        restarts=member.restarts,
        ttft_p50_s=recent_rank(account.recent_ttfts_s, 0.5),
        ttft_p99_s=recent_rank(account.recent_ttfts_s, 0.99),
        tbt_p50_s=recent_rank(account.recent_tbts_s, 0.5),
        tbt_p99_s=recent_rank(account.recent_tbts_s, 0.99),
        kv_used=kv.used,
        cache_found=kv.found,
        ticket=ticket,
    )
