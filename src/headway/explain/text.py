"""A request's story and explanation, as lines that fit a screen and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from headway.core.record import Outcome, Record
from headway.explain.explanation import Explanation, Moved, Predicted, SlackPoint
from headway.explain.story import LASTING, LOOK_AHEAD, Chapter, Kind, Story, hull
from headway.explain.track import Displacement
from headway.results.metrics import jct_s, tbt_s, ttft_s

MAX_LINES = 20
"""Most chapters in a text, so that with head and targets it fits a screen; longer stories are condensed."""

_DECIMALS = 6
_SHOWN = 3  # ids or reasons named in a line
_ALIKE = (frozenset({Kind.WAITED}), frozenset({Kind.SWAPPED}), frozenset({Kind.DECODE, Kind.PAUSED}))
"""Kinds whose neighbours are merged if there are too many chapters, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetVerdict:
    """A target and the measured value; `value_s` is None if it never happened."""

    target: str
    target_s: float
    value_s: float | None

    @property
    def met(self) -> bool:
        """Whether it was met; equal to the microsecond counts."""
        return self.value_s is not None and round(self.value_s - self.target_s, _DECIMALS) <= 0


def verdicts(record: Record) -> list[TargetVerdict]:
    """Each target of an ended request; for one that did not finish, judged by its tokens so far."""
    came = replace(record, outcome=Outcome.FINISHED)
    came_s = {
        "first token": ttft_s(came),
        "between tokens": 0.0 if record.output_tokens == 1 else tbt_s(came),
        "whole answer": jct_s(record),
    }
    return [
        TargetVerdict(target=name, target_s=target_s, value_s=came_s[name])
        for name, target_s in _targets(record)
    ]


def story_data(story: Story, origin_s: float = 0.0) -> dict[str, object]:
    """The story for JSON: the request, its targets, every chapter; inapplicable fields are left out.

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
    """The outcome; `live` before the end."""
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


def _judgement(verdict: TargetVerdict) -> str:
    wanted = f"target {verdict.target} within {seconds(verdict.target_s)}"
    if verdict.value_s is None:
        return f"{wanted}: missed, it never came"
    by = seconds(abs(verdict.value_s - verdict.target_s))
    return f"{wanted}: {'met' if verdict.met else 'missed'} by {by} ({seconds(verdict.value_s)})"


def _bounds(bounds: tuple[int, int]) -> str:
    low, high = (f"{value}+" if value == LOOK_AHEAD else f"{value}" for value in bounds)
    return low if low == high else f"{low} to {high}"


def count(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def seconds(value_s: float) -> str:
    """Seconds in the unit that a reader would choose, to four digits."""
    if value_s >= 1:
        return f"{value_s:.4g} s"
    return f"{value_s * 1e3:.4g} ms" if value_s >= 1e-3 or not value_s else f"{value_s * 1e6:.4g} µs"


# ---- condensing long stories ---------------------------------------------------------------------------


def _to_fit(chapters: Sequence[Chapter], arrival_s: float, origin_s: float) -> list[str]:
    """A line for each chapter. If there are too many, waiting neighbours are merged, then decoding or pausing ones.

    If that is not enough, the middle is left out.
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
    """The chapters, with neighbours of these kinds merged."""
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


_MOST_SHOWN = 3
"""Displacements and points of slack in a text."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def told_data(
    story: Story, explanation: Explanation | None = None, origin_s: float = 0.0
) -> dict[str, object]:
    """A story and its explanation for JSON. Times are seconds since `origin_s` of the run's clock."""
    data = story_data(story, origin_s)
    if explanation is None:
        return data
    waited = explanation.waited
    return data | {
        "waited_s": rounded(explanation.waited_s),
        "waited": [{"why": one.why, "seconds": rounded(one.seconds)} for one in waited],
        "behind": [{**asdict(one), "seconds": rounded(one.seconds)} for one in explanation.behind],
        "num_behind": explanation.num_behind,
        "num_overtook": explanation.num_overtook,
        "displaced": [_displacement(one, origin_s) for one in explanation.displaced],
        "num_displaced": explanation.num_displaced,
        "slack": [
            {
                "at_s": rounded(point.at_s - origin_s),
                "slack_s": rounded(point.slack_s),
                "target": point.target,
            }
            for point in explanation.slack
        ],
        "moved": asdict(explanation.moved),
        "predicted": asdict(explanation.predicted),
    }


