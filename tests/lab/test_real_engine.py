from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.hints import read_hints
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine, SteppedStep
from headway.errors import ConfigError
from headway.lab.real_engine import ServedRequest, prompt_ids, run_real, serve, served_rps, turns
from headway.traces import TraceRequest
from tests.engine.sizes import SIZES as SMALL

SIZES = replace(SMALL, num_blocks=100, max_num_seqs=4)
STEP_S = 0.02
OWN_TOKENS = 5


class Sent:
    """A request as the stub engine has it."""

    def __init__(
        self, request_id: str, prompt: Sequence[int], output_tokens: int, hints: dict[str, object]
    ) -> None:
        self.id, self.prompt, self.left, self.limit = request_id, prompt, output_tokens, output_tokens
        self.prompt_token_ids = list(prompt)
        self.sampling_params = SimpleNamespace(extra_args=hints, max_tokens=output_tokens, ignore_eos=True)
        self.arrival_time = 0.0
        self.made = 0

    @property
    def hints(self) -> dict[str, object]:
        hints: dict[str, object] = self.sampling_params.extra_args
        return hints


class StubEngine:
    """One request at a time, a token a step, every step 20 ms; answers that stop by themselves have `OWN_TOKENS`."""

    sizes = SIZES
    max_model_len = SIZES.max_model_len

    def __init__(self) -> None:
        self.scheduler = SimpleNamespace(clock=None)
        self.queue: deque[Sent] = deque()
        self.sent: list[Sent] = []
        self.policy = ""
        self.on_record: Callable[[Record], None] = lambda record: None

    @property
    def busy(self) -> bool:
        return bool(self.queue)

    def schedule_with(self, settings: EngineSettings) -> None:
        self.policy = settings.policy

    def hear_records(self, on_record: Callable[[Record], None]) -> None:
        self.on_record = on_record

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        output_tokens: int,
        hints: dict[str, object],
        *,
        own_stop: bool,
    ) -> Sent:
        made = Sent(request_id, prompt, output_tokens, hints)
        if own_stop:
            made.left = OWN_TOKENS
        return made

    def token_ids(self, prompt: str) -> list[int]:
        return [len(word) for word in prompt.split()]

    def add(self, request: Sent) -> None:
        self.queue.append(request)
        self.sent.append(request)

    def step(self) -> SteppedStep:
        time.sleep(STEP_S)
        request = self.queue[0]
        request.left -= 1
        request.made += 1
        shape = BatchShape()
        shape.add(1, 5)
        if not request.left:
            self.queue.popleft()
            now_s = self.scheduler.clock()
            age_s = time.time() - request.arrival_time
            self.on_record(
                Record(
                    id=request.id,
                    arrival_s=now_s - age_s,
                    prompt_tokens=len(request.prompt),
                    output_tokens=request.made,
                    outcome=Outcome.FINISHED,
                    finished_s=now_s,
                )
            )
        return SteppedStep(shape=shape, seconds=STEP_S, schedule_s=0.0)


class GivesUp(StubEngine):
    """Hands off, as a step begins, who waits behind another, unless it is to stay."""

    def fresh_id(self) -> str:
        return f"again-{len(self.sent)}"

    def step(self) -> SteppedStep:
        for request in [request for request in list(self.queue)[1:] if read_hints(request.hints).may_move]:
            self.queue.remove(request)
            now_s = self.scheduler.clock()
            self.on_record(
                Record(
                    id=request.id,
                    arrival_s=now_s - (time.time() - request.arrival_time),
                    prompt_tokens=len(request.prompt),
                    outcome=Outcome.HANDED_OFF,
                    finished_s=now_s,
                    slo=read_hints(request.hints).slo,
                )
            )
        return super().step()


def served(requests: Sequence[TraceRequest], **how: Any) -> tuple[StubEngine, Any]:
    engine = StubEngine()
    return engine, run_real(cast(SteppedEngine, engine), requests, EngineSettings(policy="sjf"), **how)


