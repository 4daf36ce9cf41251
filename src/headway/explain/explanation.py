"""Explains why a request took as long as it did.

What it waited for, which requests ran before it or displaced it, its slack over time, how its KV moved, and its
predictions beside the measured values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.core.job import Job
from headway.explain.story import UNDER_WAY, Kind, Story
from headway.explain.telling import NOT_KEPT, tell, waited_s
from headway.explain.track import Displacement, Mark, Track
from headway.explain.trail import Trail

MOST_POINTS = 40
_WITHIN = 4
"""Points between two changes, since slack may fall or recover in between."""

FIRST_TOKEN = "first token"
BETWEEN_TOKENS = "between tokens"
WHOLE_ANSWER = "whole answer"


@dataclass(frozen=True, slots=True)
class SlackPoint:
    """At `at_s` the tightest target, of this name, had `slack_s` seconds left; below 0 it could not be met any more.

    First token: time until it is due, less the rest of the prompt's prefill. Between tokens: time until the next token
    is due at the wanted mean. Whole answer: time until it is due.
    """

    at_s: float
    slack_s: float
    target: str


def slack_points(track: Track, end_s: float, prefill_s: float = 0.0) -> list[SlackPoint]:
    """The tightest slack at each change and four times between two, thinned evenly to MOST_POINTS. O(marks).

    `prefill_s` is the time of the whole prompt.
    """
    if not track.job.slo:
        return []
    moments = _moments(track, end_s)
    points = [point for at_s, mark in moments if (point := _tightest(track, at_s, mark, prefill_s))]
    if len(points) <= MOST_POINTS:
        return points
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(number * step)] for number in range(MOST_POINTS)]


def _moments(track: Track, end_s: float) -> Iterator[tuple[float, Mark]]:
    """Yield times with what was known then, assuming that tokens come evenly between two marks."""
    job = track.job
    arrived = Mark(job.arrival_s, 0, 0, 0, Kind.WAITED)
    ended = Mark(end_s, 0, track.computed, job.num_output_tokens, Kind.ENDED, lost=job.recomputed_tokens)
    for mark, following in pairwise([arrived, *track.marks, ended]):
        lasted_s = following.at_s - mark.at_s
        if lasted_s <= 0:
            continue
        for part in range(_WITHIN):
            share = part / _WITHIN
            computed = mark.computed + int(share * (following.computed - mark.computed))
            outputs = mark.outputs + int(share * (following.outputs - mark.outputs))
            yield (
                mark.at_s + share * lasted_s,
                mark._replace(computed=max(0, computed), outputs=max(0, outputs)),
            )
    yield end_s, ended


def _tightest(track: Track, at_s: float, mark: Mark, prefill_s: float) -> SlackPoint | None:
    slacks = [SlackPoint(at_s, slack_s, target) for target, slack_s in _slacks(track, at_s, mark, prefill_s)]
    return min(slacks, key=lambda point: point.slack_s, default=None)


def _slacks(track: Track, at_s: float, mark: Mark, prefill_s: float) -> Iterator[tuple[str, float]]:
    job = track.job
    if job.first_token_s is None or at_s < job.first_token_s:
        if job.slo.ttft_s is not None:
            yield FIRST_TOKEN, job.arrival_s + job.slo.ttft_s - at_s - prefill_s * _prompt_left(track, mark)
    elif job.slo.tbt_s is not None and job.first_token_s is not None and not _is_whole(track, mark):
        yield BETWEEN_TOKENS, job.first_token_s + job.slo.tbt_s * max(1, mark.outputs) - at_s
    if job.slo.deadline_s is not None:
        yield WHOLE_ANSWER, job.arrival_s + job.slo.deadline_s - at_s


def _prompt_left(track: Track, mark: Mark) -> float:
    """The share of its prompt that is still to be computed."""
    prompt = track.job.num_prompt_tokens
    return max(0, prompt - (mark.computed - mark.lost)) / prompt if prompt else 0.0


def _is_whole(track: Track, mark: Mark) -> bool:
    """Whether its last token is out, so that no other one is due."""
    return mark.kind is Kind.ENDED and track.record is not None


MOST_BEHIND = 5
_RESOLUTION_S = 1e-9


@dataclass(frozen=True, slots=True)
class Waited:
    """Seconds of waiting for one reason."""

    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Behind:
    """A request that held a seat for `seconds` of another's waiting; `overtook`: it arrived later and started first."""

    id: str
    seconds: float
    overtook: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """Expected values beside measured ones; None if there is none, or not yet.

    `prefill_s` is the time of its prompt alone at current step costs; compare with the time from its first start to its
    first token. `judged_steps` are the steps during its stay whose time was predicted beforehand; the two means are
    over them.
    """

    output_tokens: float | None
    low_tokens: float | None
    high_tokens: float | None
    came_tokens: int
    prefill_s: float | None
    took_prefill_s: float | None
    judged_steps: int
    step_s: float | None
    took_step_s: float | None


