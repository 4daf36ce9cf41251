"""The guard apart from an engine; `test_scheduler` has policies that raise while vLLM's scheduler runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.core.job import Job, JobState
from headway.core.ledger import Ledger
from headway.core.plan import Departure, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.counters import Counters
from headway.engine.guard import GuardedPolicy, stock_policy
from headway.engine.steady_plan import SteadyPlan
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


def fails(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("on purpose")


def failing_in(part: str, call: str) -> Policy:
    """Preset `sjf` with one call of one of its parts replaced."""
    policy = build_policy(PRESETS["sjf"])
    setattr(policy, part, type("Failing", (type(getattr(policy, part)),), {call: fails})())
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


@pytest.mark.parametrize(
    ("part", "call", "provoke"),
    [
        ("order", "add", lambda scene: scene.arrive(make_job("new"))),
        ("order", "top", lambda scene: scene.plan()),
        ("order", "touch", lambda scene: scene.guard.touch(scene.ledger.waiting["a"])),
        ("order", "remove", lambda scene: scene.guard.end(scene.ledger.waiting["a"], finished=False)),
        ("order", "observe", lambda scene: scene.guard.observe(StepOutcome(now_s=0.0, plan=StepPlan()))),
        ("eviction", "evict", lambda scene: scene.plan()),
    ],
)
def test_a_part_that_raises_costs_its_policy_and_no_job(
    part: str, call: str, provoke: Callable[[Scene], object], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(failing_in(part, call)) if call != "add" else Scene()
    scene.arrive(make_job("b", prompt=5, arrival_s=2.0), make_job("a", prompt=50, arrival_s=1.0))
    if call == "add":
        scene.guard.policy.order = failing_in(part, call).order
    provoke(scene)
    assert scene.fell_back
    assert scene.counters.policy_faults == 1
    assert "policy 'sjf' raised in" in caplog.text
    assert "ZeroDivisionError: on purpose" in caplog.text
    waiting = {job.id for job in scene.ledger.waiting.values()}
    left = {"a"} if call == "remove" else set()
    assert set(ids(scene.plan().admit)) == waiting - left


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


def test_a_rule_that_sheds_residents_is_replaced() -> None:
    policy = build_policy(PRESETS["sjf"])
    policy.leaving = (
        type("Bad", (), {"add": lambda *_: None, "leave": lambda *_: {RESIDENT: Departure.SHED}})(),
    )
    scene = Scene(policy)
    scene.ledger.residents = [RESIDENT]
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_order_to_stop_is_not_swallowed(error: type[BaseException]) -> None:
    def stops(*_: object) -> None:
        raise error

    policy = build_policy(PRESETS["sjf"])
    policy.batching = type("Stops", (type(policy.batching),), {"plan": stops})()
    with pytest.raises(error):
        Scene(policy).plan()


def test_each_instance_falls_back_to_a_policy_of_its_own() -> None:
    assert stock_policy() is not stock_policy()
    assert stock_policy().name == "vllm"
