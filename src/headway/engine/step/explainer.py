"""The scheduler's trail: it may fail without the scheduler noticing, and it answers who asks about a request."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.record import Record
from headway.core.view import StepView
from headway.engine.kv.host import worker_block_bytes
from headway.engine.step.shadow_window import about, window
from headway.errors import ConfigError
from headway.explain.explanation import explain
from headway.explain.text import told_data, told_text
from headway.explain.track import Track
from headway.explain.trail import Trail
from headway.predict.steps.learned import JudgedSteps
from headway.predict.steps.step_time import StepTimeModel

logger = logging.getLogger(__name__)

MOST_ANSWERED = 16
"""Requests that one question is answered for, the newest: one of a client's may be several of an engine's, and a client
may name all of its requests alike.
"""
MOST_LISTED = 50
NOT_FOLLOWED = "this server follows no requests (--explain 0, or following them failed: see its log)"
_VLLM_PREFIX = r"(\d+_)?(cmpl-|chatcmpl-)?"
_VLLM_SUFFIX = r"(-\d+)?(-[0-9a-f]{8})?"
"""What vLLM 0.32 puts around a client's id: choice, kind of request; number of the prompt, eight random digits."""
_RESPONSE, _TURN = "resp_", r"(_\d+)?"
"""What the ids of responses begin with, and what their turns are numbered by."""


class Explainer:
    """Follows every request of one scheduler.

    What raises ends the explaining, with the reason in the log, and not the serving; with `check` it is raised on.
    `kept` ended requests can be explained, and all live ones. `now_s` is when the newest output came. `block_bytes`
    are those of a KV block, `about` says what the engine is, for shadows.
    """

    def __init__(
        self,
        *,
        kept: int,
        cost: CostModel,
        clock: Callable[[], float],
        block_bytes: int = 0,
        about: Callable[[], dict[str, Any]] = dict,
        check: bool = False,
    ) -> None:
        self.trail: Trail | None = Trail(kept=kept, cost=cost)
        self.now_s = 0.0
        self._clock = clock
        self._block_bytes = block_bytes
        self._about = about
        self._check = check

    # ---- what the scheduler tells ----------------------------------------------------------------------

    def arrived(self, job: Job, now_s: float) -> None:
        """A request has come."""
        if self.trail is not None:
            try:
                self.trail.arrived(job, now_s)
            except Exception:
                self._give_up()

    def stepped(self, view: StepView, outcome: StepOutcome) -> None:
        """A step was filled, and the ledger has followed it."""
        if self.trail is not None:
            try:
                self.trail.stepped(view, outcome)
            except Exception:
                self._give_up()

    def judging(self, model: StepTimeModel) -> JudgedSteps:
        """A model that tells of each step it learns from, which is over at `now_s`."""
        return JudgedSteps(model, self._judged)

    def _judged(self, shape: BatchShape, predicted_s: float, took_s: float) -> None:
        if self.trail is not None:
            self.trail.judge(self.now_s, shape, predicted_s, took_s)

    def ended(self, record: Record) -> None:
        """A request has ended."""
        if self.trail is not None:
            try:
                self.trail.finished(record)
            except Exception:
                self._give_up()

    def _give_up(self) -> None:
        if self._check:
            raise
        logger.exception("requests are not explained any more; serving goes on")
        self.trail = None

    # ---- what others ask ---------------------------------------------------------------------------------

    def answer(self, question: str, argument: str) -> list[dict[str, Any]] | str:
        """What is known, or why nothing can be said. On the scheduler's own thread, between two steps.

        `explain` a request, the last ones `listed`, or the `window` since some counts.
        """
        trail = self.trail
        if trail is None:
            return NOT_FOLLOWED
        if question == "explain":
            return self._explained(trail, argument)
        return self._window(trail, argument) if question == "window" else self._listed(trail)

    def _window(self, trail: Trail, asked: str) -> list[dict[str, Any]] | str:
        """What a shadow has not been told yet."""
        try:
            told = window(trail, asked, self._clock())
        except ConfigError as error:
            return str(error)
        return [{**told, "engine": self._about(), "block_bytes": self._block_bytes}]

    def _explained(self, trail: Trail, asked: str) -> list[dict[str, Any]] | str:
        """Everything known of the requests of this id, a client's or vLLM's.

        Times are seconds since each arrived, `at` is when that was, in seconds since 1970. Milliseconds a request.
        """
        now_s, wall_s = self._clock(), time.time()
        tracks = islice(tracks_of(trail, asked), MOST_ANSWERED)
        found = [self._told(trail, track, now_s, wall_s) for track in tracks]
        return (
            found or f"nothing known of {asked!r}: live requests and the last --explain N ended ones are kept"
        )

    def _told(self, trail: Trail, track: Track, now_s: float, wall_s: float) -> dict[str, Any]:
        explanation = explain(trail, track.job.id, now_s, self._block_bytes)
        assert explanation is not None, "a track that was just found"
        arrival_s = track.job.arrival_s
        return {
            "at": round(wall_s - (now_s - arrival_s), 3),
            **told_data(explanation.story, explanation, arrival_s),
            "text": told_text(explanation.story, explanation, arrival_s),
        }

    def _listed(self, trail: Trail) -> list[dict[str, Any]]:
        """The last requests, newest first, a line each."""
        now_s, wall_s = self._clock(), time.time()
        newest = sorted(trail.tracks, key=lambda track: -track.job.arrival_s)[:MOST_LISTED]
        return [_line(track, now_s, wall_s) for track in newest]


def explainer_of(scheduler: Any) -> Explainer | None:
    """What follows a scheduler's requests; None if its settings want none followed."""
    kept = scheduler.settings.explain
    if not kept:
        return None
    world_size = scheduler.vllm_config.parallel_config.world_size
    return Explainer(
        kept=kept,
        cost=scheduler.cost,
        clock=lambda: scheduler.clock(),
        block_bytes=worker_block_bytes(scheduler.kv_cache_config) * world_size,
        about=lambda: about(scheduler),
        check=scheduler.settings.check,
    )


def tracks_of(trail: Trail, asked: str) -> Iterator[Track]:
    """The requests that a client means by an id, newest first: it is theirs, or within what vLLM puts around it."""
    exact = trail.find(asked)
    if exact is not None:
        yield exact
        return
    turn = _TURN if asked.startswith(_RESPONSE) else ""
    pattern = re.compile(f"{_VLLM_PREFIX}{re.escape(asked)}{turn}{_VLLM_SUFFIX}")
    newest_first = chain(reversed(trail.live.values()), reversed(trail.ended))
    yield from (track for track in newest_first if pattern.fullmatch(track.job.id))


def _line(track: Track, now_s: float, wall_s: float) -> dict[str, Any]:
    job, record = track.job, track.record
    until_s = track.until_s(now_s)
    ttft_s = None if job.first_token_s is None else round(job.first_token_s - job.arrival_s, 6)
    return {
        "id": job.id,
        "at": round(wall_s - (now_s - job.arrival_s), 3),
        "outcome": "live" if record is None else str(record.outcome),
        "prompt_tokens": job.num_prompt_tokens,
        "output_tokens": job.num_output_tokens,
        "waited_s": round(track.waited_until(until_s), 6),
        "ttft_s": ttft_s,
        "lasted_s": round(until_s - job.arrival_s, 6),
        "preemptions": job.num_preemptions,
    }
