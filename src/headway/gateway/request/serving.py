"""What all requests at the gateway share: fleet, router, admission queue, accounts, and the places of responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from headway.core.job import Job
from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.gateway.book.access_log import AccessLog
from headway.gateway.book.accounts import Accounts, Refusal
from headway.gateway.book.classes import slo_label
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.http.asgi_client import Client
from headway.gateway.http.options import GatewayOptions
from headway.gateway.http.refusal import GatewayError, no_instance
from headway.gateway.request.admission_queue import AdmissionQueue
from headway.gateway.request.central_queue import CentralBatching, CentralQueue
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.interrupt import Cut, InstanceLosses, Interrupt, WaitCut
from headway.gateway.request.program import KnownPrograms
from headway.routing import Router
from headway.routing.prefill_decode import PrefillDecode, for_answers

_NO_LIMIT_TOKENS = 2**31 - 1
_MOST, _MOST_OF_A_TENANT = 100_000, 10_000
"""Most responses remembered, the last made or requested: in all, and of a named tenant, which displaces only its
own.
"""


class InstanceLost(UpstreamError):
    """The instance that had a request is gone or frozen."""


class StoredResponses:
    """Instances and tenants of responses by their ids. O(1).

    A lost instance may return with all of its responses; a relaunched one reports itself that it has none.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._of_tenant: dict[str, dict[str, None]] = {}

    def keep(self, response_id: str, instance: str, tenant: str) -> None:
        """A response is made at this instance, for this tenant."""
        self._forget(response_id)
        self._known[response_id] = (instance, tenant)
        theirs = self._of_tenant.setdefault(tenant, {})
        theirs[response_id] = None
        if tenant and len(theirs) > _MOST_OF_A_TENANT:
            self._forget(next(iter(theirs)))
        if len(self._known) > _MOST:
            self._forget(next(iter(self._known)))

    def _forget(self, response_id: str) -> None:
        known = self._known.pop(response_id, None)
        if known is not None:
            theirs = self._of_tenant[known[1]]
            del theirs[response_id]
            if not theirs:
                del self._of_tenant[known[1]]

    def place_of(self, response_id: str) -> str | None:
        """The instance that makes or made a response; None if that is forgotten."""
        known = self._known.get(response_id)
        if known is None:
            return None
        self.keep(response_id, *known)
        return known[0]

    def check(self, response_id: str, key_tenant: str) -> None:
        """Raise GatewayError (404) for a response of another tenant than the key's."""
        if key_tenant and self._known.get(response_id, ("", ""))[1] != key_tenant:
            message = f"no response {response_id[:80]!r} of tenant {key_tenant!r}"
            raise GatewayError(404, "unknown_response", message)