class Twice:
    """Predicts twice what the last finished answer had, and nothing before one has finished."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.taught: list[tuple[str, int, bool]] = []

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        self.asked.append((request.id, max_output_tokens))
        return LengthEstimate.around(2.0 * self.taught[-1][1]) if self.taught else None

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        self.taught.append((request.id, request.output_tokens, finished))


def test_lengths_are_predicted_as_requests_join_and_learned_as_they_end() -> None:
    lengths = Twice()
    engine, _ = served(
        [TraceRequest("a", 0.0, 8, 3, max_output_tokens=50), TraceRequest("b", 0.2, 9, 2)], lengths=lengths
    )
    rest = SIZES.max_model_len - 9
    assert lengths.asked == [("a", 50), ("b", rest)]
    assert lengths.taught == [("a", 3, True), ("b", 2, True)]
    first, second = engine.sent
    assert "headway_length" not in first.hints
    # Twice the first one's three tokens, off by a factor of two either way.
    assert read_hints(second.hints).predicted_length == LengthEstimate(6.0, 3.0, 12.0)


def test_a_model_that_stops_by_itself_gets_its_own_prompt_and_all_the_room_there_is() -> None:
    lengths = Twice()
    requests = [
        TraceRequest("a", 0.0, 8, 3, prompt="one two three"),
        TraceRequest("b", 0.0, 8, 3, max_output_tokens=7, prompt="four"),
    ]
    engine, run = served(requests, lengths=lengths, own_stops=True)
    first, second = engine.sent
    assert (list(first.prompt), first.limit) == ([3, 3, 5], SIZES.max_model_len - 3)
    assert (list(second.prompt), second.limit) == ([4], 7)
    assert [record.output_tokens for record in run.records] == [OWN_TOKENS, OWN_TOKENS]
    assert [tokens for _, tokens, _ in lengths.taught] == [OWN_TOKENS, OWN_TOKENS]


def test_a_model_cannot_stop_by_itself_without_a_prompt() -> None:
    with pytest.raises(ConfigError, match=r"request 'a' has no prompt.*; accepted: traces with prompts"):
        served([TraceRequest("a", 0.0, 8, 3)], own_stops=True)


def test_what_is_handed_off_is_asked_once_more_to_stay_with_what_is_left_of_its_time() -> None:
    slo = Slo(ttft_s=0.5, tbt_s=0.1)
    engine = GivesUp()
    requests = [TraceRequest("a", 0.0, 8, 5), TraceRequest("b", 0.03, 9, 2, slo=slo, tenant="t")]
    run = run_real(cast(SteppedEngine, engine), requests, EngineSettings(policy="ascendra-lp"))
    # b is due at 30 ms, joins at 40 ms, when a's second step is over, and is given up at once.
    assert [record.outcome for record in run.records] == [
        Outcome.HANDED_OFF,
        Outcome.FINISHED,
        Outcome.FINISHED,
    ]
    move, _, end = run.records
    assert (move.id, end.id, end.slo, end.output_tokens) == ("b", "b", slo, 2)
    assert end.arrival_s == pytest.approx(0.03, abs=0.002)
    _, first, again = engine.sent
    assert (again.prompt, again.limit) == (first.prompt, first.limit)
    hints = read_hints(again.hints)
    assert (hints.may_move, hints.tenant, hints.slo.tbt_s) == (False, "t", 0.1)
    assert move.finished_s is not None
    assert hints.slo.ttft_s == pytest.approx(0.5 - (move.finished_s - move.arrival_s), abs=1e-6)


def test_requests_join_when_they_are_due_and_times_count_from_the_start() -> None:
    engine, run = served(
        [TraceRequest("a", 0.0, 8, 3), TraceRequest("b", 0.03, 9, 2), TraceRequest("c", 0.3, 7, 1)]
    )
    assert engine.policy == "sjf"
    assert [record.id for record in run.records] == ["a", "b", "c"]
    assert [record.arrival_s for record in run.records] == pytest.approx([0.0, 0.03, 0.3], abs=0.002)
    # The third step ends the first request, and begins and ends on the same clock.
    third, fourth = run.steps[2:4]
    assert third.start_s + STEP_S <= run.records[0].finished_s <= fourth.start_s
    assert run.records[2].finished_s >= 0.3 + STEP_S


def test_a_step_awaited_has_a_gap_and_one_after_idle_has_none() -> None:
    _, run = served([TraceRequest("a", 0.0, 8, 2), TraceRequest("b", 0.3, 9, 2)])
    gaps = [step.gap_s is None for step in run.steps]
    assert gaps == [True, False, True, False]
    for before, step in pairwise(run.steps):
        assert step.gap_s is None or 0 <= step.gap_s <= step.start_s - before.start_s - STEP_S


def test_policies_hear_of_targets_and_the_declared_limit_but_not_of_the_length() -> None:
    slo = Slo(ttft_s=0.5, deadline_s=4.0)
    engine, _ = served(
        [
            TraceRequest("a", 0.0, 8, 3, max_output_tokens=50, tenant="chat", slo=slo),
            TraceRequest("b", 0.0, 24, 3),
        ]
    )
    first, second = engine.sent
    assert first.hints == {
        "headway_ttft_ms": 500.0,
        "headway_deadline_ms": 4000.0,
        "headway_tenant": "chat",
        "headway_max_output_tokens": 50,
        "headway_may_move": True,
    }
    assert second.hints == {"headway_max_output_tokens": 1000, "headway_may_move": True}


def test_prompts_share_what_their_prefix_blocks_share_and_nothing_else() -> None:
    one = prompt_ids(TraceRequest("1", 0.0, 1100, 1, prefix_blocks=(7, 8)), seed=0)
    two = prompt_ids(TraceRequest("2", 0.0, 1030, 1, prefix_blocks=(7, 9)), seed=0)
    assert (len(one), len(two)) == (1100, 1030)
    assert one[:512] == two[:512]
    assert one[512:560] != two[512:560]
    assert one[1024:1030] != two[1024:1030]
    assert prompt_ids(TraceRequest("1", 0.0, 40, 1), 0) != prompt_ids(TraceRequest("1", 0.0, 40, 1), 1)
    assert len(prompt_ids(TraceRequest("3", 0.0, 100, 1, prefix_blocks=(7,)), 0)) == 100


# ---- under any scheduler, by a clock of its own --------------------------------------------------------


class HandClock:
    """A clock that goes on by a second a turn, and skips what an idle engine would wait for."""

    speed = 1.0

    def __init__(self) -> None:
        self.at_s = -1.0
        self.steps = 0

    def begin(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def idle(self, until_s: float) -> None:
        self.at_s = until_s

    def stepped(self) -> None:
        self.steps += 1


class AnsweringEngine(StubEngine):
    """A token a turn for the request that is first, each a second of the clock; `shed` ones are given up at once."""

    def __init__(self, clock: HandClock, shed: Sequence[str] = ()) -> None:
        super().__init__()
        self.hand, self.shed = clock, shed

    def turn(self) -> list[Any]:
        self.hand.at_s += 1.0
        request = self.queue[0]
        given_up = request.id in self.shed
        request.left = 0 if given_up else request.left - 1
        ended = not request.left
        if ended:
            self.queue.popleft()
        reason = ("abort" if given_up else "length") if ended else None
        said = "headway:shed" if given_up else None
        tokens = [] if given_up else [7]
        return [
            SimpleNamespace(
                request_id=request.id, new_token_ids=tokens, finish_reason=reason, stop_reason=said
            )
        ]


def test_a_stream_is_served_by_its_own_clock_and_told_by_its_answers() -> None:
    clock, lengths = HandClock(), Twice()
    engine = AnsweringEngine(clock, shed=("c",))
    requests = [TraceRequest("a", 0.0, 8, 2), TraceRequest("b", 1.0, 9, 1), TraceRequest("c", 50.0, 7, 3)]
    heard: list[tuple[str, int, float]] = []
    looks: list[float] = []
    found = serve(
        cast(SteppedEngine, engine),
        requests,
        seed=0,
        lengths=lengths,
        clock=clock,
        on_tokens=lambda *said: heard.append(said),
        after_step=looks.append,
    )
    # a's tokens come at 1 and 2 s, b's at 3 s; nothing waits for c, which is given up a second after it came.
    assert found == [
        ServedRequest(0, 2, 0.0, 1.0, 2.0),
        ServedRequest(1, 1, 1.0, 3.0, 3.0),
        ServedRequest(2, 0, 50.0, None, 51.0, "headway:shed"),
    ]
    assert [each.jct_s for each in found] == [2.0, 2.0, 1.0]
    assert heard == [("a", 1, 1.0), ("a", 1, 2.0), ("b", 1, 3.0)]
    assert looks == [1.0, 2.0, 3.0, 51.0]
    assert clock.steps == 4
    assert engine.scheduler.clock == clock.now_s
    assert lengths.taught == [("a", 2, True), ("b", 1, True), ("c", 1, False)]
    assert served_rps(found[:2]) == pytest.approx(2 / 3)


def test_a_turn_is_awaited_while_the_engine_has_work() -> None:
    clock = HandClock()
    engine = AnsweringEngine(clock)
    made = [
        (request, engine.make_request(request.id, [1], request.output_tokens, {}, own_stop=False))
        for request in (TraceRequest("a", 0.0, 1, 2), TraceRequest("b", 9.0, 1, 1))
    ]
    awaited = []
    for still in turns(cast(SteppedEngine, engine), made, clock):
        awaited.append(still)
        engine.turn()
    assert awaited == [False, True, False]
