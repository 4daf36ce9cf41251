"""How an answer continues after its instance broke: from its token ids, repeated and compared, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.fleet.member import Member
from headway.gateway.http.events import Events, PassedEvents, WholeAnswer, whole_of
from headway.gateway.http.named_events import NamedEvents, named_whole
from headway.gateway.request.attempt import Attempt, Ending
from headway.gateway.request.generation_request import GenerationRequest
from headway.gateway.request.repeat import Transcript, repeatable
from headway.gateway.request.repeat_named import NamedTranscript
from headway.gateway.request.resume import (
    Continuation,
    ResumedEvents,
    continue_from,
    half_a_character,
    resumable,
)
from headway.gateway.request.serving import Serving


@dataclass(slots=True)
class Onward:
    """What the client has of an answer, as far as another instance needs it.

    `continuation`: the answer continues from these tokens; `repeats`: it is made again; neither before a break.
    """

    serving: Serving
    request: GenerationRequest
    attempt: Attempt
    continuation: Continuation | None = None
    repeats: bool = False
    context_limit: int | None = None
    _events: Events | None = None
    _transcript: Transcript | NamedTranscript | None = None
    _answer_limit: int | None = None

    @property
    def asked(self) -> GenerationRequest:
        """The request for instances from now on."""
        return self.request if self.continuation is None else self.continuation.rest()

    async def prepare(self, member: Member) -> bool:
        """Prepare for an instance's answer; return whether the instance is to send token ids.

        The continuation begins with a whole character. Raises UpstreamError if the instance cannot tell, and WaitCut.
        """
        serving, rest = self.serving, self.continuation
        if rest is not None:
            asking = half_a_character(serving.session, member.url, rest)
            self.continuation = rest.without(await self.attempt.interrupt.wait(asking))
        ids = member.facts.is_vllm and serving.options.resume and resumable(self.request)
        if not self.attempt.begun:
            self._answer_limit = member.answer_limit
            kept = serving.options.resume and (self.request.chat or not ids) and repeatable(self.request)
            made = NamedTranscript if self.request.api.named_events else Transcript
            self._transcript = made() if kept else None
        return ids

    def readers(
        self, member: Member, unserved: Departure, *, ids: bool
    ) -> tuple[Events, Callable[[bytes], WholeAnswer]]:
        """Readers for its events and for an answer in one piece; `unserved`: what an answer without a token means."""
        events, read_whole = self._readers(unserved if member.facts.is_headway else None, ids=ids)
        self._events = events
        return events, read_whole

    def _readers(self, left: Departure | None, *, ids: bool) -> tuple[Events, Callable[[bytes], WholeAnswer]]:
        if self.continuation is not None:
            return ResumedEvents(continuation=self.continuation), whole_of
        if self.repeats:
            assert self._transcript is not None
            assert self._events is not None
            return self._transcript.repeated(self._events.tokens, left), whole_of
        keep = None if self._transcript is None else self._transcript.keep
        if self.request.api.named_events:
            return NamedEvents(left=left, keep=keep), partial(named_whole, left=left)
        return PassedEvents(with_ids=ids, hide_ids=not self.request.wants_ids, keep=keep), whole_of

    def cannot(self, ending: Ending) -> str:
        """Why a begun stream cannot continue after this ending; empty if it can."""
        if not self.serving.options.resume or self._events is None:
            return "it does not go on elsewhere"
        if ending.refused or ending.departure not in (None, Departure.HAND_OFF):
            return "no instance takes the rest of it"
        found = self._continue_from(self._events)
        if not isinstance(found, str):
            self.continuation = found
            return ""
        if self._transcript is None or self.continuation is not None:
            self.repeats = False
            return found
        try:
            self._transcript.read()
        except UpstreamError as error:
            return str(error)
        self.repeats = True
        return ""

    @property
    def has_all_tokens(self) -> bool:
        """Whether only usage and end mark may be missing from a broken stream."""
        events = self._events
        if events is None or not self.attempt.begun:
            return False
        if events.done or not (events.finished and self.request.one_answer):
            return events.done
        counted = events.counted or not self.request.wants_usage
        # Missing token counts come from token ids, or arrive when the answer is made again.
        return counted or self._transcript is None or not isinstance(self._continue_from(events), str)

    @property
    def is_done(self) -> bool:
        """Whether the client has the end mark too."""
        return self._events is not None and self._events.done

    def missing_end(self) -> Continuation | str | None:
        """What the missing token counts of a complete stream are made from, or why they are lost; else None."""
        events = self._events
        if events is None or events.done or events.counted or not self.request.wants_usage:
            return None
        return self._continue_from(events)

    def _continue_from(self, events: Events) -> Continuation | str:
        limits = self.context_limit, self._answer_limit
        return continue_from(self.request, events, self.attempt.first_events, *limits)
