"""A trace on the real engine in this process, in real time: what each request and each step took."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headway.core.hints import MAX_OUTPUT_TOKENS, MAY_MOVE, TENANT, length_hints, target_hints
from headway.core.record import Outcome, Record
from headway.engine.settings import EngineSettings
from headway.engine.vllm.stepped_engine import Hints, SteppedEngine, SteppedStep
from headway.errors import ConfigError
from headway.lab.both_sides import whole
from headway.sim.lengths import LengthSource
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
    engine: SteppedEngine,
    requests: Sequence[TraceRequest],
    settings: EngineSettings,
    seed: int = 0,
    *,
    lengths: LengthSource | None = None,
    own_stops: bool = False,
) -> RealRun:
    """Serve `requests` (in order of arrival), each added when it is due, until all have ended.

    The scheduler is made anew, with an empty prefix cache. Outputs have the trace's lengths; policies see the
    limit that a request declares, else the model's. With `own_stops` requests are served with their own prompts, and
    their answers end where the model ends them, at the limit at the latest. `lengths` predicts each answer as its
    request is added, in this loop, so it should be fast. A request that the engine hands off unstarted is asked once
    more, to stay, with what is left of its targets, as behind a gateway with no other instance; its records are the
    move's and the end's, both under its own id. Takes as long as the trace and its backlog. Raises ConfigError for
    `own_stops` where a request has no prompt.
    """
    engine.schedule_with(settings)
    run = RealRun()
    made_ones = made_requests(engine, requests, seed, own_stops=own_stops)
    pending = deque(made_ones)
    returning = Returning(engine, made_ones)
    feed = PredictionFeed(lengths, [request for request, _ in pending], engine.max_model_len)

    def ended(record: Record) -> None:
        record = returning.ended(record)
        run.records.append(record)
        if record.outcome is not Outcome.HANDED_OFF:
            finished = record.outcome is Outcome.FINISHED
            feed.ended(record.id, record.output_tokens, finished=finished)

    engine.hear_records(ended)
    origin_s = time.monotonic() + START_MARGIN_S
    # vLLM stamps arrivals with the wall clock.
    wall_origin_s = time.time() + START_MARGIN_S
    ended_s: float | None = None
    while pending or engine.busy:
        now_s = time.monotonic() - origin_s
        while pending and pending[0][0].arrival_s <= now_s:
            request, made = pending.popleft()
            made.arrival_time = wall_origin_s + request.arrival_s
            feed.arrives(request, made)
            engine.add(made)
        if not engine.busy:
            ended_s = None
            time.sleep(min(LONGEST_NAP_S, max(0.0, pending[0][0].arrival_s - now_s)))
            continue
        start_s = time.monotonic() - origin_s
        step = engine.step()
        returning.ask_again(wall_origin_s - origin_s)
        if step is None:
            ended_s = None
            continue
        run.steps.append(ServedStep(start_s, step, None if ended_s is None else start_s - ended_s))
        ended_s = time.monotonic() - origin_s
    run.records = [_since(record, origin_s) for record in run.records]
    return run


class Returning:
    """Asks once more, under another id, for what the engine hands off unstarted; the records keep the first."""

    def __init__(self, engine: SteppedEngine, made: Iterable[tuple[TraceRequest, Any]]) -> None:
        self._engine = engine
        self._made = {request.id: (request, its) for request, its in made}
        for _, its in self._made.values():
            sampling = its.sampling_params
            sampling.extra_args = {**(sampling.extra_args or {}), MAY_MOVE: True}
        self._moves: dict[str, Record] = {}
        self._given_up: list[Record] = []

    def ended(self, record: Record) -> Record:
        """The record under the id, arrival and targets of the request it is of."""
        move = self._moves.pop(record.id, None)
        if move is not None:
            return whole((move, record))
        if record.outcome is Outcome.HANDED_OFF and record.first_scheduled_s is None:
            self._given_up.append(record)
        return record

    def ask_again(self, wall_ahead_s: float) -> None:
        """Add those given up since the last call; the wall clock is ahead of the records' by so much."""
        given_up, self._given_up = self._given_up, []
        for move in given_up:
            request, made = self._made[move.id]
            assert move.finished_s is not None, "a record that ended has an end"
            left = replace(request, slo=move.slo.after(move.finished_s - move.arrival_s))
            sampling = made.sampling_params
            hints = {
                **(sampling.extra_args or {}),
                **_hints(left, self._engine.max_model_len),
                MAY_MOVE: False,
            }
            id_ = self._engine.fresh_id()
            again = self._engine.make_request(
                id_, made.prompt_token_ids, sampling.max_tokens, hints, own_stop=not sampling.ignore_eos
            )
            again.arrival_time = wall_ahead_s + move.finished_s
            again.priority = made.priority
            self._moves[id_] = move
            self._engine.add(again)


