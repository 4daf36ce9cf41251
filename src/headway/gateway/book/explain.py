"""Explains why one request took as long as it did, from the gateway's accounts and its instances' reports."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headway.gateway.book.accounts import Accounts, BatchLine, Entry
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.http.api import EXPLAIN_PATHS, RESPONSES
from headway.gateway.http.asgi_client import KEY_TENANT
from headway.gateway.http.refusal import GatewayError, json_page, refused
from headway.http_client import NO_ANSWER, NOT_AS_EXPECTED, api_url, message_of, named

_NAMES_OTHERS = "what it tells names requests of other tenants; accepted: a key without a tenant"
MOST_LISTED = 50
_UNKNOWN = "no such request among the live ones and the last that ended; accepted: an answer's id, or its x-request-id"
_ANSWER_ID = re.compile("^(chat)?cmpl-")
_TIMEOUT_S = 5.0
_DECIMALS = 6


class Seen(msgspec.Struct, kw_only=True):
    """What the gateway saw of a request. Times are seconds since it arrived; `at` is the arrival, since 1970.

    `prefill` is where its prompt was computed (`Prefill`), None if prefill and decode are not separate; `prefill_s` is
    when a prefill instance had computed it. `program` is the agent program to which it belongs, empty if unknown.
    `batch` is None unless the request belongs to a batch.
    """

    id: str
    at: float
    outcome: str
    met: bool | None
    instances: list[str]
    prefill: str | None
    prefill_s: float | None
    ttft_s: float | None
    tbt_s: float | None
    lasted_s: float
    tokens: int
    moves: int
    resumes: int
    slo: str
    tenant: str
    program: str
    batch: BatchLine | None


class Unanswered(msgspec.Struct):
    """An instance that could not explain a request, and why."""

    instance: str
    why: str


class Explained(msgspec.Struct):
    """A request at the gateway (None: forgotten), and the reports of instances, each in its own words."""

    gateway: Seen | None
    requests: list[dict[str, Any]]
    unanswered: list[Unanswered]


class _InstanceExplains(msgspec.Struct):
    requests: list[dict[str, Any]]


@dataclass(slots=True)
class Explaining:
    """Answers questions about requests. Asks instances only then; those without Headway cannot answer."""

    accounts: Accounts
    fleet: Fleet
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    async def explain(self, request_id: str, tenant: str = "") -> Explained | None:
        """Everything known of a request, by its own id or its answer's; None for an unknown request.

        A tenant sees only its own requests, and only the gateway's view: an instance's report names other requests.
        """
        ids = (request_id, _ANSWER_ID.sub("", request_id), f"{RESPONSES.id_prefix}{request_id}")
        entry = next(filter(None, (self.accounts.find(each, tenant) for each in ids)), None)
        if tenant:
            if entry is None:
                return None
            silent = [Unanswered(name, _NAMES_OTHERS) for name in dict.fromkeys(entry.places)]
            return Explained(self.seen(entry), [], silent)
        asked, places = request_id, self.fleet.names()
        if entry is not None:
            asked, places = entry.id, tuple(dict.fromkeys(entry.places))
        said = await asyncio.gather(*(self._ask(name, asked) for name in places))
        requests = [one for each in said if isinstance(each, list) for one in each]
        if entry is None and not requests:
            return None
        unanswered = [] if entry is None else [each for each in said if isinstance(each, Unanswered)]
        return Explained(None if entry is None else self.seen(entry), requests, unanswered)

    def seen(self, entry: Entry) -> Seen:
        """One request, as the gateway saw it."""
        now_s = self.clock()
        lasted_s = (now_s if entry.ended_s is None else entry.ended_s) - entry.arrival_s
        return Seen(
            id=entry.id,
            at=round(self.wall_clock() - (now_s - entry.arrival_s), 3),
            outcome=entry.outcome_name,
            met=None if entry.outcome is None else entry.met,
            instances=list(entry.places),
            prefill=entry.prefill,
            prefill_s=_rounded(entry.prefill_s),
            ttft_s=_rounded(entry.ttft_s),
            tbt_s=_rounded(entry.tbt_s),
            lasted_s=round(lasted_s, _DECIMALS),
            tokens=entry.tokens,
            moves=entry.moves,
            resumes=entry.resumes,
            slo=entry.key.slo,
            tenant=entry.tenant,
            program=entry.program,
            batch=entry.batch,
        )

    def last(self, tenant: str = "") -> list[Seen]:
        """The last requests that ended, newest first; a tenant sees its own."""
        return [self.seen(entry) for entry in islice(self.accounts.newest_ended(tenant), MOST_LISTED)]

    async def _ask(self, name: str, request_id: str) -> list[dict[str, Any]] | Unanswered:
        """An instance's report on a request, or why there is none."""
        try:
            member = self.fleet.member(name)
        except KeyError:
            return Unanswered(name, "it is no longer there")
        if not member.facts.is_headway:
            return Unanswered(name, "it does not schedule with Headway")
        url = api_url(member.url, f"explain/{quote(request_id, safe='')}")
        try:
            limit = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            async with self.fleet.session.get(url, timeout=limit, allow_redirects=False) as response:
                body = await response.read()
        except NO_ANSWER as error:
            return Unanswered(name, named(error))
        if response.status != 200:
            return Unanswered(name, message_of(body) or f"it answered HTTP {response.status}")
        try:
            found = msgspec.json.decode(body, type=_InstanceExplains).requests
        except NOT_AS_EXPECTED:
            return Unanswered(name, "it answered with what is no explanation")
        return [{**one, "instance": name} for one in found]


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, _DECIMALS)


def explain_routes(explaining: Explaining) -> list[Route]:
    """`GET /explain/ID` and `GET /explain` (the last requests), under both EXPLAIN_PATHS."""

    async def one(request: Request) -> Response:
        found = await explaining.explain(request.path_params["request_id"], request.scope[KEY_TENANT])
        if found is None:
            return refused(GatewayError(404, "unknown_request", _UNKNOWN))
        return json_page(found)

    async def last(request: Request) -> Response:
        return json_page({"requests": explaining.last(request.scope[KEY_TENANT])})

    lists = [Route(path, last) for path in EXPLAIN_PATHS]
    return [*lists, *(Route(f"{path}/{{request_id:path}}", one) for path in EXPLAIN_PATHS)]