def _displacement(one: Displacement, origin_s: float) -> dict[str, object]:
    return {
        "at_s": rounded(one.at_s - origin_s),
        "tokens": one.tokens,
        "swapped": one.swapped,
        "why": one.why,
        "by": list(one.by),
    }


def told_text(story: Story, explanation: Explanation | None = None, origin_s: float = 0.0) -> str:
    """A story and its explanation for people. Times are seconds since `origin_s` of the run's clock."""
    lines = [story_text(story, origin_s)]
    if explanation is not None:
        lines += ["", *_waiting(explanation), *_displaced(explanation, origin_s)]
        lines += [*_slack(explanation.slack, origin_s), *_moved(explanation.moved)]
        lines += _predicted(explanation.predicted)
    return "\n".join(lines)


def _waiting(explanation: Explanation) -> list[str]:
    parts = "; ".join(f"{seconds(one.seconds)} {one.why}" for one in explanation.waited)
    lines = [f"waited {seconds(explanation.waited_s)} in all{': ' if parts else ''}{parts}"]
    if explanation.behind:
        named = [
            f"{one.id} for {seconds(one.seconds)}{' (came later, started first)' if one.overtook else ''}"
            for one in explanation.behind
        ]
        others = explanation.num_behind - len(named)
        more = f" and {count(others, 'other')}" if others else ""
        lines.append(f"behind {', '.join(named)}{more}; {explanation.num_overtook} overtook it")
    return lines


def _displaced(explanation: Explanation, origin_s: float) -> list[str]:
    lines = [
        f"displaced at {one.at_s - origin_s:.4f} s{f' by {some(one.by)}' if one.by else ''}: {one.why}"
        for one in explanation.displaced[:_MOST_SHOWN]
    ]
    more = explanation.num_displaced - len(lines)
    return [*lines, f"displaced {count(more, 'more time')}"] if more > 0 else lines


def _slack(points: Sequence[SlackPoint], origin_s: float) -> list[str]:
    """The first point, the tightest and the last."""
    if not points:
        return []
    tightest = min(points, key=lambda point: point.slack_s)
    chosen = {id(point): point for point in (points[0], tightest, points[-1])}
    told = [
        f"{_signed(point.slack_s)} ({point.target}) at {point.at_s - origin_s:.4f} s"
        for point in sorted(chosen.values(), key=lambda point: point.at_s)
    ]
    return [f"slack: {', '.join(told)}"]


def _signed(value_s: float) -> str:
    return f"-{seconds(-value_s)}" if value_s < 0 else seconds(value_s)


def _moved(moved: Moved) -> list[str]:
    parts = []
    if moved.to_host_blocks or moved.to_device_blocks:
        parts.append(f"{count(moved.to_host_blocks, 'block')} to the host{_bytes(moved.to_host_bytes)}")
        parts.append(f"{count(moved.to_device_blocks, 'block')} back{_bytes(moved.to_device_bytes)}")
    if moved.recomputed_tokens:
        again = count(moved.recomputed_tokens, "token")
        parts.append(f"{again} computed again{_bytes(moved.recomputed_bytes)}")
    return [f"KV moved: {', '.join(parts)}"] if parts else []


def _bytes(number: int | None) -> str:
    if number is None:
        return ""
    for size, unit in _UNITS:
        if number >= size:
            return f" ({number / size:.1f} {unit})"
    return f" ({number} bytes)"


def _predicted(predicted: Predicted) -> list[str]:
    lines = []
    if predicted.output_tokens is not None:
        between = f"{predicted.low_tokens:.0f} to {predicted.high_tokens:.0f}"
        lines.append(
            f"answer: {predicted.output_tokens:.0f} tokens predicted ({between}), {predicted.came_tokens} came"
        )
    if predicted.prefill_s is not None and predicted.took_prefill_s is not None:
        lines.append(
            f"first token: {seconds(predicted.took_prefill_s)} after its start; its prompt alone takes "
            f"{seconds(predicted.prefill_s)}"
        )
    if predicted.step_s is not None and predicted.took_step_s is not None:
        lines.append(
            f"steps: {seconds(predicted.step_s)} predicted, {seconds(predicted.took_step_s)} came "
            f"(mean of {predicted.judged_steps})"
        )
    return lines
