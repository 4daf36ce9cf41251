"""A trace on the live engine in this process, under any scheduler: what each request and each step took."""

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
"""Token ids of made-up prompts; every model has these."""
NAP_S = 0.002
"""How long an idle engine waits at most before it looks for arrivals again."""
START_MARGIN_S = 0.1
_ANSWERED = ("stop", "length", "repetition")
"""vLLM's reasons for the end of an answer; the others are those of a request that was given up."""

# ---- the loop: requests are added when they are due, and the engine takes its turns --------------------


class EngineClock(Protocol):
    """The time that an engine goes by, in seconds of a stream; `speed` times as fast as the machine's."""

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
    """The machine's time: an idle engine sleeps."""

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
        """A step costs nothing but its time."""


def turns(
    engine: SteppedEngine,
    made: Iterable[tuple[TraceRequest, Any]],
    clock: EngineClock,
    feed: PredictionFeed | None = None,
) -> Iterator[bool]:
    """Begin the clock and add each request when it is due; ask for a turn of the engine until all have ended.

    Says whether the engine has had work ever since the turn before. The scheduler goes by the clock too.
    """
    pending = deque(made)
    engine.scheduler.clock = clock.now_s  # vLLM's own has no use for it
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
    """The wall clock, by which vLLM stamps arrivals, at a time of the stream."""
    return time.time() - (clock.now_s() - at_s)


# ---- a stream under any scheduler, told by the answers ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request: its place in the stream, how many tokens came, and when, in seconds of the run.

    `given_up` says why, where the engine ended it before its answer was whole; a first token it may never have had.
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
    """Serve a stream (in order of arrival) under the scheduler that is in, until all requests have ended.

    With a `clock` of its own, all times, the scheduler's too, are by that. With `own_stops` the model ends its answers
    itself; `lengths` predicts each as its request is added. `on_tokens` hears of which request how many tokens came,
    and when; `after_step` hears the time after every step.
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
    """Requests a second up to the last one's end: capacity, where all were there at once."""
    return len(served) / max(each.finished_s for each in served)


# ---- a stream under Headway's scheduler, told by its records ---------------------------------------------


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

    def ask_again(self, clock: EngineClock) -> None:
        """Add those given up since the last call, as arriving when they were given up."""
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
    """Puts predictions on requests as they are added, and teaches their source; does nothing without one."""

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
            # A request that was given up unstarted has no token, and teaches nothing.
            request = replace(self._requests[request_id], output_tokens=max(1, output_tokens))
            self._lengths.ended(request, finished=finished)


def made_requests(
    engine: SteppedEngine, requests: Iterable[TraceRequest], seed: int | str, *, own_stops: bool
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
    """What a client says of the request: targets, tenant, program and the output's limit, never its length."""
    hints: Hints = {**target_hints(request.slo), MAX_OUTPUT_TOKENS: output_limit(request, max_model_len)}
    if request.tenant:
        hints[TENANT] = request.tenant
    if request.session is not None:
        hints[PROGRAM] = request.session
    return hints


def prompt_ids(request: TraceRequest, seed: int | str) -> list[int]:
    """Made-up token ids of the prompt's length; requests share them as far as their prefix blocks agree."""
    ids: list[int] = []
    for block in request.prefix_blocks:
        ids += random.Random(f"{seed} block {block}").choices(VOCABULARY, k=MOONCAKE_BLOCK_TOKENS)
    missing = max(0, request.input_tokens - len(ids))
    ids += random.Random(f"{seed} request {request.id}").choices(VOCABULARY, k=missing)
    return ids[: request.input_tokens]