class Serving:
    """What requests need of the gateway. Runs on one event loop.

    `running` are the interrupts of the current requests, so that they can be cut short together.
    """

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        options: GatewayOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        log: AccessLog | None = None,
        batching: CentralBatching | None = None,
    ) -> None:
        self.fleet = fleet
        self.router = router
        self.session = fleet.session
        self.options = options
        self.clock = clock
        self.log = log
        self.accounts = Accounts()
        self.stored = StoredResponses()
        self._programs = KnownPrograms()
        self.batches = None if batching is None else CentralQueue(batching, fleet, clock)
        self.losses = InstanceLosses(router.lost)
        self.queue = AdmissionQueue(
            self._places,
            max_sequences=options.max_sequences,
            max_in_flight=options.max_in_flight,
            max_queue=options.max_queue,
            max_per_tenant=options.max_per_tenant,
            clock=clock,
        )
        self.running: set[Interrupt] = set()
        self.closing = False
        self._keys_are_clients = not options.keys and "Authorization" not in fleet.session.headers
        self._beside: set[asyncio.Task[None]] = set()
        self._numbers = count()

    def passes_key(self, member: Member) -> bool:
        """Whether the client's API key is forwarded to the instance.

        True if the gateway requires no key, and has none for this instance (in its own headers or in the URL).
        """
        return self._keys_are_clients and "@" not in urlsplit(member.url).netloc

    async def refuse(self, client: Client, refusal: GatewayError, slo: Slo, tenant: str) -> None:
        """Answer with an error of the gateway's own, and count it."""
        label = slo_label(slo)
        self.accounts.refuse(
            Refusal(self.clock(), refusal.status, refusal.code, refusal.message, label, tenant)
        )
        await client.refuse(refusal)

    @contextmanager
    def at(self, member: Member, sequences: int, interrupt: Interrupt) -> Iterator[None]:
        """Count a request's sequences at an instance inside the block. Raises InstanceLost if that cuts it short."""
        member.in_flight += sequences
        try:
            with self.losses.cutting(member.name, member.loss, interrupt):
                yield
        except WaitCut as cut:
            if cut.reason is not Cut.LOST:
                raise
            raise InstanceLost("lost") from None
        finally:
            member.in_flight -= sequences

    @contextmanager
    def limited(self, interrupt: Interrupt) -> Iterator[None]:
        """Inside the block, cut a wait short (TOO_OLD) at the age limit for requests without output."""
        timer = self.start_age_timer(interrupt)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
                interrupt.clear(Cut.TOO_OLD)

    def start_age_timer(self, interrupt: Interrupt) -> asyncio.TimerHandle | None:
        """Cut a request short (TOO_OLD) after `max_age_s`, if that is set."""
        if self.options.max_age_s is None:
            return None
        return asyncio.get_running_loop().call_later(self.options.max_age_s, interrupt.cut, Cut.TOO_OLD)

    def too_old(self) -> GatewayError:
        """HTTP 429: the request has waited for as long as any may."""
        return self.queue.overloaded(
            "too_old", f"no answer had begun within {self.options.max_age_s:g} s; try again later"
        )

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside all requests, until it ends or the gateway stops."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def cut_all(self) -> None:
        """End every remaining request, with an error as far as its client can be told."""
        self.closing = True
        for interrupt in self.running:
            interrupt.cut(Cut.CLOSING)

    def close(self) -> None:
        """Stop serving."""
        for task in self._beside:
            task.cancel()
        if self.batches is not None:
            self.batches.close()
        self.losses.close()
        if self.log is not None:
            self.log.close()

    def with_room(self, names: Sequence[str], sequences: int) -> Sequence[str]:
        """Instances with room for this many more sequences; all of them if the limit is the pools' together.

        A router that hands off keeps instances free for urgent requests, so there the limit is shared.
        """
        limit = self.options.max_in_flight
        if limit is None or self.router.hands_off:
            return names
        return [name for name in names if self.fleet.member(name).in_flight + sequences <= limit] or names

    def able(self, response_id: str | None, model: str, tokens: int = 0) -> Sequence[str]:
        """The instances that may be asked: those that have the model (see `Fleet.names`), or the one with the response.

        Without a model the first model of the first instance is meant, as for a single server.
        """
        names = self._answering(model or self.fleet.facts.model, tokens)
        home = None if response_id is None else self.stored.place_of(response_id)
        if home is None or not self.fleet.has(home):
            return names
        return [name for name in names if name == home]

    def where(self, response_id: str | None, model: str, tokens: int = 0) -> Sequence[str]:
        """The instances that may be asked: see `able`. Raises GatewayError (503) if there are none."""
        names = self.able(response_id, model, tokens)
        if names:
            return names
        if not self.fleet.names():
            raise no_instance()
        if self.able(None, model):
            raise no_instance("the instance that has the response is not ready")
        raise no_instance(f"no instance with the model {model[:80]!r} is ready")

    def _answering(self, model: str = "", tokens: int = 0) -> Sequence[str]:
        """The instances that may be asked for answers: prefill instances only if there are no others."""
        names = self.fleet.names(model, tokens)
        return for_answers(names) if isinstance(self.router, PrefillDecode) else names

    def _places(self) -> int | None:
        limit = self.options.max_in_flight
        return None if limit is None else limit * len(self._answering())

    def program(self, request: GenerationRequest, job: Job) -> str:
        """The agent program of a request; empty if unknown. Called once for each request."""
        made = request.request_id if request.is_stored else None
        return self._programs.of_turn(
            request.program, request.share, job.prefix_blocks, response=made, previous=request.previous_id
        )

    def job(self, request: GenerationRequest, arrival_s: float) -> Job:
        """The request as routers see it. Client ids may repeat, so it gets a number of its own."""
        return Job(
            id=str(next(self._numbers)),
            arrival_s=arrival_s,
            num_prompt_tokens=request.prompt_tokens,
            max_output_tokens=_NO_LIMIT_TOKENS if request.max_tokens is None else request.max_tokens,
            slo=request.slo,
            priority=request.priority or 0,
            tenant=request.share,
            may_move=request.may_move and request.one_answer and request.previous_id is None,
            prefix_blocks=request.prefix_blocks(),
        )
