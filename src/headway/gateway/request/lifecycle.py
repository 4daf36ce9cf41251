"""One request's way: to an instance, to another if that gives it up or breaks, and to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from headway.core.hints import PRIORITY_HEADER
from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.gateway.book.accounts import Entry, Prefill
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.http.asgi_client import Client, Headers, upstream_headers
from headway.gateway.http.events import DONE
from headway.gateway.http.refusal import GatewayError, closing, error_event
from headway.gateway.request.admission_queue import QueuedRequest
from headway.gateway.request.attempt import Attempt, Call, End, Ending
from headway.gateway.request.background import keep_place
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.interrupt import Cut, Interrupt, WaitCut
from headway.gateway.request.onward import Onward
from headway.gateway.request.placement import Placement
from headway.gateway.request.prefill import has_prompt_stage, prompt_alone, read_transfer, with_transfer
from headway.gateway.request.resume import loses_nothing
from headway.gateway.request.serving import InstanceLost, Serving
from headway.http_client import message_of, root_of
from headway.routing.prefill_decode import PrefillDecode, for_prompts

_LOG = logging.getLogger(__name__)
_BAD_REQUEST, _TOO_MANY = 400, 429
_FIRST_PAUSE_S = 0.05
"""Pause before a request is sent to an instance that just broke, while the fleet checks the instance."""


async def serve(
    serving: Serving,
    request: GenerationRequest,
    client: Client,
    headers: Headers,
    interrupt: Interrupt,
    arrival_s: float,
) -> None:
    """Answer one request, whatever happens. Its only end is then in the accounts and in the log."""
    entry = serving.accounts.offer(request.request_id, request.slo, request.tenant, arrival_s, request.batch)
    job = serving.job(request, arrival_s)
    entry.program = request.program = serving.program(request, job)
    lifecycle = RequestLifecycle(serving, request, client, headers, interrupt, entry, job)
    outcome, reason = Outcome.FAILED, "the gateway broke off"
    serving.running.add(interrupt)
    try:
        outcome, reason = await lifecycle.run()
    except GatewayError as refusal:
        outcome, reason = refusal.outcome, refusal.message
        await lifecycle.refuse(refusal)
    except WaitCut as cut:
        outcome, reason = await lifecycle.cut_short(cut.reason)
    except Exception:
        _LOG.exception("request %s", request.request_id)
        reason = "an error of the gateway's own"
        await lifecycle.give_up(reason)
    finally:
        serving.running.discard(interrupt)
        lifecycle.close(finished=outcome is Outcome.FINISHED)
        now_s = serving.clock()
        serving.accounts.end(entry, outcome, now_s, rejected=lifecycle.rejected)
        if serving.log is not None:
            serving.log.write(entry, request.path, client.status, now_s, reason, stream=request.stream)


@dataclass(slots=True)
class RequestLifecycle:
    """One request's way. `run` returns its outcome and the reason; raises GatewayError or WaitCut."""

    serving: Serving
    request: GenerationRequest
    client: Client
    headers: Headers
    interrupt: Interrupt
    entry: Entry
    job: Job
    rejected: bool = False
    _admission: QueuedRequest | None = None
    _timer: asyncio.TimerHandle | None = None
    _comments: asyncio.Task[None] | None = None
    _attempt: Attempt = field(init=False)
    _onward: Onward = field(init=False)
    _placement: Placement = field(init=False)
    _transfer: msgspec.Raw | None = None
    _member: Member | None = None
    _streams: bool = False
    _may_move: bool = True
    _fell: int = 0
    _garbled: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client.named_events = self.request.api.named_events
        self._attempt = Attempt(self.serving.session, self.client, self.interrupt, self._tokens)
        self._onward = Onward(self.serving, self.request, self._attempt)
        self._placement = Placement(self.serving, self.request, self.job, self.interrupt)

    async def run(self) -> tuple[Outcome, str]:
        """Serve the request. See the class."""
        await self._enter()
        if isinstance(self.serving.router, PrefillDecode):
            await self._prefill(self.serving.router)
        tried: list[str] = []
        name = await self._place(tried)
        while True:
            transferred, ending = self._transfer is not None, await self._at(name, self._ask_for_it)
            self._transfer = None
            if ending.end is End.PASSED:
                self._tell_of_garbage(name)
                self._keep_place()
                return Outcome.FINISHED, ""
            if ending.end is End.REFUSED:
                self.rejected = self.client.status != _TOO_MANY
                return Outcome.FAILED if self.rejected else Outcome.SHED, ending.reason
            if ending.end is End.LEFT:
                name = await self._after_departure(name, ending)
                continue
            self._tell_fleet(name, ending)
            self._fell += ending.fell
            if transferred and not self._attempt.begun:
                # The transfer may be what failed, so this does not count as a try: the next instance computes the
                # prompt.
                self._prefill_ended(Prefill.FAILED)
                name = await self._place(tried)
                continue
            tried.append(name)
            await self.client.end_event()
            if self._onward.has_all_tokens:
                return await self._finish()
            name = await (self._resume if self._attempt.begun else self._retry)(tried, ending)
            if not name:
                return Outcome.FAILED, ending.reason

    async def _enter(self) -> None:
        """Wait for a place. Raises GatewayError or WaitCut if there is none."""
        serving, request, interrupt = self.serving, self.request, self.interrupt
        if serving.closing:
            raise closing()
        self._names()
        self._timer = serving.start_age_timer(interrupt)
        if request.stream and serving.options.sse_keep_alive_s is not None:
            self._comments = asyncio.create_task(self._keep_alive(serving.options.sse_keep_alive_s))
        priority = self.job.priority
        self._admission = await serving.queue.enter(request.share, priority, interrupt, request.answers)
        if not self.request.stream:
            self._no_longer_waits()

    async def _keep_alive(self, every_s: float) -> None:
        """Until the first token, send a comment after each silence of this length."""
        while True:
            await asyncio.sleep(every_s)
            if self._attempt.begun or self.client.ended:
                return
            await self.client.keep_alive()

    # ---- prefill at another instance ------------------------------------------------------------------------------

    async def _prefill(self, router: PrefillDecode) -> None:
        """Let a prefill instance compute the prompt. If that fails, the decode instance will.

        Raises GatewayError (429) if a policy ended the request there, and WaitCut.
        """
        serving = self.serving
        names = for_prompts(self._all_names()) if has_prompt_stage(self.request) else ()
        if not names:
            self._prefill_ended(Prefill.NONE)
            return
        name = router.prefill(self.job, serving.with_room(names, self.request.answers))
        try:
            ending = await self._at(name, self._ask_for_prompt)
        finally:
            router.prefilled(self.job)
        if ending.end is End.LEFT and ending.departure is not Departure.HAND_OFF:
            raise self._unserved(ending.departure)
        if ending.end is End.BROKEN:
            self._tell_fleet(name, ending)
            self._fell += (
                ending.fell and ending.fault is None
            )  # an instance that answers with an error has not gone down
        ended = {End.PASSED: Prefill.APART, End.REFUSED: Prefill.NONE}
        self._prefill_ended(ended.get(ending.end, Prefill.FAILED))

    def _prefill_ended(self, prefill: Prefill) -> None:
        self.serving.accounts.prefill_ended(self.entry, prefill, self.serving.clock())

    async def _ask_for_prompt(self, member: Member) -> Ending:
        """Send the prompt to a prefill instance, and keep the answer."""
        request, left = prompt_alone(self.request), replace(self._left(), tbt_s=None)
        call = self._call(member, request, self._hints(member, left, may_move=False))
        _, read_whole = self._onward.readers(member, Departure.SHED, ids=False)
        ending = await self._attempt.keep(call, read_whole)
        if ending.end is End.PASSED:
            self._transfer = read_transfer(ending.body)
        return ending

    # ---- placement ------------------------------------------------------------------------------------------------

    def _names(self) -> Sequence[str]:
        request = self._onward.asked
        return self.serving.where(request.previous_id, request.model, request.context_tokens)

    def _all_names(self) -> Sequence[str]:
        """The instances that have the model, including those for prompts alone."""
        return self.serving.fleet.names(self.request.model, self.request.prompt_tokens)

    async def _place(self, avoided: Sequence[str] = ()) -> str:
        """The instance to ask. Raises GatewayError (429) if the request's time ends before there is one."""
        return self._in_time(await self._placement.place(self._names(), avoided, self._due_s))

    @property
    def _due_s(self) -> float | None:
        """When it is too late to begin."""
        return None if self._attempt.begun else self.job.due_s

    def _in_time(self, name: str | None) -> str:
        if name is None:
            raise self._unserved(Departure.EXPIRED)
        return name

    async def _after_departure(self, name: str, ending: Ending) -> str:
        """The next instance for a request that a policy ended unstarted. Raises GatewayError (429) if there is none."""
        serving = self.serving
        moves_left = self.entry.moves < serving.options.max_moves
        if ending.departure is not Departure.HAND_OFF or not moves_left:
            raise self._unserved(ending.departure)
        self._may_move = False
        target = self._in_time(await self._placement.hand_off(name, self._names(), self._due_s))
        serving.accounts.hand_off(self.entry, target)
        return target

    def _unserved(self, departure: Departure | None) -> GatewayError:
        """HTTP 429: the request was given up unstarted.

        In APIs whose answers give no reason, the reason is expiry if a target is missed by now.
        """
        if departure is Departure.SHED and self.request.api.named_events and self._is_late():
            departure = Departure.EXPIRED
        expired = departure is Departure.EXPIRED
        what = "it was" if self.request.one_answer else f"all of its {self.request.answers} answers were"
        late = f"its time ran out before {what} begun"
        code = str(departure or Departure.SHED)
        message = late if expired else "too much is waiting; try again later"
        refusal = self.serving.queue.overloaded(code, message)
        if expired:
            refusal.outcome = Outcome.EXPIRED
        return refusal

    def _is_late(self) -> bool:
        due_s = self.job.due_s
        return due_s is not None and self.serving.clock() >= due_s

    async def _retry(self, tried: list[str], ending: Ending) -> str:
        """Another instance for a request without any output; empty if the client got the instance's error."""
        serving = self.serving
        untried = [
            name for name in serving.able(self.request.previous_id, self.request.model) if name not in tried
        ]
        if self._has_tried_enough(tried) or (ending.fault is not None and not untried):
            if ending.fault is None or message_of(ending.fault.body) is None:
                raise GatewayError(502, "bad_instance", f"no instance answered it ({ending.reason})")
            await self.client.answer(ending.fault.status, ending.fault.headers, ending.fault.body)
            return ""
        if not untried:
            await self.interrupt.wait(asyncio.sleep(_FIRST_PAUSE_S * 2 ** len(tried)))
        serving.accounts.retry(self.entry)
        return await self._place(tried)

    def _has_tried_enough(self, tried: Sequence[str]) -> bool:
        """Whether to stop trying: the request may have broken its instances, and must not break the last one too."""
        there = sum(member.condition is not Condition.PARKED for member in self.serving.fleet.members)
        most_broken = max(2, there - 1)
        return len(tried) >= self.serving.options.max_tries or self._fell >= most_broken

    async def _resume(self, tried: list[str], ending: Ending) -> str:
        """The instance that continues a stream; empty if none can, in which case the client was told."""
        serving = self.serving
        reason = self._cannot_resume(tried, ending)
        if not reason:
            try:
                name = await self._place(tried)
                serving.accounts.resume(self.entry)
                return name
            except GatewayError as refusal:
                reason = refusal.message
        await self._end_in_error(f"{ending.reason}; {reason}")
        return ""

    def _cannot_resume(self, tried: list[str], ending: Ending) -> str:
        """Why a begun stream cannot continue; empty if it can."""
        if self._has_tried_enough(tried):
            return f"it broke {len(tried)} times"
        return self._onward.cannot(ending)

    async def _finish(self) -> tuple[Outcome, str]:
        """All tokens have arrived; only usage and end mark may be missing."""
        missing = self._onward.missing_end()
        if isinstance(missing, str):
            await self._end_in_error(f"its token counts are lost; {missing}")
            return Outcome.FAILED, missing
        mark = b"" if self._onward.is_done else DONE
        await self.client.end(mark if missing is None else missing.end())
        return Outcome.FINISHED, ""

    async def _end_in_error(self, reason: str) -> None:
        await self.client.end(error_event(reason, "interrupted", named=self.request.api.named_events))

    # ---- one attempt ----------------------------------------------------------------------------------------------

    async def _at(self, name: str, send: Callable[[Member], Awaitable[Ending]]) -> Ending:
        """Count the request at an instance while `send` runs, or until the instance is lost."""
        serving = self.serving
        try:
            member = serving.fleet.member(name)
        except KeyError:
            return Ending(End.BROKEN, f"{name} is no longer there")
        serving.accounts.place(self.entry, name)
        self._member = member
        try:
            with serving.at(member, self.request.answers, self.interrupt):
                ending = await send(member)
        except InstanceLost:
            return Ending(End.BROKEN, f"its instance was lost ({member.reason})", fell=True)
        except UpstreamError as error:
            return Ending(End.BROKEN, str(error))
        finally:
            member.streams -= self._streams
            self._streams = False
        member.served += ending.end in (End.PASSED, End.REFUSED)
        return ending

    async def _ask_for_it(self, member: Member) -> Ending:
        """Send the request, and pass the answer on."""
        serving = self.serving
        if self.request.is_stored:
            serving.stored.keep(self.request.request_id, member.name, self.request.share)
        onward = self._onward
        ids = await onward.prepare(member)
        request, left, may_move = onward.asked, self._left(), False
        if onward.continuation is not None or onward.repeats:
            left = replace(left, ttft_s=request.slo.ttft_s)
        else:
            onward.context_limit = member.facts.limits.get(request.model or member.facts.model)
            may_move = self._may_move and self._placement.may_move(
                lambda: (ids or not request.stream) and loses_nothing(request, member.answer_limit)
            )
            if self._transfer is not None:
                request = with_transfer(request, self._transfer)
        # These APIs do not say why a policy ended a request: if it may move it was handed off, else shed.
        unserved = Departure.HAND_OFF if may_move else Departure.SHED
        events, read_whole = onward.readers(member, unserved, ids=ids)
        call = self._call(member, request, self._hints(member, left, may_move=may_move), ids=ids)
        return await self._attempt.run(call, events, stream=self.request.stream, read_whole=read_whole)

    def _left(self) -> Slo:
        """The rest of its targets."""
        return self.request.slo.after(self.serving.clock() - self.entry.arrival_s)

    def _hints(self, member: Member, left: Slo, *, may_move: bool) -> dict[str, Any] | None:
        if not member.facts.is_headway:
            return None
        elsewhere = self.serving.router.waiting_elsewhere(member.name, self._all_names()) if may_move else ()
        return self.request.hints(left, may_move=may_move, waiting_elsewhere=elsewhere)

    def _call(
        self, member: Member, request: GenerationRequest, hints: dict[str, Any] | None, *, ids: bool = False
    ) -> Call:
        """What an instance is sent."""
        body = request.body(hints=hints, request_id=member.facts.is_vllm, ids=ids)
        headers = upstream_headers(
            self.headers, with_key=self.serving.passes_key(member), request_id=self.client.request_id
        )
        if request.priority is not None and not request.api.takes_priority:
            headers.append((PRIORITY_HEADER, str(request.priority)))
        return Call(root_of(member.url) + request.path, headers, body)

    def _tell_of_garbage(self, served_by: str) -> None:
        """Report instances whose answers were garbage, after another has served the same request.

        Otherwise the request may be at fault, and one client's requests must not take instances from others.
        """
        for name in self._garbled:
            if name != served_by:
                self.serving.fleet.garbage(name)

    def _tell_fleet(self, name: str, ending: Ending) -> None:
        if ending.garbage:
            self._garbled.append(name)
        elif not ending.refused and ending.departure is None:
            self.serving.fleet.suspect(name)

    def _tokens(self, tokens: int) -> None:
        """More tokens have gone to the client."""
        serving, now_s, member = self.serving, self.serving.clock(), self._member
        if member is not None:
            member.heard_s = now_s
            member.streams += not self._streams
            self._streams = True
        if self._placement.begin():
            serving.accounts.first_token(self.entry, now_s)
            self._no_longer_waits()
        serving.accounts.progress(self.entry, tokens, now_s)

    def _no_longer_waits(self) -> None:
        """The answer has begun. Without a stream it may have: that is not known before it is complete."""
        if self._admission is not None:
            self.serving.queue.began(self._admission)
        if self._timer is not None:
            self._timer.cancel()
            self.interrupt.clear(Cut.TOO_OLD)

    def _keep_place(self) -> None:
        """Keep counting a background response where it is made."""
        if not self.request.is_background or self._admission is None or self._member is None:
            return
        headers = upstream_headers(self.headers, with_key=self.serving.passes_key(self._member))
        admission, self._admission = self._admission, None
        self.serving.beside(
            keep_place(self.serving, admission, self._member, self.request.request_id, headers)
        )

    # ---- ends without an answer -----------------------------------------------------------------------------------

    async def refuse(self, refusal: GatewayError) -> None:
        """Answer with an error of the gateway's own."""
        self.rejected = refusal.status == _BAD_REQUEST
        await self.serving.refuse(self.client, refusal, self.entry.slo, self.entry.key.tenant)

    async def cut_short(self, cut: Cut) -> tuple[Outcome, str]:
        """End a request whose wait was cut short; return its outcome and the reason."""
        if cut is Cut.GONE:
            return Outcome.CANCELLED, "the client left"
        refusal = self.serving.too_old() if cut is Cut.TOO_OLD else closing()
        if not self._attempt.begun:
            await self.refuse(refusal)
            return refusal.outcome, refusal.message
        await self.give_up(refusal.message)
        return Outcome.FAILED, refusal.message

    async def give_up(self, reason: str) -> None:
        """End an answer that cannot continue, and tell the client as far as possible."""
        client = self.client
        if client.ended:
            return
        with suppress(Exception):
            if client.began:
                await client.end_event()
                await self._end_in_error(reason)
            else:
                await client.refuse(GatewayError(500, "internal", reason))

    def close(self, *, finished: bool) -> None:
        """Release everything that the request holds."""
        if self._comments is not None:
            self._comments.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._placement.end(self.entry.tokens, finished=finished)
        if self._admission is not None:
            self.serving.queue.leave(self._admission)
        del self._attempt.on_tokens  # which leads back here