@dataclass(frozen=True, slots=True)
class Moved:
    """KV of one request, in blocks copied to the host and back, and tokens computed again; bytes if known."""

    to_host_blocks: int
    to_device_blocks: int
    recomputed_tokens: int
    to_host_bytes: int | None
    to_device_bytes: int | None
    recomputed_bytes: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything known about one request.

    `waited_s` is all of its waiting, which `waited` divides by reason (the parts add up); `behind` names the requests
    that held seats meanwhile, longest first, `num_behind` counts them, `num_overtook` those that arrived later and
    started first. `displaced` are the first of `num_displaced` times that its KV left the device.
    """

    story: Story
    waited_s: float
    waited: Sequence[Waited]
    behind: Sequence[Behind]
    num_behind: int
    num_overtook: int
    displaced: Sequence[Displacement]
    num_displaced: int
    slack: Sequence[SlackPoint]
    moved: Moved
    predicted: Predicted


def explain(trail: Trail, id_: str, now_s: float, block_bytes: int = 0) -> Explanation | None:
    """The explanation of a request in the trail; None if it is not there.

    `block_bytes` is the size of a KV block, 0 if unknown. O(tracks kept + its own marks + judged steps): about 2 ms
    with 1,800 tracks.
    """
    track = trail.find(id_)
    if track is None:
        return None
    end_s = track.until_s(now_s)
    total_s = track.waited_until(end_s)
    behind = _behind(trail, track, now_s)
    return Explanation(
        story=tell(trail, track, now_s),
        waited_s=total_s,
        waited=_waited(trail, track, now_s, total_s),
        behind=behind[:MOST_BEHIND],
        num_behind=len(behind),
        num_overtook=sum(one.overtook for one in behind),
        displaced=tuple(track.displacements),
        num_displaced=track.num_displacements,
        slack=slack_points(track, end_s, trail.cost.prefill_s(track.job.num_prompt_tokens)),
        moved=_moved(track, trail.block_size, block_bytes),
        predicted=_predicted(trail, track, end_s),
    )


def _waited(trail: Trail, track: Track, now_s: float, total_s: float) -> list[Waited]:
    """The waiting by reason, longest first; a remainder covers what was not kept."""
    spent_s = waited_s(trail, track, now_s)
    rest_s = total_s - sum(spent_s.values())
    if rest_s > _RESOLUTION_S:
        spent_s[UNDER_WAY if track.found is None else NOT_KEPT] = rest_s
    found = [Waited(why, seconds) for why, seconds in spent_s.items() if seconds > 0]
    return sorted(found, key=lambda one: (-one.seconds, one.why))


def _behind(trail: Trail, track: Track, now_s: float) -> list[Behind]:
    """The requests that held a seat while it waited, and for how long, longest first. O(tracks + their changes)."""
    waits = track.waits(track.until_s(now_s))
    if not waits:
        return []
    found: list[Behind] = []
    for other in trail.tracks:
        until_s = other.until_s(now_s)
        if other is track or other.job.first_scheduled_s is None or until_s <= waits[0][0]:
            continue
        seconds = _overlap_s(waits, other.stays(until_s))
        if seconds > 0:
            found.append(Behind(other.job.id, seconds, _overtook(other.job, track.job)))
    return sorted(found, key=lambda one: (-one.seconds, one.id))


def _overlap_s(waits: Sequence[tuple[float, float]], stays: Sequence[tuple[float, float]]) -> float:
    """Seconds in both, each a list of intervals in order of time. O(n + m)."""
    seconds, wait, stay = 0.0, 0, 0
    while wait < len(waits) and stay < len(stays):
        (wait_start, wait_end), (stay_start, stay_end) = waits[wait], stays[stay]
        seconds += max(0.0, min(wait_end, stay_end) - max(wait_start, stay_start))
        if wait_end < stay_end:
            wait += 1
        else:
            stay += 1
    return seconds


def _overtook(other: Job, job: Job) -> bool:
    if other.arrival_s <= job.arrival_s or other.first_scheduled_s is None:
        return False
    return job.first_scheduled_s is None or other.first_scheduled_s < job.first_scheduled_s


def _moved(track: Track, block_size: int, block_bytes: int) -> Moved:
    job = track.job
    known = block_bytes > 0
    return Moved(
        to_host_blocks=job.swapped_blocks,
        to_device_blocks=track.restored_blocks,
        recomputed_tokens=job.recomputed_tokens,
        to_host_bytes=job.swapped_blocks * block_bytes if known else None,
        to_device_bytes=track.restored_blocks * block_bytes if known else None,
        recomputed_bytes=job.recomputed_tokens * block_bytes // block_size if known else None,
    )


def _predicted(trail: Trail, track: Track, end_s: float) -> Predicted:
    job, estimate = track.job, track.job.predicted_length
    stays = track.stays(end_s)
    judged = [
        step
        for step in trail.judged
        if step.predicted_s > 0 and any(start_s <= step.at_s <= until_s for start_s, until_s in stays)
    ]
    took_prefill_s = None
    if job.first_scheduled_s is not None and job.first_token_s is not None:
        took_prefill_s = job.first_token_s - job.first_scheduled_s
    return Predicted(
        output_tokens=None if estimate is None else estimate.tokens,
        low_tokens=None if estimate is None else estimate.low_tokens,
        high_tokens=None if estimate is None else estimate.high_tokens,
        came_tokens=job.num_output_tokens,
        prefill_s=trail.cost.prefill_s(job.num_prompt_tokens) or None,
        took_prefill_s=took_prefill_s,
        judged_steps=len(judged),
        step_s=sum(step.predicted_s for step in judged) / len(judged) if judged else None,
        took_step_s=sum(step.took_s for step in judged) / len(judged) if judged else None,
    )
