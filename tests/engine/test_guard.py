"""The guard apart from an engine; `test_scheduler` has policies that raise while vLLM's scheduler runs."""

from __future__ import annotations

import os
import re
import signal
import time
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import nan
from typing import Any, NoReturn

import pytest

from headway.core.job import Job, JobState
from headway.core.ledger import Ledger
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.step.counters import Counters
from headway.engine.step.guard import GuardedPolicy, stock_policy
from headway.engine.step.slow_calls import SAY_AGAIN_S, SLOW_S, SlowCalls
from headway.engine.step.steady_plan import SteadyPlan
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, build_policy
from tests.strategies import decoding, ids, make_job

VIEW = {"max_run": 8, "max_resident": 8, "max_tokens": 64}


class Scene:
    """A guarded policy with the ledger and the counters of its engine."""

    def __init__(self, policy: Policy | None = None, steady: SteadyPlan | None = None) -> None:
        self.ledger, self.counters = Ledger(), Counters()
        self.guard = GuardedPolicy(policy or build_policy(PRESETS["sjf"]), self.ledger, self.counters, steady)

    def arrive(self, *jobs: Job) -> None:
        for job in jobs:
            self.ledger.arrive(job)
            self.guard.add(job)

    def plan(self, **fields: Any) -> StepPlan:
        view = StepView(
            residents=self.ledger.residents, waiting=self.ledger.waiting.values(), **{**VIEW, **fields}
        )
        return self.guard.plan(view)

    @property
    def fell_back(self) -> bool:
        assert self.guard.fell_back == (self.guard.policy.name == "vllm")
        return self.guard.fell_back


OWN_RAISES = [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError]


def failing_in(part: str, call: str, error: type[BaseException] = ZeroDivisionError) -> Policy:
    """Preset `sjf`, with a leaving rule, and one call of one of its parts replaced."""

    def fails(*_: object, **__: object) -> Any:
        raise error("on purpose")

    policy = build_policy(replace(PRESETS["sjf"], leaving=("expired",)))
    (rule,) = policy.leaving
    sound = rule if part == "leaving" else getattr(policy, part)
    failing = type("Failing", (type(sound),), {call: fails})()
    setattr(policy, part, (failing,) if part == "leaving" else failing)
    return policy


def test_a_sound_policy_is_asked_and_stays() -> None:
    scene = Scene()
    long, short = make_job("long", prompt=50), make_job("short", prompt=5)
    scene.arrive(long, short)
    assert ids(scene.plan().admit) == ["short", "long"]
    scene.guard.touch(long)
    scene.guard.end(short, finished=False)
    scene.ledger.end(short, Outcome.CANCELLED, 0.0)
    assert ids(scene.plan().admit) == ["long"]
    assert (scene.fell_back, scene.counters.policy_faults) == (False, 0)


def test_a_policy_that_would_make_the_same_plan_is_not_asked_but_the_step_counts() -> None:
    scene = Scene(build_policy(PRESETS["predicted"]), SteadyPlan())
    scene.ledger.residents = [decoding("a"), decoding("b")]
    plans = [scene.plan(free_blocks=9) for _ in range(3)]
    assert plans[0] is plans[1] is plans[2]
    assert scene.counters.planned_steps == scene.counters.distrusting_steps == 3
    scene.guard.fall_back("on purpose")
    assert scene.plan(free_blocks=9) is not plans[0]


def test_steps_in_which_predictions_are_not_trusted_are_counted_while_the_policy_goes_by_them() -> None:
    scene = Scene(build_policy(PRESETS["predicted"]))
    scene.plan()
    scene.plan()
    assert scene.counters.distrusting_steps == 2  # no answer has shown yet that they hold
    scene.guard.policy.order.quality.trusted = True  # type: ignore[attr-defined]
    scene.plan()
    scene.guard.fall_back("on purpose")
    scene.plan()
    assert scene.counters.distrusting_steps == 2
    assert Scene(build_policy(PRESETS["sjf"])).counters.distrusting_steps == 0


