"""One request's life at the gateway: let in, routed, handed off, resumed, and ended exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from urllib.parse import urlsplit

from headway.core.job import Job
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.gateway.book.access_log import AccessLog
from headway.gateway.book.accounts import Accounts, RefusalNote, slo_label
from headway.gateway.fleet.fleet import Fleet, Member
from headway.gateway.http.asgi_client import Client, Headers
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.refusal import Refusal, closing, error_event, no_instance
from headway.gateway.request.admission_queue import Turnstile
from headway.gateway.request.generation_request import Ask
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.lifecycle import Life
from headway.gateway.request.losses import Losses
from headway.gateway.request.stored_responses import StoredResponses
from headway.routing import Router
from headway.routing.prefill_decode import PrefillDecode, for_answers

_LOG = logging.getLogger(__name__)

_NO_LIMIT_TOKENS = 2**31 - 1
_BAD_REQUEST = 400


class Serving:
    """Serves requests from the fleet. Everything on one event loop.

    `running` are the interrupts of the requests that are here, so that they can be cut short together.
    """

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        options: GatewayOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        log: AccessLog | None = None,
    ) -> None:
        self.fleet = fleet
        self.router = router
        self.session = fleet.session
        self.options = options
        self.clock = clock
        self.log = log
        self.accounts = Accounts()
        self.stored = StoredResponses()
        self.losses = Losses(router.lost)
        self.turnstile = Turnstile(
            self._places,
            max_in_flight=options.max_in_flight,
            max_queue=options.max_queue,
            max_per_tenant=options.max_per_tenant,
            clock=clock,
        )
        self.running: set[Interrupt] = set()
        self.closing = False
        self._keys_are_clients = not options.keys and "Authorization" not in fleet.session.headers
        self._numbers = count()

    async def serve(
        self, ask: Ask, client: Client, headers: Headers, interrupt: Interrupt, arrival_s: float
    ) -> None:
        """Answer one request, whatever happens. Its one end is in the accounts afterwards, and in the log."""
        entry = self.accounts.offer(ask.request_id, ask.slo, ask.tenant, arrival_s)
        life = Life(self, ask, client, headers, interrupt, entry, self._job(ask, arrival_s))
        outcome, reason = Outcome.FAILED, "the gateway broke off"
        self.running.add(interrupt)
        try:
            outcome, reason = await life.run()
        except Refusal as refusal:
            outcome, reason = refusal.outcome, refusal.message
            life.rejected = refusal.status == _BAD_REQUEST
            await self.refuse(client, refusal, entry.slo, entry.key.tenant)
        except WaitCut as cut:
            outcome, reason = await self._cut_short(life, cut.reason)
        except Exception:
            _LOG.exception("request %s", ask.request_id)
            reason = "an error of the gateway's own"
            await self._give_up(life, reason)
        finally:
            self.running.discard(interrupt)
            life.close()
            now_s = self.clock()
            self.accounts.end(entry, outcome, now_s, rejected=life.rejected)
            if self.log is not None:
                self.log.write(entry, ask, client.status, now_s, reason)

    def passes_key(self, member: Member) -> bool:
        """Whether a client's key is for the instance: neither does the gateway ask for one, nor has it one for there.

        It has one in all of its headers, or in the instance's URL.
        """
        return self._keys_are_clients and "@" not in urlsplit(member.url).netloc

    async def refuse(self, client: Client, refusal: Refusal, slo: Slo, tenant: str) -> None:
        """Answer with an error of the gateway's own, and note it."""
        self.accounts.refuse(
            RefusalNote(self.clock(), refusal.status, refusal.code, refusal.message, slo_label(slo), tenant)
        )
        await client.refuse(refusal)

    @contextmanager
    def limited(self, interrupt: Interrupt) -> Iterator[None]:
        """Cut what waits here short (TOO_OLD) once it is older than requests may be before they begin."""
        if self.options.max_age_s is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self.options.max_age_s, interrupt.cut, Cut.TOO_OLD)
        try:
            yield
        finally:
            timer.cancel()
            interrupt.clear(Cut.TOO_OLD)

    def too_old(self) -> Refusal:
        """HTTP 429: it has waited for as long as any may."""
        return self.turnstile.overloaded(
            "too_old", f"no answer had begun within {self.options.max_age_s:g} s; try again later"
        )

    def cut_all(self) -> None:
        """End every request that is still here: with an error, as far as its client can be told."""
        self.closing = True
        for interrupt in self.running:
            interrupt.cut(Cut.CLOSING)

    def close(self) -> None:
        """Nothing is served any longer."""
        self.losses.close()
        if self.log is not None:
            self.log.close()

    def with_room(self, names: Sequence[str], sequences: int) -> Sequence[str]:
        """Instances that may be sent so many more sequences; all of them if the room is spread over several.

        A router that hands off keeps instances free for those that are urgent: there the limit is the pools' together.
        """
        limit = self.options.max_in_flight
        if limit is None or self.router.hands_off:
            return names
        return [name for name in names if self.fleet.member(name).in_flight + sequences <= limit] or names

    def able(self, response_id: str | None) -> Sequence[str]:
        """The instances that may be asked for what builds upon a response: the one that has it, if that is known."""
        names = self._answering()
        home = None if response_id is None else self.stored.place_of(response_id)
        if home is None or all(member.name != home for member in self.fleet.members):
            return names
        return [name for name in names if name == home]

    def where(self, response_id: str | None) -> Sequence[str]:
        """The same. Raises Refusal (503) if there is none now."""
        names = self.able(response_id)
        if not names:
            others = self.fleet.names()
            raise no_instance("the instance that has the response is not ready") if others else no_instance()
        return names

    def _answering(self) -> Sequence[str]:
        """The instances that may be asked for answers: not those for prompts alone, as long as there are others."""
        names = self.fleet.names()
        return for_answers(names) if isinstance(self.router, PrefillDecode) else names

    def _places(self) -> int | None:
        limit = self.options.max_in_flight
        return None if limit is None else limit * len(self._answering())

    def _job(self, ask: Ask, arrival_s: float) -> Job:
        """The request as routers see it. Clients may use a name twice, so it has a number of its own."""
        return Job(
            id=str(next(self._numbers)),
            arrival_s=arrival_s,
            num_prompt_tokens=ask.prompt_tokens,
            max_output_tokens=_NO_LIMIT_TOKENS if ask.max_tokens is None else ask.max_tokens,
            slo=ask.slo,
            priority=ask.priority or 0,
            tenant=ask.tenant,
            may_move=ask.may_move and ask.one_answer and ask.previous_id is None,
            prefix_blocks=ask.prefix_blocks(),
        )

    async def _cut_short(self, life: Life, cut: Cut) -> tuple[Outcome, str]:
        if cut is Cut.GONE:
            return Outcome.CANCELLED, "the client left"
        refusal = self.too_old() if cut is Cut.TOO_OLD else closing()
        if life.client.began:
            await self._give_up(life, refusal.message)
            return Outcome.FAILED, refusal.message
        await self.refuse(life.client, refusal, life.entry.slo, life.entry.key.tenant)
        return refusal.outcome, refusal.message

    async def _give_up(self, life: Life, reason: str) -> None:
        """The end of an answer that cannot go on, as far as the client can be told."""
        client = life.client
        if client.ended:
            return
        with suppress(Exception):
            if client.began:
                await client.end_event()
                await client.end(error_event(reason, "interrupted", named=life.ask.api.named_events))
            else:
                await client.refuse(Refusal(500, "internal", reason))
