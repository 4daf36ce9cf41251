from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine, SteppedStep
from headway.experiments.real_engine import prompt_ids, run_real
from headway.traces import TraceRequest
from tests.engine.sizes import SIZES as SMALL

SIZES = replace(SMALL, num_blocks=100, max_num_seqs=4)
STEP_S = 0.02


class Sent:
    """A request as the stub engine has it."""

    def __init__(self, request_id: str, prompt: Sequence[int], output_tokens: int, hints: object) -> None:
        self.id, self.prompt, self.left, self.hints = request_id, prompt, output_tokens, hints
        self.arrival_time = 0.0


class StubEngine:
    """One request at a time, a token a step, every step 20 ms."""

    sizes = SIZES

    def __init__(self) -> None:
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

    def make_request(self, *given: Any) -> Sent:
        return Sent(*given)

    def add(self, request: Sent) -> None:
        self.queue.append(request)
        self.sent.append(request)

    def step(self) -> SteppedStep:
        time.sleep(STEP_S)
        request = self.queue[0]
        request.left -= 1
        shape = BatchShape()
        shape.add(1, 5)
        if not request.left:
            self.queue.popleft()
            now_s = time.monotonic()
            age_s = time.time() - request.arrival_time
            self.on_record(
                Record(
                    id=request.id,
                    arrival_s=now_s - age_s,
                    prompt_tokens=len(request.prompt),
                    outcome=Outcome.FINISHED,
                    finished_s=now_s,
                )
            )
        return SteppedStep(shape=shape, seconds=STEP_S, schedule_s=0.0)


def served(requests: Sequence[TraceRequest]) -> tuple[StubEngine, Any]:
    engine = StubEngine()
    return engine, run_real(cast(SteppedEngine, engine), requests, EngineSettings(policy="sjf"))


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
    }
    assert second.hints == {"headway_max_output_tokens": 1000}


def test_prompts_share_what_their_prefix_blocks_share_and_nothing_else() -> None:
    one = prompt_ids(TraceRequest("1", 0.0, 1100, 1, prefix_blocks=(7, 8)), seed=0)
    two = prompt_ids(TraceRequest("2", 0.0, 1030, 1, prefix_blocks=(7, 9)), seed=0)
    assert (len(one), len(two)) == (1100, 1030)
    assert one[:512] == two[:512]
    assert one[512:560] != two[512:560]
    assert one[1024:1030] != two[1024:1030]
    assert prompt_ids(TraceRequest("1", 0.0, 40, 1), 0) != prompt_ids(TraceRequest("1", 0.0, 40, 1), 1)
    assert len(prompt_ids(TraceRequest("3", 0.0, 100, 1, prefix_blocks=(7,)), 0)) == 100
