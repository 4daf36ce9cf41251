"""A request's story as lines that fit a screen, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from headway.core.record import Record
from headway.results.metrics import jct_s, tbt_s, ttft_s
from headway.sim.story import LOOK_AHEAD, Chapter, Kind, Story

MAX_LINES = 20
"""Chapters a text shows, so that with head and targets it fits a screen; longer stories have broader strokes."""

_DECIMALS = 6
_SHOWN = 3  # ids or reasons named in a line
_ALIKE = (frozenset({Kind.WAITED}), frozenset({Kind.SWAPPED}), frozenset({Kind.DECODE, Kind.PAUSED}))
"""Kinds whose neighbours become one chapter where there are too many, in this order."""
_INSTANTS = frozenset(
    {Kind.ARRIVED, Kind.ADMITTED, Kind.PREEMPTED, Kind.FIRST_TOKEN, Kind.HANDED_OFF, Kind.ENDED}
)


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
    """Each target the request had."""
    single_token = record.output_tokens == 1
    rows = (
        ("first token", record.slo.ttft_s, ttft_s(record)),
        ("between tokens", record.slo.tbt_s, 0.0 if single_token else tbt_s(record)),
        ("whole answer", record.slo.deadline_s, jct_s(record)),
    )
    return [
        Verdict(target=name, target_s=target_s, value_s=value_s)
        for name, target_s, value_s in rows
        if target_s is not None
    ]


def story_data(story: Story) -> dict[str, object]:
    """The story for JSON: the request, its targets, every chapter; what does not apply is left out."""
    record = story.record
    return {
        "id": record.id,
        "arrival_s": record.arrival_s,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "outcome": str(record.outcome),
        "instance": record.instance,
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "targets": [{**asdict(verdict), "met": verdict.met} for verdict in verdicts(record)],
        "chapters": [_chapter_data(chapter) for chapter in story.chapters],
    }


def _chapter_data(chapter: Chapter) -> dict[str, object]:
    data: dict[str, object] = {
        "what": str(chapter.kind),
        "start_s": round(chapter.start_s, _DECIMALS),
        "end_s": round(chapter.end_s, _DECIMALS),
    }
    data |= {name: getattr(chapter, name) for name in ("why", "steps", "tokens") if getattr(chapter, name)}
    return data | {
        name: getattr(chapter, name) for name in ("ahead", "beside", "by") if getattr(chapter, name)
    }


def story_text(story: Story) -> str:
    """The story for people, in at most MAX_LINES chapters, a line each, and a line for each target."""
    record = story.record
    head = (
        f"request {record.id}: {_count(record.prompt_tokens, 'prompt token')}, "
        f"{_count(record.output_tokens, 'output token')}, {record.outcome}"
    )
    lines = [head, "", f"{'at':>12}  {'for':>9}  what"]
    lines += _to_fit(story.chapters, record.arrival_s)
    judged = [_judgement(verdict) for verdict in verdicts(record)]
    return "\n".join([*lines, "", *(judged or ["no targets"])])


def _line(chapter: Chapter, arrival_s: float) -> str:
    lasted = "" if chapter.kind in _INSTANTS else seconds(chapter.end_s - chapter.start_s)
    return f"{chapter.start_s:>10.4f} s  {lasted:>9}  {_what(chapter, arrival_s)}"


def _what(chapter: Chapter, arrival_s: float) -> str:
    since = f"{seconds(chapter.start_s - arrival_s)} after it arrived"
    if chapter.kind is Kind.ENDED:
        return f"{chapter.why}, {since}"
    if chapter.kind is Kind.FIRST_TOKEN:
        return f"{chapter.kind}, {since}"
    what = str(chapter.kind)
    if chapter.tokens:
        what += f" of {_count(chapter.tokens, 'token')} in {_count(chapter.steps, 'step')}"
        what += "" if chapter.beside is None else f", {_beside(chapter.beside)}"
    if chapter.why:
        what += f": {chapter.why}"
    if chapter.by:
        what += f" ({_some(chapter.by)})"
    if chapter.ahead is not None and chapter.ahead[1]:
        what += f", {_bounds(chapter.ahead)} ahead of it"
    return what


def _beside(bounds: tuple[int, int]) -> str:
    if not bounds[1]:
        return "alone"
    return f"beside {_bounds(bounds)} other{'' if bounds[1] == 1 else 's'}"


def _some(ids: Sequence[str]) -> str:
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


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def seconds(value_s: float) -> str:
    """Seconds in a unit a reader would choose, to four digits."""
    if value_s >= 1:
        return f"{value_s:.4g} s"
    return f"{value_s * 1e3:.4g} ms" if value_s >= 1e-3 or not value_s else f"{value_s * 1e6:.4g} µs"


# ---- fewer, broader chapters ---------------------------------------------------------------------------


def _to_fit(chapters: Sequence[Chapter], arrival_s: float) -> list[str]:
    """A line a chapter; if they are too many, neighbours that wait become one, then those that decode or pause;
    then the middle is left out.
    """
    for alike in _ALIKE:
        if len(chapters) > MAX_LINES:
            chapters = list(_joined(chapters, alike))
    lines = [_line(chapter, arrival_s) for chapter in chapters]
    if len(lines) <= MAX_LINES:
        return lines
    kept = (MAX_LINES - 1) // 2
    left_out = chapters[kept:-kept]
    preempted = sum(chapter.kind is Kind.PREEMPTED for chapter in left_out)
    gap = f"{len(left_out)} more, {_count(preempted, 'preemption')} among them; --json has them all"
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
        ahead=_hull([member.ahead for member in members]),
        beside=_hull([member.beside for member in members]),
        by=list(dict.fromkeys(by for member in members for by in member.by)),
    )


def _hull(bounds: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    known = [bound for bound in bounds if bound is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
