"""From what a trail wrote down of a request to the chapters of its story."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from headway.core.record import Outcome, record_of
from headway.core.step_log import ChangeLog
from headway.core.story import (
    IN_QUEUE,
    LASTING,
    UNDER_WAY,
    Chapter,
    Kind,
    Story,
    joined,
    story_so_far,
    whole_story,
)
from headway.core.track import KEPT_FIRST, Mark, Track
from headway.core.trail import Trail

ON_ITS_WAY = "it was on its way to the scheduler"
_RUNNING = frozenset({Kind.PREFILL, Kind.DECODE})


def tell(trail: Trail, track: Track, now_s: float) -> Story:
    """The story of a request that has ended, or so far. O(its marks + what everybody waited for meanwhile)."""
    told = chapters(trail, track, now_s)
    if track.record is not None:
        return whole_story(told, track.record)
    return story_so_far(told, record_of(track.job, Outcome.CANCELLED, now_s))


def chapters(trail: Trail, track: Track, now_s: float) -> list[Chapter]:
    """What is known of a request but for its first token and its end."""
    step = trail.steps.count if track.end_step is None else track.end_step
    end = Mark(track.until_s(now_s), step, track.computed, track.job.num_output_tokens, Kind.ENDED)
    return joined([*_beginning(trail, track), *_stretches(trail, track, end)])


def _beginning(trail: Trail, track: Track) -> Iterator[Chapter]:
    """Its arrival, and what passed until the next step was planned."""
    job, found = track.job, track.found
    why = ""
    if found is not None:
        where = f", at instance {trail.name}" if trail.name else ""
        why = (
            f"{job.num_prompt_tokens:,} prompt tokens{where}: {found.others_waiting:,} others waiting, "
            f"{found.residents:,} of {found.max_resident:,} seats taken, {found.free_blocks:,} blocks free"
        )
    yield Chapter(kind=Kind.ARRIVED, start_s=job.arrival_s, end_s=job.arrival_s, why=why)
    if found is not None:
        yield Chapter(kind=Kind.WAITED, start_s=job.arrival_s, end_s=track.entered_s, why=ON_ITS_WAY)
        yield Chapter(kind=Kind.WAITED, start_s=track.entered_s, end_s=found.at_s, why=UNDER_WAY)


def _stretches(trail: Trail, track: Track, end: Mark) -> Iterator[Chapter]:
    """From the first step it saw on, as it waited; then by its marks."""
    found = track.found
    if found is None:
        return
    began = Mark(found.at_s, found.step, 0, 0, Kind.WAITED)
    for number, (mark, following) in enumerate(pairwise([began, *track.marks, end])):
        if mark.kind not in LASTING:
            yield _instant(track, mark)
        if track.not_kept and number == KEPT_FIRST:
            yield _gap(track, mark, following)
        elif mark.kind in LASTING:
            yield from _stretch(trail, mark, following)
        elif mark.then is not None:
            yield from _stretch(trail, mark._replace(kind=mark.then, why=""), following)


def _instant(track: Track, mark: Mark) -> Chapter:
    by: list[str] = []
    if mark.kind is Kind.PREEMPTED:
        by = [id_ for gone in track.displacements if gone.at_s == mark.at_s for id_ in gone.by]
    return Chapter(kind=mark.kind, start_s=mark.at_s, end_s=mark.at_s, why=mark.why, by=by)


def _gap(track: Track, mark: Mark, following: Mark) -> Chapter:
    """Where there were too many changes to keep them all."""
    return Chapter(
        kind=Kind.NOT_KEPT,
        start_s=mark.at_s,
        end_s=following.at_s,
        why=f"{track.not_kept:,} changes",
        steps=following.step - mark.step,
        tokens=max(0, following.computed - mark.computed),
    )


def _stretch(trail: Trail, mark: Mark, following: Mark) -> Iterator[Chapter]:
    """A stretch in which a request ran, waited or paused; one without a reason of its own by the others' reasons."""
    if mark.kind in _RUNNING or mark.why:
        yield _chapter(trail, mark, following)
        return
    log: ChangeLog = trail.waiting_for if mark.kind in IN_QUEUE else trail.pausing_for
    changes = log.between(mark.at_s, following.at_s)
    if not changes:
        yield _chapter(trail, mark, following)
        return
    begins = [mark._replace(at_s=max(mark.at_s, one.at_s), step=max(mark.step, one.step)) for one in changes]
    if begins[0].at_s > mark.at_s:  # what was true before is not kept any more
        yield _chapter(trail, mark, begins[0])
    for change, (begun, ended) in zip(changes, pairwise([*begins, following]), strict=True):
        yield _chapter(trail, begun._replace(why=change.why), ended, [change.by] if change.by else [])


def _chapter(trail: Trail, mark: Mark, following: Mark, by: Sequence[str] = ()) -> Chapter:
    runs = mark.kind in _RUNNING
    beside = None
    if mark.kind not in IN_QUEUE:
        widths = trail.steps.widths(mark.step, following.step)
        beside = None if widths is None else (widths[0] - runs, widths[1] - runs)
    return Chapter(
        kind=mark.kind,
        start_s=mark.at_s,
        end_s=following.at_s,
        why=mark.why,
        steps=following.step - mark.step,
        tokens=max(0, following.computed - mark.computed) if runs else 0,
        beside=beside,
        by=list(by),
    )
