"""Why a request took as long as it did: as lines for people, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from headway.explain.explanation import Explanation, Moved, Predicted
from headway.explain.slack import SlackPoint
from headway.explain.story import Story
from headway.explain.story_text import count, rounded, seconds, some, story_data, story_text
from headway.explain.track import Displacement

_SHOWN = 3
"""Displacements and points of slack that a text tells of."""
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def told_data(
    story: Story, explanation: Explanation | None = None, origin_s: float = 0.0
) -> dict[str, object]:
    """A story, and what is known beside it, for JSON. Times are seconds since `origin_s` of the run's clock."""
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
    """A story, and what is known beside it, for people. Times are seconds since `origin_s` of the run's clock."""
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
        for one in explanation.displaced[:_SHOWN]
    ]
    more = explanation.num_displaced - len(lines)
    return [*lines, f"displaced {count(more, 'more time')}"] if more > 0 else lines


def _slack(points: Sequence[SlackPoint], origin_s: float) -> list[str]:
    """The first point, the tightest and the last."""
    if not points:
        return []
    chosen = {id(point): point for point in (points[0], min(points, key=_tightness), points[-1])}
    told = [
        f"{_signed(point.slack_s)} ({point.target}) at {point.at_s - origin_s:.4f} s"
        for point in sorted(chosen.values(), key=lambda point: point.at_s)
    ]
    return [f"slack: {', '.join(told)}"]


def _tightness(point: SlackPoint) -> float:
    return point.slack_s


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
