"""One request's story: what it waited for, when it ran, and what happened to it on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepOutcome
from headway.core.record import Outcome, Record
from headway.sim.reasons import why_paused, why_preempted, why_waiting
from headway.sim.watcher import Sight, is_decode

LOOK_AHEAD = 100
"""Ranks that are looked at for how many waiting jobs come first; beyond it, that many or more."""

_UNDER_WAY = "a step was under way"
_RESOLUTION_S = 1e-6


class Kind(StrEnum):
    """What a chapter tells of: the first five last, the others are instants."""

    WAITED = "waited"
    SWAPPED = "on the host"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    ARRIVED = "arrived"
    ADMITTED = "admitted"
    PREEMPTED = "preempted"
    FIRST_TOKEN = "first token"
    HANDED_OFF = "handed off"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True)
class Chapter:
    """A stretch in which the same was true of a request, or an instant.

    Times are seconds of the run. `steps` it saw, `tokens` it was given in them. `ahead` is the least and the
    greatest number of waiting requests that would start before it, `beside` of others that got tokens. `by` are
    the ids of those that stood in its way, one after another.
    """

    kind: Kind
    start_s: float
    end_s: float
    why: str = ""
    steps: int = 0
    tokens: int = 0
    ahead: tuple[int, int] | None = None
    beside: tuple[int, int] | None = None
    by: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A request from arrival to end, in the order of time."""

    record: Record
    chapters: Sequence[Chapter]


class StoryWatcher:
    """Follows one request by its id. O(waiting) a step until it is seen, then O(residents) a step."""

    def __init__(self, request_id: str, arrival_s: float) -> None:
        self._id = request_id
        self._arrival_s = arrival_s
        self._job: Job | None = None
        self._instance = ""
        self._chapters: list[Chapter] = []
        self._lost_tokens = 0
        self._swapped = False
        self._record: Record | None = None

    # ---- what a watcher is told --------------------------------------------------------------------

    def saw(self, sight: Sight) -> None:
        """Add what this step was for the request."""
        if self._job is None:
            self._find(sight)
        job = self._job
        if job is None or job.state is JobState.ENDED or sight.instance != self._instance:
            return
        self._until(sight.outcome.now_s)
        self._add_events(job, sight)
        self._add_stretch(job, sight)
        self._lost_tokens = job.recomputed_tokens

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """Nothing: a step is told when it is scheduled."""

    def ended(self, record: Record) -> None:
        """The end of the story, if it is this request's; or of its stay at one instance."""
        if record.id != self._id:
            return
        if record.outcome is Outcome.HANDED_OFF:
            self._leave(record)
        else:
            self._record = record

    def _leave(self, record: Record) -> None:
        """It goes elsewhere; who finds it there tells on."""
        assert record.finished_s is not None, "a request moved at no time"
        if self._job is None:
            arrived = Chapter(kind=Kind.ARRIVED, start_s=record.arrival_s, end_s=record.arrival_s)
            self._chapters.append(arrived)
        self._until(record.finished_s)
        why = f"instance {record.instance} gave it up before it had started"
        move = Chapter(kind=Kind.HANDED_OFF, start_s=record.finished_s, end_s=record.finished_s, why=why)
        self._chapters.append(move)
        self._job = None

    @property
    def story(self) -> Story | None:
        """The whole story; None as long as the request has not ended."""
        if self._record is None:
            return None
        return Story(record=self._record, chapters=_with_record(self._chapters, self._record))

    # ---- steps -------------------------------------------------------------------------------------

    def _find(self, sight: Sight) -> None:
        if sight.outcome.now_s < self._arrival_s:
            return
        for job in (*sight.waiting, *sight.outcome.admitted):
            if job.id == self._id:
                self._job, self._instance = job, sight.instance
                self._chapters.append(self._arrival(job, sight))

    def _arrival(self, job: Job, sight: Sight) -> Chapter:
        others = len(sight.waiting) + len(sight.outcome.admitted) - 1
        why = (
            f"{job.num_prompt_tokens:,} prompt tokens, at instance {sight.instance}: {others:,} others waiting, "
            f"{len(sight.residents):,} of {sight.max_resident:,} seats taken, {sight.free_blocks:,} blocks free"
        )
        return Chapter(kind=Kind.ARRIVED, start_s=job.arrival_s, end_s=job.arrival_s, why=why)

    def _until(self, now_s: float) -> None:
        """End the stretch that lasted to this step; between arrival and the first step one was under way."""
        last = self._chapters[-1]
        if last.kind is Kind.ARRIVED and now_s > last.end_s:
            self._chapters.append(Chapter(kind=Kind.WAITED, start_s=last.end_s, end_s=now_s, why=_UNDER_WAY))
        else:
            last.end_s = now_s if _lasts(last) else last.end_s

    def _add_events(self, job: Job, sight: Sight) -> None:
        outcome, now_s = sight.outcome, sight.outcome.now_s
        if job in outcome.preempted:
            self._swapped = outcome.preempted[job] is Fate.SWAP
            moved = job.num_computed_tokens if self._swapped else job.recomputed_tokens - self._lost_tokens
            why = f"{why_preempted(job, sight)} ({moved:,} tokens)"
            self._chapters.append(Chapter(kind=Kind.PREEMPTED, start_s=now_s, end_s=now_s, why=why))
        elif job in outcome.admitted:
            why = self._why_admitted(job, outcome)
            self._swapped = False
            self._chapters.append(Chapter(kind=Kind.ADMITTED, start_s=now_s, end_s=now_s, why=why))

    def _why_admitted(self, job: Job, outcome: StepOutcome) -> str:
        """Where the KV it starts with comes from."""
        cached = outcome.cached_tokens.get(job, 0)
        found = f"{cached:,} of {job.num_tokens:,} tokens found in the prefix cache" if cached else ""
        if not self._swapped:
            return found
        return "its KV is copied back" + (f", but for {found}" if found else "")

    def _add_stretch(self, job: Job, sight: Sight) -> None:
        tokens = sight.outcome.tokens.get(job, 0)
        beside = len(sight.outcome.tokens) - bool(tokens)
        if tokens:
            kind = Kind.DECODE if is_decode(job, tokens) else Kind.PREFILL
            self._extend(kind, "", sight, tokens=tokens, beside=beside)
        elif job.state is not JobState.RESIDENT:
            kind = Kind.SWAPPED if job.state is JobState.SWAPPED else Kind.WAITED
            why, by = why_waiting(job, sight)
            self._extend(kind, why, sight, ahead=_ahead(job, sight))
            if by and by not in self._chapters[-1].by:
                self._chapters[-1].by.append(by)
        else:
            self._extend(Kind.PAUSED, why_paused(job, sight), sight, beside=beside)

    def _extend(
        self,
        kind: Kind,
        why: str,
        sight: Sight,
        *,
        tokens: int = 0,
        ahead: int | None = None,
        beside: int | None = None,
    ) -> None:
        """Go on with the last stretch if it tells the same, else start one."""
        now_s = sight.outcome.now_s
        last = self._chapters[-1]
        if last.kind is not kind or last.why != why:
            last = Chapter(kind=kind, start_s=now_s, end_s=now_s, why=why)
            self._chapters.append(last)
        last.steps += bool(sight.outcome.tokens)
        last.tokens += tokens
        last.ahead = _widened(last.ahead, ahead)
        last.beside = _widened(last.beside, beside)


