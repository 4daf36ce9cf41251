"""A trace on the real engine in this process, in real time: what each request and each step took."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.core.record import Record
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine, SteppedStep
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

VOCABULARY = range(10, 1000)
"""Token ids of made-up prompts; every model has these."""
LONGEST_NAP_S = 0.01
START_MARGIN_S = 0.05


@dataclass(frozen=True, slots=True)
class ServedStep:
    """A step of a run: when it began, in seconds of the run, and the time since the step before if it was awaited.

    `gap_s` is what the loop spent between two steps with work at hand (taking in requests, for one); None
    for the first step after an idle engine.
    """

    start_s: float
    step: SteppedStep
    gap_s: float | None


@dataclass(slots=True)
class RealRun:
    """What happened; times count from the run's start, at which the trace's clock is 0."""

    records: list[Record] = field(default_factory=list)
    steps: list[ServedStep] = field(default_factory=list)


def run_real(
    engine: SteppedEngine, requests: Sequence[TraceRequest], settings: EngineSettings, seed: int = 0
) -> RealRun:
    """Serve `requests` (in order of arrival), each added when it is due, until all have ended.

    The scheduler is made anew, with an empty prefix cache. Outputs have the trace's lengths; policies see the
    limit that a request declares, else the model's. Takes as long as the trace and its backlog. Not for a
    policy that ends requests early: the records then have no end of their own in the stream.
    """
    engine.schedule_with(settings)
    run = RealRun()
    engine.hear_records(run.records.append)
    pending = deque(_made(engine, requests, seed))
    origin_s = time.monotonic() + START_MARGIN_S
    # vLLM stamps arrivals with the wall clock.
    wall_origin_s = time.time() + START_MARGIN_S
    ended_s: float | None = None
    while pending or engine.busy:
        now_s = time.monotonic() - origin_s
        while pending and pending[0][0].arrival_s <= now_s:
            request, made = pending.popleft()
            made.arrival_time = wall_origin_s + request.arrival_s
            engine.add(made)
        if not engine.busy:
            ended_s = None
            time.sleep(min(LONGEST_NAP_S, max(0.0, pending[0][0].arrival_s - now_s)))
            continue
        start_s = time.monotonic() - origin_s
        step = engine.step()
        if step is None:
            ended_s = None
            continue
        run.steps.append(ServedStep(start_s, step, None if ended_s is None else start_s - ended_s))
        ended_s = time.monotonic() - origin_s
    run.records = [_since(record, origin_s) for record in run.records]
    return run


def _made(
    engine: SteppedEngine, requests: Iterable[TraceRequest], seed: int
) -> list[tuple[TraceRequest, Any]]:
    """Each request with the engine's own, made ahead of time as the API server's process would."""
    longest = engine.sizes.max_model_len
    return [
        (
            request,
            engine.make_request(
                request.id,
                prompt_ids(request, seed),
                request.output_tokens,
                _hints(request, longest),
            ),
        )
        for request in requests
    ]


def _hints(request: TraceRequest, max_model_len: int) -> dict[str, object]:
    """What a client says of the request: its targets, its tenant, and the limit of its output, never its length."""
    slo = request.slo
    targets_s = {"ttft": slo.ttft_s, "tbt": slo.tbt_s, "deadline": slo.deadline_s}
    hints: dict[str, object] = {
        f"headway_{name}_ms": target_s * 1000 for name, target_s in targets_s.items() if target_s is not None
    }
    if request.tenant:
        hints["headway_tenant"] = request.tenant
    limit = request.max_output_tokens or max_model_len - request.input_tokens
    return {**hints, "headway_max_output_tokens": limit}


def prompt_ids(request: TraceRequest, seed: int) -> list[int]:
    """Made-up token ids of the prompt's length; requests share them as far as their prefix blocks agree."""
    ids: list[int] = []
    for block in request.prefix_blocks:
        ids += random.Random(f"{seed} block {block}").choices(VOCABULARY, k=MOONCAKE_BLOCK_TOKENS)
    missing = max(0, request.input_tokens - len(ids))
    ids += random.Random(f"{seed} request {request.id}").choices(VOCABULARY, k=missing)
    return ids[: request.input_tokens]


def _since(record: Record, origin_s: float) -> Record:
    """The record with its times counted from `origin_s`."""

    def moved(time_s: float | None) -> float | None:
        return None if time_s is None else time_s - origin_s

    return replace(
        record,
        arrival_s=record.arrival_s - origin_s,
        first_scheduled_s=moved(record.first_scheduled_s),
        first_token_s=moved(record.first_token_s),
        finished_s=moved(record.finished_s),
    )
