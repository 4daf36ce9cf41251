"""A request's story as lines that fit a screen, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from headway.core.record import Outcome, Record
from headway.explain.story import LASTING, LOOK_AHEAD, Chapter, Kind, Story, hull
from headway.results.metrics import jct_s, tbt_s, ttft_s

MAX_LINES = 20
"""Chapters a text shows, so that with head and targets it fits a screen; longer stories have broader strokes."""

_DECIMALS = 6
_SHOWN = 3  # ids or reasons named in a line
_ALIKE = (frozenset({Kind.WAITED}), frozenset({Kind.SWAPPED}), frozenset({Kind.DECODE, Kind.PAUSED}))
"""Kinds whose neighbours become one chapter where there are too many, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target beside what came of it; `value_s` is None where it never happened."""

    target: str
    target_s: float
    value_s: float | None

    @property
    def met(self) -> bool:
        """Whether it was met; equal to the microsecond is."""
        return self.value_s is not None and round(self.value_s - self.target_s, _DECIMALS) <= 0


def verdicts(record: Record) -> list[Verdict]:
    """Each target the request had, once it has ended: of one that did not finish, beside the tokens that came."""
    came = replace(record, outcome=Outcome.FINISHED)
    came_s = {
        "first token": ttft_s(came),
        "between tokens": 0.0 if record.output_tokens == 1 else tbt_s(came),
        "whole answer": jct_s(record),
    }
    return [
        Verdict(target=name, target_s=target_s, value_s=came_s[name]) for name, target_s in _targets(record)
    ]


def story_data(story: Story, origin_s: float = 0.0) -> dict[str, object]:
    """The story for JSON: the request, its targets, every chapter; what does not apply is left out.

    Times are seconds since `origin_s` of the run's clock.
    """
    record = story.record
    return {
        "id": record.id,
        "arrival_s": rounded(record.arrival_s - origin_s),
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "outcome": outcome_of(story),
        "instance": record.instance,
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "targets": _targets_data(story),
        "chapters": [_chapter_data(chapter, origin_s) for chapter in story.chapters],
    }


def outcome_of(story: Story) -> str:
    """How it ended; `live` if it has not."""
    return "live" if story.live else str(story.record.outcome)


def _targets_data(story: Story) -> list[dict[str, object]]:
    if story.live:
        return [{"target": name, "target_s": target_s} for name, target_s in _targets(story.record)]
    return [{**asdict(verdict), "met": verdict.met} for verdict in verdicts(story.record)]


def _targets(record: Record) -> list[tuple[str, float]]:
    """The targets that it has."""
    slo = record.slo
    named = (("first token", slo.ttft_s), ("between tokens", slo.tbt_s), ("whole answer", slo.deadline_s))
    return [(name, target_s) for name, target_s in named if target_s is not None]


def rounded(value_s: float) -> float:
    """Seconds as they are written."""
    return round(value_s, _DECIMALS)


def _chapter_data(chapter: Chapter, origin_s: float) -> dict[str, object]:
    data: dict[str, object] = {
        "what": str(chapter.kind),
        "start_s": rounded(chapter.start_s - origin_s),
        "end_s": rounded(chapter.end_s - origin_s),
    }
    data |= {name: getattr(chapter, name) for name in ("why", "steps", "tokens") if getattr(chapter, name)}
    return data | {
        name: getattr(chapter, name) for name in ("ahead", "beside", "by") if getattr(chapter, name)
    }


def story_text(story: Story, origin_s: float = 0.0) -> str:
    """The story for people, in at most MAX_LINES chapters, a line each, and a line for each target.

    Times are seconds since `origin_s` of the run's clock.
    """
    record = story.record
    head = (
        f"request {record.id}: {count(record.prompt_tokens, 'prompt token')}, "
        f"{count(record.output_tokens, 'output token')}, {outcome_of(story)}"
    )
    lines = [head, "", f"{'at':>12}  {'for':>9}  what"]
    lines += _to_fit(story.chapters, record.arrival_s, origin_s)
    return "\n".join([*lines, "", *(_judgements(story) or ["no targets"])])


def _judgements(story: Story) -> list[str]:
    if story.live:
        return [
            f"target {name} within {seconds(target_s)}: not yet known"
            for name, target_s in _targets(story.record)
        ]
    return [_judgement(verdict) for verdict in verdicts(story.record)]


def _line(chapter: Chapter, arrival_s: float, origin_s: float) -> str:
    lasted = "" if chapter.kind not in LASTING else seconds(chapter.end_s - chapter.start_s)
    return f"{chapter.start_s - origin_s:>10.4f} s  {lasted:>9}  {_what(chapter, arrival_s)}"


def _what(chapter: Chapter, arrival_s: float) -> str:
    since = f"{seconds(chapter.start_s - arrival_s)} after it arrived"
    if chapter.kind is Kind.ENDED:
        return f"{chapter.why}, {since}"
    if chapter.kind is Kind.FIRST_TOKEN:
        return f"{chapter.kind}, {since}"
    what = str(chapter.kind)
    if chapter.tokens:
        what += f" of {count(chapter.tokens, 'token')} in {count(chapter.steps, 'step')}"
        what += "" if chapter.beside is None else f", {_beside(chapter.beside)}"
    if chapter.why:
        what += f": {chapter.why}"
    if chapter.by:
        what += f", {some(chapter.by)} ran" if chapter.kind is Kind.PREEMPTED else f" ({some(chapter.by)})"
    if chapter.ahead is not None and chapter.ahead[1]:
        what += f", {_bounds(chapter.ahead)} ahead of it"
    return what


def _beside(bounds: tuple[int, int]) -> str:
    if not bounds[1]:
        return "alone"
    return f"beside {_bounds(bounds)} other{'' if bounds[1] == 1 else 's'}"


def some(ids: Sequence[str]) -> str:
    """The first few of several names."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more


