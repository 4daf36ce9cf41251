"""How much time a request had left for its targets, at every change of its life."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from headway.explain.story import Kind
from headway.explain.track import Mark, Track

MOST_POINTS = 40
_WITHIN = 4
"""Points between two changes, since slack that falls or recovers in between is worth seeing."""

FIRST_TOKEN = "first token"
BETWEEN_TOKENS = "between tokens"
WHOLE_ANSWER = "whole answer"


@dataclass(frozen=True, slots=True)
class SlackPoint:
    """At `at_s` the tightest target, of this name, had `slack_s` seconds left; below 0 it could not be met any more.

    First token: until it is due, less what is left of its prompt takes. Between tokens: until
    the next token is due by the mean that is wanted. Whole answer: until it is due.
    """

    at_s: float
    slack_s: float
    target: str


def slack_points(track: Track, end_s: float, prefill_s: float = 0.0) -> list[SlackPoint]:
    """The tightest slack at each change and four times between two; thinned out evenly to MOST_POINTS. O(marks).

    `prefill_s` is what the whole prompt takes.
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
    """Times, each with what was known then: tokens are taken to come evenly between two marks."""
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
