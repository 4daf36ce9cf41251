"""Serves a trace on the live engine in this process, under any scheduler, and measures each request and step."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headway.core.hints import MAX_OUTPUT_TOKENS, MAY_MOVE, PROGRAM, TENANT, length_hints, target_hints
from headway.core.record import Outcome, Record
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import Hints, SteppedEngine, SteppedStep
from headway.errors import ConfigError
from headway.lab.both_sides import whole
from headway.sim.lengths import LengthSource
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

VOCABULARY = range(10, 1000)
"""Token ids of generated prompts; every model has these."""
NAP_S = 0.002
"""Longest sleep of an idle engine before it looks for arrivals again."""
START_MARGIN_S = 0.1
_ANSWERED = ("stop", "length", "repetition")
"""vLLM's finish reasons of complete answers; other reasons mean that the request was given up."""

# ---- the loop: requests are added when they are due, and the engine takes its turns --------------------


class EngineClock(Protocol):
    """The clock of an engine, in seconds of a stream; runs `speed` times as fast as the machine's."""

    speed: float

    def begin(self) -> None:
        """The stream begins now, or soon."""
        ...

    def now_s(self) -> float:
        """Seconds of the stream."""
        ...

    def idle(self, until_s: float) -> None:
        """The engine has no work until then."""
        ...

    def stepped(self) -> None:
        """A step is over."""
        ...


class WallTime:
    """The machine's clock: an idle engine sleeps."""

    speed = 1.0

    def __init__(self) -> None:
        self._origin_s = 0.0

    def begin(self) -> None:
        """The stream begins soon."""
        self._origin_s = time.perf_counter() + START_MARGIN_S

    def now_s(self) -> float:
        """Seconds of the stream."""
        return time.perf_counter() - self._origin_s

    def idle(self, until_s: float) -> None:
        """Sleep until then, or for a moment."""
        time.sleep(min(NAP_S, max(0.0, until_s - self.now_s())))

    def stepped(self) -> None:
        """Nothing: time passes by itself."""


def turns(
    engine: SteppedEngine,
    made: Iterable[tuple[TraceRequest, Any]],
    clock: EngineClock,
    feed: PredictionFeed | None = None,
) -> Iterator[bool]:
    """Add each request when it is due, and yield for each turn of the engine until all have ended.

    Yields whether the engine has had work since the previous turn. The scheduler uses the same clock.
    """
    pending = deque(made)
    engine.scheduler.clock = clock.now_s  # vLLM's own scheduler ignores it
    clock.begin()
    awaited = False
    while pending or engine.busy:
        now_s = clock.now_s()
        while pending and pending[0][0].arrival_s <= now_s:
            request, ready = pending.popleft()
            ready.arrival_time = _wall_s(clock, request.arrival_s)
            if feed is not None:
                feed.arrives(request, ready)
            engine.add(ready)
        if engine.busy:
            yield awaited
            clock.stepped()
            awaited = True
        else:
            clock.idle(pending[0][0].arrival_s)
            awaited = False


def _wall_s(clock: EngineClock, at_s: float) -> float:
    """The wall clock time, with which vLLM stamps arrivals, for a time of the stream."""
    return time.time() - (clock.now_s() - at_s)


