"""One request on its way: to an instance, to another if that gives it up or breaks, and to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headway.core.hint_headers import PRIORITY_HEADER
from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.gateway.book.account_rows import Prefill
from headway.gateway.book.accounts import Entry
from headway.gateway.fleet.member import Member
from headway.gateway.http.asgi_client import Client, Headers, upstream_headers
from headway.gateway.http.event_bytes import PassedEvents
from headway.gateway.http.events import DONE, Events, Whole, whole_of
from headway.gateway.http.named_events import NamedEvents, named_whole
from headway.gateway.http.refusal import Refusal, closing, error_event, message_of
from headway.gateway.request.admission_queue import Visit
from headway.gateway.request.attempt import Attempt, Call, End, Ending
from headway.gateway.request.generation_request import Ask
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.prefill import (
    has_prompt_stage,
    prompt_alone,
    prompt_targets,
    read_transfer,
    with_transfer,
)
from headway.gateway.request.resumable import resumable
from headway.gateway.request.resume import Continuation, continue_from, half_a_character
from headway.gateway.request.resumed_events import ResumedEvents
from headway.http_client import root_of
from headway.routing.prefill_decode import PrefillDecode, for_prompts

if TYPE_CHECKING:
    from headway.gateway.request.serving import Serving

_TOO_MANY = 429
_FIRST_PAUSE_S = 0.05
"""Before a request goes to an instance that broke it a moment ago: the fleet looks at it meanwhile."""


@dataclass(slots=True)
class Life:
    """One request on its way. `run` returns its outcome, and why for people; raises Refusal or WaitCut."""

    serving: Serving
    ask: Ask
    client: Client
    headers: Headers
    interrupt: Interrupt
    entry: Entry
    job: Job
    rejected: bool = False
    _visit: Visit | None = None
    _timer: asyncio.TimerHandle | None = None
    _events: Events | None = None
    _attempt: Attempt | None = None
    _continuation: Continuation | None = None
    _transfer: msgspec.Raw | None = None
    _may_move: bool = True
    _started: bool = False
    _routed: bool = False
    _fell: int = 0

    async def run(self) -> tuple[Outcome, str]:
        """See the class."""
        await self._enter()
        self._attempt = Attempt(self.serving.session, self.client, self.interrupt, self._tokens)
        if isinstance(self.serving.router, PrefillDecode):
            await self._prefill(self.serving.router)
        tried: list[str] = []
        name = self._route(tried)
        while True:
            transferred, ending = self._transfer is not None, await self._at(name, self._ask_for_it)
            self._transfer = None
            if ending.end is End.PASSED:
                return Outcome.FINISHED, ""
            if ending.end is End.REFUSED:
                self.rejected = self.client.status != _TOO_MANY
                return Outcome.FAILED if self.rejected else Outcome.SHED, ending.reason
            if ending.end is End.LEFT:
                name = self._after_departure(name, ending)
                continue
            self._tell_fleet(name, ending)
            self._fell += ending.fell
            if transferred and not self.client.began:
                # The transfer may be what failed, so this was no try: the next instance computes the prompt.
                self._prefill_ended(Prefill.FAILED)
                name = self._route(tried)
                continue
            tried.append(name)
            await self.client.end_event()
            if self._has_all_tokens():
                return await self._finish()
            name = await (self._resume if self.client.began else self._retry)(tried, ending)
            if not name:
                return Outcome.FAILED, ending.reason

    async def _enter(self) -> None:
        """Wait for a place. Raises Refusal or WaitCut if there is none for it."""
        serving = self.serving
        if serving.closing:
            raise closing()
        self._names()
        if serving.options.max_age_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(serving.options.max_age_s, self.interrupt.cut, Cut.TOO_OLD)
        self._visit = await serving.turnstile.enter(
            self.ask.tenant, self.job.priority, self.interrupt, self.ask.answers
        )
        if not self.ask.stream:
            self._no_longer_waits()

    def close(self) -> None:
        """Whatever became of it, it is nowhere any longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._routed:
            self.job.num_output_tokens = self.entry.tokens
            self.serving.router.end(self.job)
        if self._visit is not None:
            self.serving.turnstile.leave(self._visit)

    # ---- the prompt, at a prefill instance ------------------------------------------------------------------------

    async def _prefill(self, router: PrefillDecode) -> None:
        """Have the prompt computed where prompts are. Where that fails, the decode instance computes it.

        Raises Refusal (429) if a policy ended it there, WaitCut as every wait.
        """
        serving = self.serving
        names = for_prompts(serving.fleet.names()) if has_prompt_stage(self.ask) else ()
        if not names:
            self._prefill_ended(Prefill.NONE)
            return
        name = router.prefill(self.job, serving.with_room(names, self.ask.answers))
        try:
            ending = await self._at(name, self._ask_for_prompt)
        finally:
            router.prefilled(self.job)
        if ending.end is End.LEFT and ending.departure is not Departure.HAND_OFF:
            raise self._unserved(ending)
        if ending.end is End.BROKEN:
            self._tell_fleet(name, ending)
            self._fell += ending.fell and ending.fault is None  # what answers with an error has not gone down
        ended = {End.PASSED: Prefill.APART, End.REFUSED: Prefill.NONE}
        self._prefill_ended(ended.get(ending.end, Prefill.FAILED))

    def _prefill_ended(self, prefill: Prefill) -> None:
        self.serving.accounts.prefill_ended(self.entry, prefill, self.serving.clock())

    async def _ask_for_prompt(self, member: Member) -> Ending:
        """Send the prompt to a prefill instance, and keep the answer."""
        assert self._attempt is not None
        ask, left = prompt_alone(self.ask), prompt_targets(self._left())
        call = self._call(member, ask, self._hints(member, left, may_move=False))
        _, read_whole = self._readers(member, Departure.SHED, ids=False)
        ending = await self._attempt.keep(call, read_whole)
        if ending.end is End.PASSED:
            self._transfer = read_transfer(ending.body)
        return ending

    # ---- where to -------------------------------------------------------------------------------------------------

    def _names(self) -> Sequence[str]:
        return self.serving.where(self.ask.previous_id)

    def _route(self, avoided: Sequence[str]) -> str:
        serving, names = self.serving, self._names()
        unavoided = [each for each in names if each not in avoided] or names
        name = serving.router.route(self.job, serving.with_room(unavoided, self.ask.answers))
        self._routed, self._started = True, False
        return name

    def _after_departure(self, name: str, ending: Ending) -> str:
        """Where a request goes that a policy ended unstarted. Raises Refusal (429) if that was its end."""
        serving = self.serving
        moves_left = self.entry.moves < serving.options.max_moves
        if ending.departure is not Departure.HAND_OFF or not moves_left:
            raise self._unserved(ending)
        self._may_move = False
        target = serving.router.hand_off(self.job, self._names())
        if target is None and name not in self._names():
            target = self._route(())
        target = target or name
        serving.accounts.hand_off(self.entry, target)
        return target

    def _unserved(self, ending: Ending) -> Refusal:
        """HTTP 429: a policy ended it unstarted."""
        expired = ending.departure is Departure.EXPIRED
        begun = "it was begun" if self.ask.one_answer else f"all of its {self.ask.answers} answers were begun"
        refusal = self.serving.turnstile.overloaded(
            str(ending.departure or Departure.SHED),
            f"its time ran out before {begun}" if expired else "too much is waiting; try again later",
        )
        if expired:
            refusal.outcome = Outcome.EXPIRED
        return refusal

    async def _retry(self, tried: list[str], ending: Ending) -> str:
        """Another instance for a request of which nothing has come; empty if the client got the instance's error."""
        serving = self.serving
        untried = [name for name in serving.able(self.ask.previous_id) if name not in tried]
        if self._has_tried_enough(tried) or (ending.fault is not None and not untried):
            if ending.fault is None or message_of(ending.fault.body) is None:
                raise Refusal(502, "bad_instance", f"no instance answered it ({ending.reason})")
            await self.client.begin(ending.fault.status, ending.fault.headers)
            await self.client.end(ending.fault.body)
            return ""
        if not untried:
            await self.interrupt.wait(asyncio.sleep(_FIRST_PAUSE_S * 2 ** len(tried)))
        serving.accounts.retry(self.entry)
        return self._route(tried)

    def _has_tried_enough(self, tried: Sequence[str]) -> bool:
        """Whether it ends here: it may be what its instances broke off under, and is not to take the last one too."""
        most_broken = max(2, len(self.serving.fleet.members) - 1)
        return len(tried) >= self.serving.options.max_tries or self._fell >= most_broken

    async def _resume(self, tried: list[str], ending: Ending) -> str:
        """Where a stream goes on that has begun; empty if it cannot, and the client was told so."""
        serving = self.serving
        reason = self._cannot_resume(tried, ending)
        if not reason:
            try:
                name = self._route(tried)
                serving.accounts.resume(self.entry)
                return name
            except Refusal as refusal:
                reason = refusal.message
        await self._end_in_error(f"{ending.reason}; {reason}")
        return ""

    def _cannot_resume(self, tried: list[str], ending: Ending) -> str:
        """Why a stream that has begun does not go on; empty if it does, and how is in `_continuation`."""
        serving, events, attempt = self.serving, self._events, self._attempt
        if not serving.options.resume or events is None or attempt is None:
            return "it does not go on elsewhere"
        if ending.refused or ending.departure not in (None, Departure.HAND_OFF):
            return "nobody takes the rest of it"
        if self._has_tried_enough(tried):
            return f"it broke {len(tried)} times"
        found = continue_from(self.ask, events, attempt.first_events, self._context())
        if isinstance(found, str):
            return found
        self._continuation = found
        return ""

    def _has_all_tokens(self) -> bool:
        events = self._events
        if events is None or not self.client.began:
            return False
        return events.done or (events.finished and self.ask.one_answer)

    async def _finish(self) -> tuple[Outcome, str]:
        """All of its tokens have come, and no more than usage and end mark may be missing."""
        events, attempt = self._events, self._attempt
        assert events is not None
        assert attempt is not None
        if events.done or events.counted or not self.ask.wants_usage:
            await self.client.end(b"" if events.done else DONE)
            return Outcome.FINISHED, ""
        found = continue_from(self.ask, events, attempt.first_events, self._context())
        if isinstance(found, str):
            await self._end_in_error(f"its token counts are lost; {found}")
            return Outcome.FAILED, found
        await self.client.end(found.end())
        return Outcome.FINISHED, ""

    async def _end_in_error(self, reason: str) -> None:
        await self.client.end(error_event(reason, "interrupted", named=self.ask.api.named_events))

    def _context(self) -> int | None:
        return self.serving.fleet.facts.max_model_len

    # ---- one attempt ----------------------------------------------------------------------------------------------

    async def _at(self, name: str, send: Callable[[Member], Awaitable[Ending]]) -> Ending:
        """Be at an instance for as long as `send` takes, or until the instance is lost."""
        serving = self.serving
        try:
            member = serving.fleet.member(name)
        except KeyError:
            return Ending(End.BROKEN, f"{name} is no longer there")
        serving.accounts.place(self.entry, name)
        member.in_flight += self.ask.answers
        try:
            with serving.losses.cutting(name, serving.fleet.lost(name), self.interrupt):
                ending = await send(member)
        except UpstreamError as error:
            return Ending(End.BROKEN, str(error))
        except WaitCut as cut:
            if cut.reason is not Cut.LOST:
                raise
            return Ending(End.BROKEN, f"its instance was lost ({member.reason})", fell=True)
        finally:
            member.in_flight -= self.ask.answers
        member.served += ending.end in (End.PASSED, End.REFUSED)
        return ending

    async def _ask_for_it(self, member: Member) -> Ending:
        """Send it to an instance, and pass on what comes back."""
        serving, attempt = self.serving, self._attempt
        assert attempt is not None
        if self.ask.is_stored:
            serving.stored.keep(self.ask.request_id, member.name, self.ask.tenant)
        await self._drop_half_a_character(member)
        ids = member.facts.is_vllm and serving.options.resume and resumable(self.ask)
        ask, left, rest, may_move = self.ask, self._left(), self._continuation, False
        if rest is not None:
            ask = rest.rest()
            left = replace(left, ttft_s=ask.slo.ttft_s)
        else:
            may_move = self._may_move and self.job.may_move and serving.router.hands_off
            if self._transfer is not None:
                ask = with_transfer(ask, self._transfer)
        # The instance does not say why a policy ended it: a request that may move is handed off, else it is shed.
        unserved = Departure.HAND_OFF if may_move else Departure.SHED
        self._events, read_whole = self._readers(member, unserved, ids=ids)
        call = self._call(member, ask, self._hints(member, left, may_move=may_move), ids=ids)
        return await attempt.run(call, self._events, stream=self.ask.stream, read_whole=read_whole)

    async def _drop_half_a_character(self, member: Member) -> None:
        """What goes on here begins with a whole character. Raises UpstreamError if the instance does not tell."""
        rest = self._continuation
        if rest is not None:
            dropped = await self.interrupt.wait(half_a_character(self.serving.session, member.url, rest))
            self._continuation = rest.without(dropped)

    def _left(self) -> Slo:
        """What is left of its targets."""
        return self.ask.slo.after(self.serving.clock() - self.entry.arrival_s)

    def _hints(self, member: Member, left: Slo, *, may_move: bool) -> dict[str, Any] | None:
        return self.ask.hints(left, may_move=may_move) if member.facts.is_headway else None

    def _readers(
        self, member: Member, unserved: Departure, *, ids: bool
    ) -> tuple[Events, Callable[[bytes], Whole]]:
        """How its events are read, or its answer in one piece; `unserved`: what an answer without a token means."""
        if self._continuation is not None:
            return ResumedEvents(continuation=self._continuation), whole_of
        if self.ask.api.named_events:
            left = unserved if member.facts.is_headway else None
            return NamedEvents(left=left), partial(named_whole, left=left)
        return PassedEvents(with_ids=ids, hide_ids=not self.ask.wants_ids), whole_of

    def _call(self, member: Member, ask: Ask, hints: dict[str, Any] | None, *, ids: bool = False) -> Call:
        """What an instance is sent."""
        body = ask.body(hints=hints, request_id=member.facts.is_vllm, ids=ids)
        headers = upstream_headers(
            self.headers, with_key=self.serving.passes_key(member), request_id=self.client.request_id
        )
        if ask.priority is not None and not ask.api.takes_priority:
            headers.append((PRIORITY_HEADER, str(ask.priority)))
        return Call(root_of(member.url) + ask.path, headers, body)

    def _tell_fleet(self, name: str, ending: Ending) -> None:
        if ending.garbage:
            self.serving.fleet.garbage(name)
        elif not ending.refused and ending.departure is None:
            self.serving.fleet.suspect(name)

    def _tokens(self, tokens: int) -> None:
        """So many more have gone to the client."""
        serving, now_s = self.serving, self.serving.clock()
        if not self._started:
            self._started = True
            serving.router.started(self.job)
            serving.accounts.first_token(self.entry, now_s)
            self._no_longer_waits()
        serving.accounts.progress(self.entry, tokens, now_s)

    def _no_longer_waits(self) -> None:
        """It has begun; or it may have, and will not say so before it is whole (no stream)."""
        if self._visit is not None:
            self.serving.turnstile.began(self._visit)
        if self._timer is not None:
            self._timer.cancel()
            self.interrupt.clear(Cut.TOO_OLD)
