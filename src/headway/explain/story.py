"""One request's story: what it waited for, when it ran, and what happened to it on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headway.core.record import Record

LOOK_AHEAD = 100
"""Ranks examined to count the waiting requests ahead; beyond it, the count is that many or more."""

UNDER_WAY = "a step was under way"
_RESOLUTION_S = 1e-6


class Kind(StrEnum):
    """The subject of a chapter: the first six last for a while, the others are instants."""

    WAITED = "waited"
    SWAPPED = "on the host"
    PREFILL = "prefill"
    DECODE = "decode"
    PAUSED = "paused"
    NOT_KEPT = "not kept"
    ARRIVED = "arrived"
    ADMITTED = "admitted"
    PREEMPTED = "preempted"
    FIRST_TOKEN = "first token"
    HANDED_OFF = "handed off"
    ENDED = "ended"


LASTING = frozenset({Kind.WAITED, Kind.SWAPPED, Kind.PREFILL, Kind.DECODE, Kind.PAUSED, Kind.NOT_KEPT})
"""Kinds that last for a while."""

IN_QUEUE = frozenset({Kind.WAITED, Kind.SWAPPED})
"""Kinds in which a request waits to be admitted, for the first time or again."""


@dataclass(slots=True, kw_only=True)
class Chapter:
    """A stretch with one state of a request, or an instant.

    Times are seconds of the run. `steps` passed in it, with `tokens` for the request. `ahead` is the least and the
    greatest number of waiting requests that would start before it, `beside` of others that got tokens. `by` are the ids
    of those that stood in its way, in sequence; for a preemption, of those that displaced it.
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
    """A request from arrival to end, in order of time.

    For a `live` request it ends now, and `record` is the one that it would leave if it were cancelled.
    """

    record: Record
    chapters: Sequence[Chapter]
    live: bool = False


def joined(chapters: Iterable[Chapter]) -> list[Chapter]:
    """The chapters without empty stretches, with equal neighbours merged."""
    told: list[Chapter] = []
    for chapter in chapters:
        last = told[-1] if told else None
        if (
            chapter.kind in LASTING
            and last is not None
            and (last.kind, last.why) == (chapter.kind, chapter.why)
        ):
            _extend(last, chapter)
        elif chapter.kind not in LASTING or chapter.end_s > chapter.start_s or chapter.tokens:
            told.append(chapter)
    return told


def hull(bounds: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The least and the greatest of several such pairs; None if none is known."""
    known = [bound for bound in bounds if bound is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _extend(last: Chapter, chapter: Chapter) -> None:
    last.end_s = chapter.end_s
    last.steps += chapter.steps
    last.tokens += chapter.tokens
    last.ahead = hull([last.ahead, chapter.ahead])
    last.beside = hull([last.beside, chapter.beside])
    last.by += [id_ for id_ in chapter.by if id_ not in last.by]


def whole_story(chapters: Sequence[Chapter], record: Record, *, live: bool = False) -> Story:
    """The chapters plus what the record knows: the first token, which splits a stretch, and the end.

    A `live` request's story has no end; it stops at `record.finished_s`, which is now.
    """
    end_s = record.arrival_s if record.finished_s is None else record.finished_s
    told = _until(chapters, record.arrival_s, end_s)
    if record.first_token_s is not None:
        told = _with_first_token(told, record.first_token_s)
    if not live:
        why = f"{record.outcome}{f' ({record.error})' if record.error else ''}"
        told.append(Chapter(kind=Kind.ENDED, start_s=end_s, end_s=end_s, why=why))
    return Story(record=record, chapters=told, live=live)


def _until(chapters: Sequence[Chapter], arrival_s: float, end_s: float) -> list[Chapter]:
    """The chapters, the last of which lasts to `end_s`."""
    told = list(chapters) or [Chapter(kind=Kind.ARRIVED, start_s=arrival_s, end_s=arrival_s)]
    if told[-1].kind in LASTING:
        told[-1].end_s = end_s
    elif told[-1].end_s < end_s:
        told.append(Chapter(kind=Kind.WAITED, start_s=told[-1].end_s, end_s=end_s, why=UNDER_WAY))
    return told


def _with_first_token(chapters: Sequence[Chapter], first_token_s: float) -> list[Chapter]:
    """Insert the first token after what had begun before it; approximately, since times of records are rounded.

    A decode scheduled ahead of the token runs on the device after it, so that chapter begins there.
    """
    begun = sum(chapter.start_s < first_token_s - _RESOLUTION_S for chapter in chapters)
    if begun and chapters[begun - 1].kind is Kind.DECODE:
        begun -= 1
        chapters[begun].start_s = first_token_s
        if begun and chapters[begun - 1].kind in LASTING:
            chapters[begun - 1].end_s = first_token_s
    token = Chapter(kind=Kind.FIRST_TOKEN, start_s=first_token_s, end_s=first_token_s)
    return [*chapters[:begun], token, *chapters[begun:]]
