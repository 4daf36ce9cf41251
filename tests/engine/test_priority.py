"""`--scheduling-policy priority`: exactly vLLM's under preset `vllm`, priority before the order under any other."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.request import Request

from headway.core.plan import Reason
from headway.core.record import Outcome
from headway.engine.model_free import ScriptedRequest, make_scheduler, replay, to_request
from headway.engine.self_check import compare_logs, stock_builder
from headway.policies.presets import PRESETS
from tests.engine.scripts import HearingEngine, assert_empty, scheduler, stream

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching"), [(False, False), (False, True), (True, False), (True, True)]
)


def by_priority(count: int, seed: int = 0) -> list[ScriptedRequest]:
    rng = random.Random(seed)
    return [replace(one, priority=rng.randint(-1, 1)) for one in stream(count, seed, mean_gap_steps=1)]


class Stamping(HearingEngine):
    """Stamps requests as a front end does: each a little later than the one before."""

    stamped = 0

    def add(self, scripted: ScriptedRequest) -> None:
        request: Request = to_request(scripted)
        request.arrival_time = self.now_s - 1e-3 + self.stamped * 1e-6
        self.stamped += 1
        self.scheduler.add_request(request)


def built(asynchronous: bool, prefix_caching: bool = False, **settings: Any) -> Any:
    return scheduler(
        asynchronous=asynchronous,
        prefix_caching=prefix_caching,
        vllm={"scheduling_policy": "priority"},
        **settings,
    )


@MODES
def test_preset_vllm_decides_as_stock_by_priority(asynchronous: bool, prefix_caching: bool) -> None:
    ours = built(asynchronous, prefix_caching)
    stock = make_scheduler(stock_builder(asynchronous), ours.vllm_config, 64)
    script = by_priority(100)
    expected = list(replay(Stamping(stock), script, 10_000))
    parity = compare_logs(expected, list(replay(Stamping(ours), script, 10_000)))
    assert parity.first_difference is None
    assert parity.preemptions > 10
    assert ours.counters.differences[Reason.UNEXPLAINED] == 0


def test_the_comparison_sees_another_order() -> None:
    ours = scheduler()
    stock = make_scheduler(stock_builder(False), built(False).vllm_config, 64)
    script = by_priority(150)
    expected = list(replay(Stamping(stock), script, 10_000))
    assert compare_logs(expected, list(replay(Stamping(ours), script, 10_000))).first_difference is not None


@pytest.mark.parametrize(
    ("policy", "asynchronous"), [(name, number % 2 == 1) for number, name in enumerate(PRESETS)]
)
def test_every_preset_serves_by_priority(policy: str, asynchronous: bool) -> None:
    made = built(asynchronous, policy=policy)
    engine = Stamping(made)
    script = by_priority(15)
    for _ in replay(engine, script, 10_000):
        pass
    assert len(engine.endings()) == len(script)
    assert made.counters.differences[Reason.UNEXPLAINED] == 0
    assert made.counters.policy_faults == made.counters.watchdog_faults == 0
    assert made.ledger.ended == {Outcome.FINISHED: len(script)}
    assert_empty(made)


@pytest.mark.parametrize("policy", ["sjf", "fastserve", "headway", "hrrn"])
def test_a_better_priority_starts_before_what_the_order_prefers(policy: str) -> None:
    made = built(False, policy=policy, batch_width=1)
    engine = Stamping(made)
    engine.add(ScriptedRequest("first", 0, range(10), 3))
    engine.step()
    engine.add(ScriptedRequest("short", 0, range(100, 110), 3, priority=1))
    engine.add(ScriptedRequest("long", 0, range(1_000, 1_400), 50, priority=0))
    started = [next(iter(engine.step().tokens), None) for _ in range(8)]
    assert "long" in started
    assert "short" not in started


def test_a_policy_that_fails_leaves_stock_order_by_priority() -> None:
    made = built(False, policy="sjf")
    engine = Stamping(made)
    for number, priority in enumerate([2, 0, 1]):
        engine.add(ScriptedRequest(str(number), 0, range(number * 1_000, number * 1_000 + 400), 5, priority))
    made.guard.fall_back("a test says so")
    assert list(engine.step().tokens) == ["1", "2"]


def test_requests_keep_the_order_of_their_stamps() -> None:
    wall, clock = iter([1_000.0, 1_000.004, 1_001.0]), iter([5.0, 5.001, 6.0])
    made = scheduler()
    made.clock, made.wall_clock = (lambda: next(clock)), (lambda: next(wall))
    arrivals = []
    for number, stamp in enumerate([999.9990, 999.9991, 1_000.5]):
        request = to_request(ScriptedRequest(str(number), 0, range(5), 1))
        request.arrival_time = stamp
        made.add_request(request)
        arrivals.append(made.jobs[str(number)].arrival_s)
    # The clocks were read 3 ms apart the second time: 4.999 and 4.9991, not 4.999 and 4.9961.
    assert arrivals == pytest.approx([4.999, 4.9991, 5.5])