class PredictionFeed:
    """Puts predictions on requests as they are added, and teaches whoever makes them; nothing if nobody does."""

    def __init__(
        self, lengths: LengthSource | None, requests: Iterable[TraceRequest], max_model_len: int
    ) -> None:
        self._lengths = lengths
        self._max_model_len = max_model_len
        self._requests = {} if lengths is None else {request.id: request for request in requests}

    def arrives(self, request: TraceRequest, made: Any) -> None:
        """Say how long the answer will probably be, in the hints of the engine's own request."""
        if self._lengths is None:
            return
        estimate = self._lengths.predict(request, output_limit(request, self._max_model_len))
        if estimate is not None:
            sampling = made.sampling_params
            sampling.extra_args = {**(sampling.extra_args or {}), **length_hints(estimate)}

    def ended(self, request_id: str, output_tokens: int, *, finished: bool) -> None:
        """Tell how long an answer was if it came to its end."""
        if self._lengths is not None:
            request = replace(self._requests[request_id], output_tokens=output_tokens)
            self._lengths.ended(request, finished=finished)


class RequestMaker(Protocol):
    """An engine of which requests are made before they are added."""

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        ...

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        output_tokens: int,
        hints: Hints | None = None,
        *,
        own_stop: bool = False,
    ) -> Any:
        """vLLM's request, as `stepped_engine.core_request`."""
        ...

    def token_ids(self, prompt: str) -> list[int]:
        """The tokens of a text."""
        ...


def made_requests(
    engine: RequestMaker, requests: Iterable[TraceRequest], seed: int | str, *, own_stops: bool
) -> list[tuple[TraceRequest, Any]]:
    """Each request with the engine's own, of its priority, made ahead of time as the API server's process would.

    With `own_stops` its prompt is the trace's, and counted anew. Raises ConfigError where it has none.
    """
    longest = engine.max_model_len
    made = []
    for request in requests:
        if own_stops:
            ids = engine.token_ids(own_prompt(request))
            request = replace(request, input_tokens=len(ids))
            output_tokens = output_limit(request, longest)
        else:
            ids, output_tokens = prompt_ids(request, seed), request.output_tokens
        its = engine.make_request(
            request.id, ids, output_tokens, _hints(request, longest), own_stop=own_stops
        )
        its.priority = request.priority
        made.append((request, its))
    return made


def own_prompt(request: TraceRequest) -> str:
    """The prompt that the trace has; ConfigError if it has none."""
    if request.prompt is None:
        raise ConfigError(
            f"request {request.id!r} has no prompt, so the model cannot decide how long its answer is; accepted: "
            "traces with prompts"
        )
    return request.prompt


def output_limit(request: TraceRequest, max_model_len: int) -> int:
    """The most tokens an answer may have: what the request declares, else what the model's context leaves."""
    return request.max_output_tokens or max_model_len - request.input_tokens


def _hints(request: TraceRequest, max_model_len: int) -> Hints:
    """What a client says of the request: its targets, its tenant, and the limit of its output, never its length."""
    hints: Hints = {**target_hints(request.slo), MAX_OUTPUT_TOKENS: output_limit(request, max_model_len)}
    if request.tenant:
        hints[TENANT] = request.tenant
    return hints


def prompt_ids(request: TraceRequest, seed: int | str) -> list[int]:
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
