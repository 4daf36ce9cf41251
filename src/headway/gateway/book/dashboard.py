"""The page people look at: `/dashboard`, and the state it is drawn from."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib import metadata, resources
from itertools import islice

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from headway.gateway.book.accounts import Accounts, ClassKey, InstanceAccount, Totals
from headway.gateway.book.dashboard_state import (
    SLACK_BANDS,
    SPARK_STEP_S,
    SPARK_STEPS,
    ClassState,
    DashboardState,
    DoorState,
    HandOff,
    InstanceState,
    Load,
    RecentRequest,
    Refusal,
    SlackBand,
    Span,
)
from headway.gateway.book.recent import Recent
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.fleet import Fleet, Member
from headway.routing import Router
from headway.routing.ascendra import Ascendra

MINUTE_S = 60.0
FIVE_MINUTES_S = 300.0
SAMPLE_EVERY_S = 1.0
FRESH_S = 0.5
MOST_CLASSES = 40
"""Rows of targets and tenants on the page, those with most requests first."""
MOST_RECENT = 20
"""Ended requests on the page, the newest first."""

_DECIMALS = 3
_COUNTS = Totals.__slots__
_ALL = ClassKey("", "")
_BAND_FLOORS = (0.0, 0.25, 0.5, 0.75)

_ASSETS = {
    "dashboard.css": "text/css",
    "dashboard.js": "text/javascript",
    "draw.js": "text/javascript",
    "explain.js": "text/javascript",
}
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
    """The state of the gateway for people: the accounts, what they grew by lately, and the fleet.

    `run` samples the accounts every second; `state` takes a sample too, so it is never older than the question.
    `max_queue` is how many requests may be without their first token, `shadows` what shadows say, `clock` the
    accounts' and the fleet's, `wall_clock` seconds since 1970. O(n) a sample and a state, n live requests and classes.
    """

    def __init__(
        self,
        accounts: Accounts,
        fleet: Fleet,
        router: Router,
        *,
        max_queue: int | None = None,
        shadows: ShadowBoard | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._accounts = accounts
        self._fleet = fleet
        self._router = router
        self._max_queue = max_queue
        self._shadows = shadows
        self._clock = clock
        self._wall_clock = wall_clock
        self._started_s = clock()
        self._json, self._stale_from_s = b"", self._started_s
        self._classes: Recent[ClassKey] = Recent(len(_COUNTS), FIVE_MINUTES_S)
        self._tokens: Recent[str] = Recent(1, FIVE_MINUTES_S)
        self._moves: Recent[tuple[str, str]] = Recent(1, MINUTE_S)
        self.sample()

    def state_json(self) -> bytes:
        """The state, made anew at most every half second, however many look."""
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
        """Note the totals as they are now."""
        now_s, accounts = self._clock(), self._accounts
        totals = {key: _counts(account.totals) for key, account in accounts.classes.items()}
        self._classes.add(now_s, {**totals, _ALL: _counts(accounts.totals)})
        self._tokens.add(now_s, {"output": (accounts.output_tokens,)})
        self._moves.add(now_s, {pair: (count,) for pair, count in accounts.moves.items()})

    def state(self) -> DashboardState:
        """Everything the page shows, now."""
        self.sample()
        classes = self._busiest_classes()
        return DashboardState(
            version=metadata.version("headway"),
            model=self._fleet.facts.model,
            at_s=self._wall_clock(),
            up_s=self._clock() - self._started_s,
            load=self._load(),
            overall=self._class_state(_ALL),
            instances=self._instances(),
            max_queue=self._max_queue,
            door=self._door(),
            slack=slack_bands(self._accounts.slacks(self._clock())),
            classes=[self._class_state(key) for key in classes],
            classes_left_out=len(self._accounts.classes) - len(classes),
            hand_offs=self._hand_offs(),
            in_time_so_far=self._accounts.in_time_so_far(self._clock()),
            prefills={str(where): count for where, count in self._accounts.prefills.items()},
            resumed=self._accounts.resumed,
            refusals=self._refusals(),
            recent=self._recent(),
            shadow=None if self._shadows is None else self._shadows.report,
        )

    def _busiest_classes(self) -> list[ClassKey]:
        """Those that most requests came to lately, in the order of targets and tenant."""
        keys = self._accounts.classes
        came = {key: self._classes.growth(key, FIVE_MINUTES_S)[0] for key in keys}
        return sorted(sorted(keys, key=lambda key: -came[key])[:MOST_CLASSES])

    def _class_state(self, key: ClassKey) -> ClassState:
        return ClassState(
            slo=key.slo,
            tenant=key.tenant,
            minute=_span(self._classes.growth(key, MINUTE_S)),
            five_minutes=_span(self._classes.growth(key, FIVE_MINUTES_S)),
            spark=[
                Totals(*growth).goodput for growth in self._classes.series(key, SPARK_STEP_S, SPARK_STEPS)
            ],
        )

    def _load(self) -> Load:
        span_s = self._classes.span_s(MINUTE_S) or SAMPLE_EVERY_S
        requests = self._classes.series(_ALL, SPARK_STEP_S, SPARK_STEPS)
        tokens = self._tokens.series("output", SPARK_STEP_S, SPARK_STEPS)
        return Load(
            requests_per_s=self._classes.growth(_ALL, MINUTE_S)[0] / span_s,
            output_tokens_per_s=self._tokens.growth("output", MINUTE_S)[0] / span_s,
            requests_spark=[step[0] / SPARK_STEP_S for step in requests],
            output_tokens_spark=[step[0] / SPARK_STEP_S for step in tokens],
        )

    def _instances(self) -> list[InstanceState]:
        now_s = self._clock()
        tickets = self._router.tickets if isinstance(self._router, Ascendra) else ()
        return [_instance(member, self._accounts, now_s, tickets) for member in self._fleet.members]

    def _door(self) -> DoorState:
        waiting = self._accounts.waiting_at_door
        oldest_s = self._clock() - waiting[0].arrival_s if waiting else None
        return DoorState(waiting=len(waiting), oldest_s=oldest_s)

    def _hand_offs(self) -> list[HandOff]:
        return [
            HandOff(source=pair[0], target=pair[1], total=count, minute=self._moves.growth(pair, MINUTE_S)[0])
            for pair, count in sorted(self._accounts.moves.items())
        ]

    def _offset_s(self) -> float:
        """From the accounts' clock to the time of day: rounded, since two clocks are never read at the same instant.

        The page knows rows by their times, which have to stay as they are.
        """
        return round(self._wall_clock() - self._clock(), _DECIMALS)

    def _refusals(self) -> list[Refusal]:
        """The accounts' last ones, with the time of day."""
        offset_s = self._offset_s()
        names = ("status", "code", "reason", "slo", "tenant")
        return [
            Refusal(at_s=note.at_s + offset_s, **{name: getattr(note, name) for name in names})
            for note in self._accounts.refusals
        ]

    def _recent(self) -> list[RecentRequest]:
        """The last requests that ended, newest first, with the time of day."""
        offset_s = self._offset_s()
        return [
            RecentRequest(
                id=entry.id,
                at_s=entry.arrival_s + offset_s,
                tenant=entry.key.tenant,
                instances=list(entry.places),
                outcome="rejected" if entry.rejected else str(entry.outcome),
                met=entry.met,
                ttft_s=entry.ttft_s,
                lasted_s=(entry.ended_s or entry.arrival_s) - entry.arrival_s,
                tokens=entry.tokens,
            )
            for entry in islice(reversed(self._accounts.recent), MOST_RECENT)
        ]


