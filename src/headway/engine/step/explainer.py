"""Follows requests for `headway explain` and for shadows, and answers questions about them."""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.record import Record
from headway.core.view import StepView
from headway.engine.host_kv import worker_block_bytes
from headway.engine.step.ports import StepPort
from headway.errors import ConfigError
from headway.explain.explanation import explain
from headway.explain.story import Kind
from headway.explain.text import told_data, told_text
from headway.explain.track import Track
from headway.explain.trail import JudgedStep, Trail
from headway.predict.steps.learned import JudgedSteps
from headway.predict.steps.step_time import StepTimeModel
from headway.statistics import median

logger = logging.getLogger(__name__)

MOST_ANSWERED = 16
"""Most requests in one answer, newest first. One request of a client may be several of an engine's, and a client
may use one id for all of its requests.
"""
MOST_LISTED = 50
NOT_FOLLOWED = "this server follows no requests (--explain 0, or following them failed: see its log)"
_VLLM_PREFIX = r"(\d+_)?(cmpl-|chatcmpl-)?"
_VLLM_SUFFIX = r"(-\d+)?(-[0-9a-f]{8})?"
"""What vLLM 0.32 adds to a client's id: choice and kind of request; number of the prompt, eight random digits."""
_RESPONSE, _TURN = "resp_", r"(_\d+)?"
"""Prefix of response ids, and the suffix that numbers their turns."""


class Explainer:
    """Follows every request of one engine.

    An error ends the explanations, with the reason in the log, but not the serving; with `check` it is raised. All live
    requests and `kept` ended ones can be explained. `now_s` is the time of the newest output. `block_bytes` is the size
    of a KV block; `about` describes the engine for shadows.
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

    # ---- calls of the scheduler ------------------------------------------------------------------------

    def arrived(self, job: Job, now_s: float) -> None:
        """A request arrived."""
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
        """Wrap a step-time model so that each step it learns from is followed; the step is over at `now_s`."""
        return JudgedSteps(model, self._judged)

    def _judged(self, shape: BatchShape, predicted_s: float, took_s: float) -> None:
        if self.trail is not None:
            self.trail.judge(self.now_s, shape, predicted_s, took_s)

    def ended(self, record: Record) -> None:
        """A request ended."""
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

    # ---- questions from outside ------------------------------------------------------------------------

    def answer(self, question: str, argument: str) -> list[dict[str, Any]] | str:
        """Answer a question, or say why not. Runs on the scheduler's thread, between two steps.

        The questions: `explain` a request, the last requests `listed`, or the `window` since some counts.
        """
        trail = self.trail
        if trail is None:
            return NOT_FOLLOWED
        if question == "explain":
            return self._explained(trail, argument)
        return self._window(trail, argument) if question == "window" else self._listed(trail)

    def _window(self, trail: Trail, asked: str) -> list[dict[str, Any]] | str:
        """What a shadow has not received yet."""
        try:
            told = window(trail, asked, self._clock())
        except ConfigError as error:
            return str(error)
        return [{**told, "engine": self._about(), "block_bytes": self._block_bytes}]

    def _explained(self, trail: Trail, asked: str) -> list[dict[str, Any]] | str:
        """Everything known about the requests with this id, a client's or vLLM's.

        Times are in seconds since each request's arrival; `at` is the arrival in seconds since 1970. Takes milliseconds
        a request.
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


def explainer_of(engine: StepPort) -> Explainer | None:
    """Make the follower of a scheduler's requests; None if its settings turn that off."""
    kept = engine.settings.explain
    if not kept:
        return None
    world_size = engine.vllm_config.parallel_config.world_size
    return Explainer(
        kept=kept,
        cost=engine.cost,
        clock=lambda: engine.clock(),
        block_bytes=worker_block_bytes(engine.kv_cache_config) * world_size,
        about=lambda: about(engine),
        check=engine.settings.check,
    )


def tracks_of(trail: Trail, asked: str) -> Iterator[Track]:
    """The requests that a client means by an id, newest first: equal ids, or ids that vLLM extended."""
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


_HOST_STEPS = 256
"""Number of steps over which the host's time between two steps is measured."""
_COPIED_BLOCKS = 256
_COUNTS = re.compile("([0-9]{1,18})-([0-9]{1,18})")
"""Counts have at most 18 digits: Python refuses to parse numbers with thousands of digits."""
_PARTS = ("order", "batching", "eviction", "leaving")