# ---- a stream under any scheduler, measured by its answers -----------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request: its position in the stream, its number of tokens, and when they came, in seconds of the run.

    `given_up` is the reason if the engine ended the request before its answer was complete; it may have no first token.
    """

    number: int
    output_tokens: int
    arrival_s: float
    first_token_s: float | None
    finished_s: float
    given_up: str = ""

    @property
    def jct_s(self) -> float:
        """From arrival to the last token."""
        return self.finished_s - self.arrival_s


def serve(
    engine: SteppedEngine,
    requests: Sequence[TraceRequest],
    seed: int | str,
    *,
    lengths: LengthSource | None = None,
    own_stops: bool = False,
    clock: EngineClock | None = None,
    on_tokens: Callable[[str, int, float], None] = lambda request_id, tokens, now_s: None,
    after_step: Callable[[float], None] = lambda now_s: None,
) -> list[ServedRequest]:
    """Serve a stream (in order of arrival) under the installed scheduler until all requests have ended.

    With a `clock` of its own, all times use that, the scheduler's too. With `own_stops` the model ends its answers
    itself; `lengths` predicts each when its request is added. `on_tokens` receives a request's position, its number of
    new tokens, and the time; `after_step` the time after every step.
    """
    made = made_requests(engine, requests, seed, own_stops=own_stops)
    feed = PredictionFeed(lengths, [request for request, _ in made], engine.max_model_len)
    tokens: Counter[str] = Counter()
    first_s: dict[str, float] = {}
    finished_s: dict[str, float] = {}
    given_up: dict[str, str] = {}
    clock = clock or WallTime()
    for _ in turns(engine, made, clock, feed):
        outputs = engine.turn()
        now_s = clock.now_s()
        for output in outputs:
            if output.new_token_ids:
                first_s.setdefault(output.request_id, now_s)
                tokens[output.request_id] += len(output.new_token_ids)
                on_tokens(output.request_id, len(output.new_token_ids), now_s)
            if output.finish_reason is None:
                continue
            finished_s[output.request_id] = now_s
            answered = str(output.finish_reason) in _ANSWERED
            feed.ended(output.request_id, tokens[output.request_id], finished=answered)
            if not answered:
                given_up[output.request_id] = str(output.stop_reason or output.finish_reason)
        after_step(now_s)
    return [
        ServedRequest(
            number, tokens[id_], arrival_s, first_s.get(id_), finished_s[id_], given_up.get(id_, "")
        )
        for number, (id_, arrival_s) in enumerate((each.id, each.arrival_s) for each in requests)
    ]


def served_rps(served: Sequence[ServedRequest]) -> float:
    """Requests a second up to the last one's end: the capacity, if all arrived at once."""
    return len(served) / max(each.finished_s for each in served)


# ---- a stream under Headway's scheduler, measured by its records -----------------------------------------


@dataclass(frozen=True, slots=True)
class ServedStep:
    """One step of a run: its start in seconds of the run, and the gap since the step before.

    `gap_s` is the time between two steps with work at hand (for taking in requests, for one); None for the first step
    after an idle engine.
    """

    start_s: float
    step: SteppedStep
    gap_s: float | None