def _judgement(verdict: Verdict) -> str:
    wanted = f"target {verdict.target} within {seconds(verdict.target_s)}"
    if verdict.value_s is None:
        return f"{wanted}: missed, it never came"
    by = seconds(abs(verdict.value_s - verdict.target_s))
    return f"{wanted}: {'met' if verdict.met else 'missed'} by {by} ({seconds(verdict.value_s)})"


def _bounds(bounds: tuple[int, int]) -> str:
    low, high = (f"{value}+" if value == LOOK_AHEAD else f"{value}" for value in bounds)
    return low if low == high else f"{low} to {high}"


def count(number: int, what: str) -> str:
    """So many of something, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def seconds(value_s: float) -> str:
    """Seconds in a unit a reader would choose, to four digits."""
    if value_s >= 1:
        return f"{value_s:.4g} s"
    return f"{value_s * 1e3:.4g} ms" if value_s >= 1e-3 or not value_s else f"{value_s * 1e6:.4g} µs"


# ---- fewer, broader chapters ---------------------------------------------------------------------------


def _to_fit(chapters: Sequence[Chapter], arrival_s: float, origin_s: float) -> list[str]:
    """A line a chapter; if they are too many, neighbours that wait become one, then those that decode or pause;
    then the middle is left out.
    """
    for alike in _ALIKE:
        if len(chapters) > MAX_LINES:
            chapters = list(_joined(chapters, alike))
    lines = [_line(chapter, arrival_s, origin_s) for chapter in chapters]
    if len(lines) <= MAX_LINES:
        return lines
    kept = (MAX_LINES - 1) // 2
    left_out = chapters[kept:-kept]
    preempted = sum(chapter.kind is Kind.PREEMPTED for chapter in left_out)
    gap = f"{len(left_out)} more, {count(preempted, 'preemption')} among them; --json has them all"
    return [*lines[:kept], f"{'...':>12}  {'':>9}  ({gap})", *lines[-kept:]]


def _joined(chapters: Sequence[Chapter], alike: frozenset[Kind]) -> Iterator[Chapter]:
    """The chapters, with neighbours of these kinds made one."""
    for is_alike, group in groupby(chapters, key=lambda chapter: chapter.kind in alike):
        members = list(group)
        if is_alike and len(members) > 1:
            yield _join(members)
        else:
            yield from members


def _join(members: Sequence[Chapter]) -> Chapter:
    """One chapter for several; the time spent for each reason is kept."""
    spent_s: dict[str, float] = {}
    for member in members:
        if member.why:
            spent_s[member.why] = spent_s.get(member.why, 0.0) + member.end_s - member.start_s
    longest = sorted(spent_s.items(), key=lambda item: -item[1])
    told = [f"{seconds(spent)} {why}" for why, spent in longest[:_SHOWN]]
    told += [f"{seconds(sum(spent for _, spent in longest[_SHOWN:]))} otherwise"] * (len(longest) > _SHOWN)
    decodes = any(member.kind is Kind.DECODE for member in members)
    kind = Kind.DECODE if decodes else members[0].kind
    paused = "paused " if told and kind is Kind.DECODE else ""
    return replace(
        members[0],
        kind=kind,
        end_s=members[-1].end_s,
        why=paused + "; ".join(told),
        steps=sum(member.steps for member in members),
        tokens=sum(member.tokens for member in members),
        ahead=hull([member.ahead for member in members]),
        beside=hull([member.beside for member in members]),
        by=list(dict.fromkeys(by for member in members for by in member.by)),
    )