def slack_bands(slacks: Iterable[float | None]) -> list[SlackBand]:
    """How many fall into each of SLACK_BANDS; one on a border is in the band above it."""
    counts = [0] * len(SLACK_BANDS)
    for slack in slacks:
        counts[-1 if slack is None else bisect_right(_BAND_FLOORS, slack)] += 1
    return [SlackBand(*band) for band in zip(SLACK_BANDS, counts, strict=True)]


def dashboard_routes(dashboard: Dashboard) -> list[Route]:
    """The page, its style and script, and its state: everything it needs is served here, so it works offline."""
    pages = resources.files("headway.gateway.book")

    async def page(_request: Request) -> Response:
        return Response(html, media_type="text/html", headers=_HEADERS)

    async def state(_request: Request) -> Response:
        return Response(
            dashboard.state_json(), media_type="application/json", headers={"Cache-Control": "no-store"}
        )

    async def moved(_request: Request) -> Response:
        return RedirectResponse("../dashboard")

    html = (pages / "dashboard.html").read_bytes()
    return [
        Route("/dashboard", page),
        Route("/dashboard/", moved),
        Route("/dashboard/state", state),
        *(
            Route(f"/dashboard/{name}", _asset((pages / name).read_bytes(), media_type))
            for name, media_type in _ASSETS.items()
        ),
    ]


def _asset(body: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def asset(_request: Request) -> Response:
        return Response(body, media_type=media_type, headers=_HEADERS)

    return asset


def _counts(totals: Totals) -> tuple[int, ...]:
    return tuple(getattr(totals, name) for name in _COUNTS)


def _span(growth: tuple[int, ...]) -> Span:
    return Span(**dict(zip(_COUNTS, growth, strict=True)), goodput=Totals(*growth).goodput)


def _instance(member: Member, accounts: Accounts, now_s: float, tickets: Collection[str]) -> InstanceState:
    """A member, and what the accounts say of it; they know nothing of one that was sent nothing yet."""
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
        ttft_p50_s=account.ttft_s(0.5),
        ttft_p99_s=account.ttft_s(0.99),
        ticket=member.name in tickets,
    )