@pytest.mark.parametrize("error", OWN_RAISES)
@pytest.mark.parametrize(
    ("part", "call", "provoke"),
    [
        ("order", "add", lambda scene: scene.arrive(make_job("new"))),
        ("order", "top", lambda scene: scene.plan()),
        ("order", "touch", lambda scene: scene.guard.touch(scene.ledger.waiting["a"])),
        ("order", "remove", lambda scene: scene.guard.end(scene.ledger.waiting["a"], finished=False)),
        ("order", "end", lambda scene: scene.guard.end(scene.ledger.waiting["a"], finished=False)),
        ("order", "observe", lambda scene: scene.guard.observe(StepOutcome(now_s=0.0, plan=StepPlan()))),
        ("batching", "plan", lambda scene: scene.plan()),
        ("batching", "observe", lambda scene: scene.guard.observe(StepOutcome(now_s=0.0, plan=StepPlan()))),
        ("eviction", "evict", lambda scene: scene.plan()),
        ("eviction", "observe", lambda scene: scene.guard.observe(StepOutcome(now_s=0.0, plan=StepPlan()))),
        ("leaving", "add", lambda scene: scene.arrive(make_job("new"))),
        ("leaving", "remove", lambda scene: scene.guard.touch(scene.ledger.waiting["a"])),
        ("leaving", "leave", lambda scene: scene.plan()),
    ],
)
def test_a_part_that_raises_costs_its_policy_and_no_job(
    part: str,
    call: str,
    provoke: Callable[[Scene], object],
    error: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(failing_in(part, call, error)) if call != "add" else Scene()
    scene.arrive(make_job("b", prompt=5, arrival_s=2.0), make_job("a", prompt=50, arrival_s=1.0))
    if call == "add":
        scene.guard.policy = failing_in(part, call, error)
    provoke(scene)
    assert scene.fell_back
    assert scene.counters.policy_faults == 1
    assert "policy 'sjf' raised in" in caplog.text
    assert f"{error.__name__}: on purpose" in caplog.text
    waiting = {job.id for job in scene.ledger.waiting.values()}
    left = {"a"} if call in ("remove", "end") and part == "order" else set()
    assert set(ids(scene.plan().admit)) == waiting - left


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("order", "top"),
        ("batching", "plan"),
        ("eviction", "evict"),
        ("leaving", "leave"),
        ("order", "observe"),
    ],
)
def test_a_part_that_takes_long_is_named_with_its_time(
    part: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.arrive(make_job("a"))
    policy = build_policy(replace(PRESETS["sjf"], leaving=("expired",)))
    (rule,) = policy.leaving
    sound = rule if part == "leaving" else getattr(policy, part)

    def sleeps(self: Any, *arguments: Any) -> Any:
        time.sleep(SLOW_S)
        while not scene.guard.slow_calls.seen:
            time.sleep(0.01)
        return getattr(super(type(self), self), call)(*arguments)

    slow = type("Sleepy", (type(sound),), {call: sleeps})()
    setattr(policy, part, (slow,) if part == "leaving" else slow)
    policy.add(scene.ledger.waiting["a"])
    scene.guard.policy = policy
    for _ in range(2):
        scene.plan()
        scene.guard.observe(StepOutcome(now_s=0.0, plan=StepPlan()))
    assert not scene.fell_back
    assert scene.counters.slow_calls >= 2
    assert scene.counters.slow_call_s >= 2 * SLOW_S
    (record,) = [
        each for each in caplog.records if "took" in each.message
    ]  # the second one is not said again
    where = "observe" if call == "observe" else "plan"
    assert re.match(rf"policy 'sjf' took \d+\.\d\d s in {where}, last seen in {part} ", record.message)
    assert "sleeps (" in record.message
    assert "test_guard.py:" in record.message


def test_calls_that_were_not_told_of_are_counted_when_the_next_one_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s, counters = 0.0, Counters()
    slow, policy = SlowCalls(counters, lambda: now_s), build_policy(PRESETS["sjf"])
    for took_s, pause_s in ((SLOW_S / 2, 0.0), (1.0, 1.0), (1.0, SAY_AGAIN_S), (2.5, 0.0)):
        slow.begin(policy)
        now_s += took_s
        slow.end("plan")
        now_s += pause_s
    assert (counters.slow_calls, round(counters.slow_call_s, 6)) == (3, 4.5)
    assert [each.message for each in caplog.records] == [
        "policy 'sjf' took 1.00 s in plan: the engine computes nothing meanwhile",
        "policy 'sjf' took 2.50 s in plan: the engine computes nothing meanwhile (1 more since this was last said)",
    ]


@pytest.mark.parametrize("error", OWN_RAISES)
def test_an_order_that_cannot_say_what_it_trusts_costs_its_policy(error: type[BaseException]) -> None:
    policy, asked = build_policy(PRESETS["predicted"]), 0

    def trusts(_: object) -> bool:
        nonlocal asked
        asked += 1
        if asked > 1:  # the guard looks once when it is made
            raise error
        return True

    policy.order = type("Failing", (type(policy.order),), {"trusts_predictions": property(trusts)})()
    scene = Scene(policy)
    scene.arrive(make_job("a"))
    assert ids(scene.plan().admit) == ["a"]
    assert (scene.fell_back, scene.counters.policy_faults) == (True, 1)


@pytest.mark.parametrize("change_s", [nan, None, "soon", True, [1.0]])
def test_an_instant_that_is_none_costs_the_policy_instead_of_keeping_its_plan_for_ever(
    change_s: object,
) -> None:
    policy = build_policy(PRESETS["sjf"])
    policy.batching = type("Bad", (type(policy.batching),), {"next_change_s": lambda *_: change_s})()
    scene = Scene(policy, SteadyPlan())
    scene.ledger.residents = [decoding("a"), decoding("b")]
    assert ids(scene.plan(free_blocks=9).run) == ["a", "b"]
    assert (scene.fell_back, scene.counters.policy_faults) == (True, 1)


def plan_with(**fields: Any) -> Callable[..., StepPlan]:
    """A batching's `plan` whatever the view, with these fields."""
    return lambda *_: StepPlan(**{"token_budget": 64, **fields})


RESIDENT, WAITING = decoding("resident"), make_job("waiting")


@pytest.mark.parametrize(
    "plan",
    [
        plan_with(token_budget=65),
        plan_with(token_budget=-1),
        plan_with(admit=[WAITING, WAITING]),
        plan_with(admit=[RESIDENT]),
        plan_with(run=[WAITING]),
        plan_with(run=[RESIDENT], chunk_cap={RESIDENT: 0}),
        plan_with(run=[RESIDENT, RESIDENT]),
        plan_with(admit=[make_job("ended", state=JobState.ENDED)]),
        plan_with(admit=[make_job("waiting")]),
        plan_with(admit=iter([WAITING])),
        plan_with(token_budget=3.5),
        plan_with(token_budget=nan),
        plan_with(run=[RESIDENT], chunk_cap={RESIDENT: 1.5}),
        lambda *_: None,
    ],
)
def test_a_plan_against_the_rules_is_replaced_by_the_stock_plan(plan: Any) -> None:
    policy = build_policy(PRESETS["sjf"])
    policy.batching = type("Bad", (type(policy.batching),), {"plan": plan})()
    scene = Scene(policy)
    scene.ledger.residents = [RESIDENT]
    scene.arrive(WAITING)
    replaced = scene.plan()
    assert scene.fell_back
    assert scene.counters.policy_faults == 1
    assert (ids(replaced.run), ids(replaced.admit), replaced.token_budget) == (["resident"], ["waiting"], 64)


@pytest.mark.parametrize(
    "leave",
    [{RESIDENT: Departure.SHED}, {WAITING: "garbage"}, {"waiting": Departure.SHED}, [WAITING], None, "w"],
    ids=str,
)
def test_a_rule_whose_answer_breaks_the_rules_is_replaced(leave: object) -> None:
    policy = build_policy(PRESETS["sjf"])
    policy.leaving = (type("Bad", (), {"add": lambda *_: None, "leave": lambda *_: leave})(),)
    scene = Scene(policy)
    scene.ledger.residents = [RESIDENT]
    scene.arrive(WAITING)
    assert dict(scene.plan().leave) == {}
    assert scene.fell_back


def test_stock_starts_with_the_waiting_in_order_of_arrival() -> None:
    scene = Scene()
    late, early = make_job("late", prompt=1, arrival_s=9.0), make_job("early", prompt=60, arrival_s=1.0)
    tie = make_job("a-tie", prompt=30, arrival_s=9.0)
    scene.arrive(late, early, tie)
    scene.ledger.residents = [RESIDENT]
    scene.guard.fall_back("somebody said so")
    plan = scene.plan()
    assert (ids(plan.admit), ids(plan.run)) == (["early", "a-tie", "late"], ["resident"])


def test_falling_back_without_an_error_is_no_fault_of_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.guard.fall_back("work is ready and nothing ran")
    assert scene.counters.policy_faults == 0
    assert [record.getMessage() for record in caplog.records] == [
        "work is ready and nothing ran; serving goes on in stock order"
    ]
    assert not caplog.records[0].exc_info


def test_after_a_fault_jobs_come_and_go_as_before() -> None:
    scene = Scene(failing_in("eviction", "evict"))
    first, second = make_job("first", prompt=60), make_job("second", prompt=1)
    scene.arrive(first)
    scene.plan()
    scene.arrive(second)
    assert ids(scene.plan().admit) == ["first", "second"]
    scene.guard.end(first, finished=False)
    scene.ledger.end(first, Outcome.CANCELLED, 0.0)
    assert ids(scene.plan().admit) == ["second"]
    assert scene.counters.policy_faults == 1


def exits(*_: object) -> NoReturn:
    """A signal handler of a process that is to end."""
    raise SystemExit


@pytest.mark.parametrize(
    ("handler", "error"),
    [(signal.default_int_handler, KeyboardInterrupt), (exits, SystemExit), (partial(exits), SystemExit)],
    ids=["Ctrl-C", "a handler", "a partial"],
)
@pytest.mark.parametrize("waits", [signal.raise_signal, lambda number: os.kill(os.getpid(), number)])
def test_a_signal_that_comes_while_a_part_runs_ends_the_server(
    handler: Any, error: type[BaseException], waits: Callable[[int], None]
) -> None:
    def interrupted(*_: object) -> None:
        waits(signal.SIGINT)
        while True:
            pass  # where Python looks for signals

    policy = build_policy(PRESETS["sjf"])
    policy.batching = type("Slow", (type(policy.batching),), {"plan": interrupted})()
    before = signal.signal(signal.SIGINT, handler)
    try:
        scene = Scene(policy)
        with pytest.raises(error):
            scene.plan()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not scene.fell_back


def test_where_ctrl_c_raises_nothing_an_interrupt_is_the_parts_own() -> None:
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        scene = Scene(failing_in("batching", "plan", KeyboardInterrupt))
        scene.plan()
    finally:
        signal.signal(signal.SIGINT, before)
    assert scene.fell_back


def test_each_instance_falls_back_to_a_policy_of_its_own() -> None:
    assert stock_policy() is not stock_policy()
    assert stock_policy().name == "vllm"