def window(trail: Trail, asked: str, now_s: float) -> dict[str, Any]:
    """Requests and steps that ended since the counts in `asked` (ENDED-STEPS), the live requests, and the new counts.

    `missed` says how many requests were dropped before they were asked for. Raises ConfigError for a malformed
    question. O(size of the answer), some microseconds a request.
    """
    since, steps_since = _counts(asked)
    new = max(0, trail.num_ended - since)
    kept = min(new, len(trail.ended))
    ended = list(islice(reversed(trail.ended), kept))[::-1]
    num_steps = min(max(0, trail.num_judged - steps_since), len(trail.judged))
    steps = list(islice(reversed(trail.judged), num_steps))[::-1]
    return {
        "now_s": now_s,
        "next": f"{trail.num_ended}-{trail.num_judged}",
        "missed": new - kept,
        "ended": [_request(track) for track in ended],
        "live": [_request(track) for track in trail.live.values()],
        "steps": [_step(step) for step in steps],
        "host_s": host_s(trail),
    }


def _counts(asked: str) -> tuple[int, int]:
    counts = _COUNTS.fullmatch(asked)
    if counts is None:
        raise ConfigError(f"{asked!r} names no counts; accepted: ENDED-STEPS, 0-0 at first")
    return int(counts[1]), int(counts[2])


def _request(track: Track) -> dict[str, Any]:
    """One request: its hints and lengths, and what happened to it so far."""
    job, record = track.job, track.record
    slo = job.slo
    return {
        "id": job.id,
        "arrival_s": job.arrival_s,
        "prompt_tokens": job.num_prompt_tokens,
        "found_tokens": _found_tokens(track),
        "output_tokens": job.num_output_tokens,
        "max_output_tokens": job.max_output_tokens,
        "targets_s": [slo.ttft_s, slo.tbt_s, slo.deadline_s],
        "priority": job.priority,
        "tenant": job.tenant,
        "predicted": _predicted(job),
        "outcome": None if record is None else str(record.outcome),
        "first_token_s": job.first_token_s,
        "finished_s": None if record is None else record.finished_s,
    }


def _found_tokens(track: Track) -> int:
    """Tokens of the prompt whose KV was on the device when the request first started."""
    started = next((mark for mark in track.marks if mark.kind is Kind.ADMITTED), None)
    return 0 if started is None else max(0, started.computed)


def _predicted(job: Job) -> list[float] | None:
    estimate = job.predicted_length
    return None if estimate is None else [estimate.tokens, estimate.low_tokens, estimate.high_tokens]


def _step(step: JudgedStep) -> list[float]:
    shape = step.shape
    return [
        step.took_s,
        shape.num_jobs,
        shape.num_tokens,
        shape.num_decodes,
        shape.decode_context_tokens,
        shape.prefill_context_tokens,
        shape.prefill_pairs,
    ]


def host_s(trail: Trail) -> float:
    """Seconds between two steps in which nothing computes: the median over known steps, without idle times.

    Measured from one schedule to the next, less the step in between; 0 if steps always overlap.
    """
    times_s = trail.steps.times_s(4 * _HOST_STEPS)
    found: list[float] = []
    for step in islice(reversed(trail.judged), _HOST_STEPS):
        following = bisect_left(times_s, step.at_s)
        planned = bisect_right(times_s, step.at_s - step.took_s) - 1
        if planned < 0 or following >= len(times_s) or times_s[following] - step.at_s > step.took_s:
            continue
        found.append(max(0.0, times_s[following] - times_s[planned] - step.took_s))
    return median(found) if found else 0.0


def about(engine: StepPort) -> dict[str, Any]:
    """The scheduler's current policy, and its sizes under the simulator's names."""
    settings, view, swaps = engine.settings, engine.view, engine.swaps
    out_s, in_s = engine.cost.swap_out_s, engine.cost.swap_in_s
    guard = engine.guard
    # The stock policy that took over does not use the parts in the settings, even if these name it too.
    parts = {} if guard.fell_back else {part: getattr(settings, part) for part in _PARTS}
    return {
        "policy": guard.policy.name,
        "parts": parts,
        "priority_first": guard.priority_first,
        "limits": {
            "num_blocks": engine.kv_cache_manager.block_pool.num_gpu_blocks - 1,
            "block_size": view.block_size,
            "max_num_seqs": view.max_resident,
            "max_num_batched_tokens": view.max_tokens,
            "batch_width": settings.batch_width,
            "max_cudagraph_capture_size": engine.cost.steps.graphed_tokens,
            "watermark_blocks": engine.kv_cache_manager.watermark_blocks,
            "prefix_caching": engine.kv_cache_manager.enable_caching,
            "asynchronous": bool(engine.scheduler_config.async_scheduling),
            "host_blocks": 0 if swaps is None else view.host_total_blocks,
        },
        "copies_s": [out_s(1), out_s(_COPIED_BLOCKS), in_s(1), in_s(_COPIED_BLOCKS)],
        "copied_blocks": _COPIED_BLOCKS,
    }