def _lasts(chapter: Chapter) -> bool:
    return chapter.kind in (Kind.WAITED, Kind.SWAPPED, Kind.PREFILL, Kind.DECODE, Kind.PAUSED)


def _ahead(job: Job, sight: Sight) -> int:
    """How many waiting jobs would start before this one."""
    first = sight.order.top(LOOK_AHEAD, sight.outcome.now_s)
    return first.index(job) if job in first else LOOK_AHEAD


def _widened(bounds: tuple[int, int] | None, value: int | None) -> tuple[int, int] | None:
    if value is None:
        return bounds
    return (value, value) if bounds is None else (min(bounds[0], value), max(bounds[1], value))


def _with_record(chapters: Sequence[Chapter], record: Record) -> list[Chapter]:
    """The chapters with what the record knows: the first token, which parts a stretch, and the end."""
    end_s = record.arrival_s if record.finished_s is None else record.finished_s
    told = list(chapters) or [Chapter(kind=Kind.ARRIVED, start_s=record.arrival_s, end_s=record.arrival_s)]
    if _lasts(told[-1]):
        told[-1].end_s = end_s
    elif told[-1].end_s < end_s:
        told.append(Chapter(kind=Kind.WAITED, start_s=told[-1].end_s, end_s=end_s, why=_UNDER_WAY))
    if record.first_token_s is not None:
        told = _with_first_token(told, record.first_token_s)
    why = f"{record.outcome}{f' ({record.error})' if record.error else ''}"
    return [*told, Chapter(kind=Kind.ENDED, start_s=end_s, end_s=end_s, why=why)]


def _with_first_token(chapters: Sequence[Chapter], first_token_s: float) -> list[Chapter]:
    """Put the first token behind what had begun before it came; times of records are rounded, so nearly so.

    A decode scheduled ahead of it runs on the device once the token is out, so it begins there.
    """
    begun = sum(chapter.start_s < first_token_s - _RESOLUTION_S for chapter in chapters)
    if begun and chapters[begun - 1].kind is Kind.DECODE:
        begun -= 1
        chapters[begun].start_s = first_token_s
        if begun and _lasts(chapters[begun - 1]):
            chapters[begun - 1].end_s = first_token_s
    token = Chapter(kind=Kind.FIRST_TOKEN, start_s=first_token_s, end_s=first_token_s)
    return [*chapters[:begun], token, *chapters[begun:]]