@dataclass(slots=True)
class RealRun:
    """The results; times count from the run's start, at which the trace's clock is 0."""

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

    Installs a fresh scheduler with an empty prefix cache. Outputs have the trace's lengths; policies see the limit that
    a request declares, else the model's. With `own_stops` requests have their own prompts, and the model ends their
    answers, at the limit at the latest. `lengths` predicts each answer when its request is added, inside this loop, so
    it should be fast. A request that the engine hands off unstarted is submitted once more, to stay, with its remaining
    targets, as behind a gateway without another instance; its two records, of the move and of the end, have its own id.
    Takes as long as the trace and its backlog. Raises ConfigError for `own_stops` if a request has no prompt.
    """
    engine.schedule_with(settings)
    run = RealRun()
    made = made_requests(engine, requests, seed, own_stops=own_stops)
    returning = Returning(engine, made)
    feed = PredictionFeed(lengths, [request for request, _ in made], engine.max_model_len)

    def ended(record: Record) -> None:
        record = returning.ended(record)
        run.records.append(record)
        if record.outcome is not Outcome.HANDED_OFF:
            finished = record.outcome is Outcome.FINISHED
            feed.ended(record.id, record.output_tokens, finished=finished)

    engine.hear_records(ended)
    clock = WallTime()
    ended_s: float | None = None
    for awaited in turns(engine, made, clock, feed):
        start_s = clock.now_s()
        step = engine.step()
        returning.ask_again(clock)
        if step is None:
            ended_s = None
            continue
        gap_s = start_s - ended_s if awaited and ended_s is not None else None
        run.steps.append(ServedStep(start_s, step, gap_s))
        ended_s = clock.now_s()
    return run


class Returning:
    """Resubmits, under another id, what the engine hands off unstarted; the records keep the original id."""

    def __init__(self, engine: SteppedEngine, made: Iterable[tuple[TraceRequest, Any]]) -> None:
        self._engine = engine
        self._made = {request.id: (request, its) for request, its in made}
        for _, its in self._made.values():
            sampling = its.sampling_params
            sampling.extra_args = {**(sampling.extra_args or {}), MAY_MOVE: True}
        self._moves: dict[str, Record] = {}
        self._given_up: list[Record] = []

    def ended(self, record: Record) -> Record:
        """The record with the id, arrival and targets of the original request."""
        move = self._moves.pop(record.id, None)
        if move is not None:
            return whole((move, record))
        if record.outcome is Outcome.HANDED_OFF and record.first_scheduled_s is None:
            self._given_up.append(record)
        return record

    def ask_again(self, clock: EngineClock) -> None:
        """Submit those given up since the last call, with the time at which they were given up as arrival."""
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
            again.arrival_time = _wall_s(clock, move.finished_s)
            again.priority = made.priority
            self._moves[id_] = move
            self._engine.add(again)


class PredictionFeed:
    """Attaches predictions to requests as they are added, and teaches their source; does nothing without one."""

    def __init__(
        self, lengths: LengthSource | None, requests: Iterable[TraceRequest], max_model_len: int
    ) -> None:
        self._lengths = lengths
        self._max_model_len = max_model_len
        self._requests = {} if lengths is None else {request.id: request for request in requests}

    def arrives(self, request: TraceRequest, made: Any) -> None:
        """Put the predicted answer length into the hints of the engine's request."""
        if self._lengths is None:
            return
        estimate = self._lengths.predict(request, output_limit(request, self._max_model_len))
        if estimate is not None:
            sampling = made.sampling_params
            sampling.extra_args = {**(sampling.extra_args or {}), **length_hints(estimate)}

    def ended(self, request_id: str, output_tokens: int, *, finished: bool) -> None:
        """Report the length of an answer that came to its end."""
        if self._lengths is not None:
            # A request that was given up unstarted has no token, and teaches nothing.
            request = replace(self._requests[request_id], output_tokens=max(1, output_tokens))
            self._lengths.ended(request, finished=finished)


def made_requests(
    engine: SteppedEngine, requests: Iterable[TraceRequest], seed: int | str, *, own_stops: bool
) -> list[tuple[TraceRequest, Any]]:
    """Each request with the engine's own, made in advance as the API server's process would.

    With `own_stops` the prompt is the trace's, tokenized anew. Raises ConfigError if there is none.
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
    """The trace's prompt. Raises ConfigError if there is none."""
    if request.prompt is None:
        raise ConfigError(
            f"request {request.id!r} has no prompt, so the model cannot decide how long its answer is; accepted: "
            "traces with prompts"
        )
    return request.prompt


def output_limit(request: TraceRequest, max_model_len: int) -> int:
    """The most tokens of an answer: the request's limit, else what the model's context leaves."""
    return request.max_output_tokens or max_model_len - request.input_tokens


def _hints(request: TraceRequest, max_model_len: int) -> Hints:
    """What a client states about a request: targets, tenant, program and the output's limit, never its length."""
    hints: Hints = {**target_hints(request.slo), MAX_OUTPUT_TOKENS: output_limit(request, max_model_len)}
    if request.tenant:
        hints[TENANT] = request.tenant
    if request.session is not None:
        hints[PROGRAM] = request.session
    return hints


def prompt_ids(request: TraceRequest, seed: int | str) -> list[int]:
    """Generated token ids of the prompt's length; requests share them as far as their prefix blocks agree."""
    ids: list[int] = []
    for block in request.prefix_blocks:
        ids += random.Random(f"{seed} block {block}").choices(VOCABULARY, k=MOONCAKE_BLOCK_TOKENS)
    missing = max(0, request.input_tokens - len(ids))
    ids += random.Random(f"{seed} request {request.id}").choices(VOCABULARY, k=missing)
    return ids[: request.input_tokens]
