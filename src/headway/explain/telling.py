"""Turns a trail's notes on a request into the chapters of its story."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from headway.core.record import Outcome, record_of
from headway.explain.story import (
    IN_QUEUE,
    LASTING,
    UNDER_WAY,
    Chapter,
    Kind,
    Story,
    joined,
    whole_story,
)
from headway.explain.track import KEPT_FIRST, Change, ChangeLog, Mark, Track
from headway.explain.trail import Trail

ON_ITS_WAY = "it was on its way to the scheduler"
NOT_KEPT = "not kept: too many changes"
MOST_TURNS = 8
"""Most reasons in sequence that become chapters of their own; if they alternated more often, the stretch is one
chapter.
"""
_NAMED = 3
_RUNNING = frozenset({Kind.PREFILL, Kind.DECODE})


def tell(trail: Trail, track: Track, now_s: float) -> Story:
    """The story of a request, complete or so far. O(its marks + what all waited for meanwhile)."""
    live = track.record is None
    record = track.record or record_of(track.job, Outcome.CANCELLED, now_s)
    return whole_story(chapters(trail, track, now_s), record, live=live)


def chapters(trail: Trail, track: Track, now_s: float) -> list[Chapter]:
    """The chapters of a request without its first token and its end."""
    told = [*_beginning(trail, track)]
    for number, (mark, following) in enumerate(_spans(trail, track, now_s)):
        if mark.kind not in LASTING:
            told.append(_instant(track, mark))
        if lasting := _lasting(track, number, mark):
            told += _stretch(trail, lasting, following)
    return joined(told)


def waited_s(trail: Trail, track: Track, now_s: float) -> dict[str, float]:
    """Seconds of its waiting by reason, as far as kept; waiting on the host is separate."""
    found = track.found
    if found is None:
        return {}
    spent_s = defaultdict(float, {ON_ITS_WAY: track.entered_s - track.job.arrival_s})
    spent_s[UNDER_WAY] = found.at_s - track.entered_s
    for number, (mark, following) in enumerate(_spans(trail, track, now_s)):
        lasting = _lasting(track, number, mark)
        if lasting is None or lasting.kind not in IN_QUEUE:
            continue
        place = "on the host: " if lasting.kind is Kind.SWAPPED else ""
        for why, seconds in _reasons_s(trail, lasting, following).items():
            spent_s[place + why] += seconds
    return spent_s


# ---- stretches --------------------------------------------------------------------------------------------


def _spans(trail: Trail, track: Track, now_s: float) -> Iterator[tuple[Mark, Mark]]:
    """Yield each mark with the next one, from the first step it saw, which found it waiting, to its end or now."""
    found = track.found
    if found is None:
        return
    began = Mark(found.at_s, found.step, 0, 0, Kind.WAITED)
    step = trail.steps.count if track.end_step is None else track.end_step
    end = Mark(track.until_s(now_s), step, track.computed, track.job.num_output_tokens, Kind.ENDED)
    yield from pairwise([began, *track.marks, end])


def _lasting(track: Track, number: int, mark: Mark) -> Mark | None:
    """What was true from the `number`-th mark on, None if unknown. There may be a gap after the first marks."""
    if track.not_kept and number == KEPT_FIRST:
        return mark._replace(kind=Kind.NOT_KEPT, why=f"{track.not_kept:,} changes")
    if mark.kind in LASTING:
        return mark
    return None if mark.then is None else mark._replace(kind=mark.then, why="")


def _log(trail: Trail, mark: Mark) -> ChangeLog | None:
    """The log with the reason of a stretch without one of its own; None if it needs none."""
    if mark.kind in _RUNNING or mark.why:
        return None
    return trail.waiting_for if mark.kind in IN_QUEUE else trail.pausing_for


def _reasons_s(trail: Trail, mark: Mark, following: Mark) -> dict[str, float]:
    """Seconds of a stretch by reason."""
    log = _log(trail, mark)
    if log is None:
        return {mark.why: following.at_s - mark.at_s}
    return log.spent_s(mark.at_s, following.at_s)


# ---- chapters ---------------------------------------------------------------------------------------------


def _beginning(trail: Trail, track: Track) -> Iterator[Chapter]:
    """The arrival of a job, and the time until the next step was planned."""
    job, found = track.job, track.found
    why = ""
    if found is not None:
        where = f", at instance {trail.name}" if trail.name else ""
        why = (
            f"{job.num_prompt_tokens:,} prompt tokens{where}: {found.others_waiting:,} "
            f"other{'' if found.others_waiting == 1 else 's'} waiting, "
            f"{found.residents:,} of {found.max_resident:,} seats taken, {found.free_blocks:,} blocks free"
            f"{_back(track)}"
        )
    yield Chapter(kind=Kind.ARRIVED, start_s=job.arrival_s, end_s=job.arrival_s, why=why)
    if found is not None:
        yield Chapter(kind=Kind.WAITED, start_s=job.arrival_s, end_s=track.entered_s, why=ON_ITS_WAY)
        yield Chapter(kind=Kind.WAITED, start_s=track.entered_s, end_s=found.at_s, why=UNDER_WAY)


def _back(track: Track) -> str:
    """When the program came back, if this is a later turn of one."""
    if track.before is None:
        return ""
    pause_s = track.job.arrival_s - track.before.ended_s
    tokens, kept = track.before.num_tokens, track.job.num_kept_tokens
    left = f"{tokens:,} tokens, {kept:,} of them kept for it" if kept else f"{tokens:,} tokens"
    return f"; its program {track.job.program} comes back after {pause_s:,.3g} s, left at {left}"


def _instant(track: Track, mark: Mark) -> Chapter:
    by: list[str] = []
    if mark.kind is Kind.PREEMPTED:
        by = [id_ for gone in track.displacements if gone.at_s == mark.at_s for id_ in gone.by]
    return Chapter(kind=mark.kind, start_s=mark.at_s, end_s=mark.at_s, why=mark.why, by=by)


def _stretch(trail: Trail, mark: Mark, following: Mark) -> Iterator[Chapter]:
    """Chapters of a stretch in which a request ran, waited or paused, with its own reason or the common ones."""
    log = _log(trail, mark)
    changes = [] if log is None else log.between(mark.at_s, following.at_s)
    if log is None or not changes:
        yield _chapter(trail, mark, following)
    elif len(changes) > MOST_TURNS:
        yield _chapter(trail, mark._replace(why=_in_turn(log.spent_s(mark.at_s, following.at_s))), following)
    else:
        yield from _turns(trail, mark, following, changes)


def _turns(trail: Trail, mark: Mark, following: Mark, changes: Sequence[Change]) -> Iterator[Chapter]:
    """A chapter for each reason of a stretch."""
    begins = [mark._replace(at_s=max(mark.at_s, one.at_s), step=max(mark.step, one.step)) for one in changes]
    if begins[0].at_s > mark.at_s:
        yield _chapter(trail, mark._replace(why=NOT_KEPT), begins[0])
    for change, (begun, ended) in zip(changes, pairwise([*begins, following]), strict=True):
        yield _chapter(trail, begun._replace(why=change.why), ended, [change.by] if change.by else [])


def _in_turn(spent_s: dict[str, float]) -> str:
    """Reasons that alternated, the longest first."""
    longest = sorted(spent_s, key=lambda why: (-spent_s[why], why))
    others = len(longest) - _NAMED
    more = f" and {others} other reason{'' if others == 1 else 's'}" if others > 0 else ""
    return f"in turn: {'; '.join(longest[:_NAMED])}{more}"


def _chapter(trail: Trail, mark: Mark, following: Mark, by: Sequence[str] = ()) -> Chapter:
    runs = mark.kind in _RUNNING
    beside = None
    if runs or mark.kind is Kind.PAUSED:
        widths = trail.steps.widths(mark.step, following.step)
        beside = None if widths is None else (widths[0] - runs, widths[1] - runs)
    return Chapter(
        kind=mark.kind,
        start_s=mark.at_s,
        end_s=following.at_s,
        why=mark.why,
        steps=following.step - mark.step,
        tokens=max(0, following.computed - mark.computed) if runs or mark.kind is Kind.NOT_KEPT else 0,
        beside=beside,
        by=list(by),
    )
