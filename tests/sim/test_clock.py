from __future__ import annotations

import gc
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.learned import LearnedCost
from headway.predict.steps.step_time import StepTimeModel
from headway.sim.clock import Clock, EventLoop, Phase
from headway.sim.simulation import System
from tests.sim.worlds import Linear, calibration, limits, request, run


def test_time_then_phase_then_insertion() -> None:
    loop, seen = EventLoop(), []
    for time_s, phase, name in [
        (1.0, Phase.SCHEDULE, "schedule"),
        (1.0, Phase.ARRIVAL, "first arrival"),
        (1.0, Phase.OUTPUT, "output"),
        (1.0, Phase.ARRIVAL, "second arrival"),
        (0.5, Phase.SCHEDULE, "earlier"),
    ]:
        loop.at(time_s, phase, lambda name=name: seen.append((loop.now_s, name)))  # type: ignore[misc]
    loop.run()
    assert seen == [
        (0.5, "earlier"),
        (1.0, "output"),
        (1.0, "first arrival"),
        (1.0, "second arrival"),
        (1.0, "schedule"),
    ]


@pytest.mark.parametrize("time_s", [0.5, float("nan")])
def test_the_past_cannot_be_planned(time_s: float) -> None:
    loop = EventLoop()
    loop.at(1.0, Phase.OUTPUT, lambda: loop.at(time_s, Phase.OUTPUT, lambda: None))
    with pytest.raises(ValueError, match="cannot plan for"):
        loop.run()


SHAPE = BatchShape(num_jobs=1, num_tokens=1, num_decodes=1)


def test_without_residuals_the_law_is_exact() -> None:
    assert Clock(Linear(2.0)).step_s(SHAPE) == 2.0
    assert Clock(Linear(2.0), (1.5,)).step_s(SHAPE) == 3.0


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    def draws(seed: int) -> list[float]:
        clock = Clock(Linear(1.0), (0.5, 1.0, 2.0), seed)
        return [clock.step_s(SHAPE) for _ in range(20)]

    assert draws(1) == draws(1) != draws(2)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9).map(sorted), st.integers(0, 99))
def test_every_draw_lies_between_the_extremes(residuals: list[float], seed: int) -> None:
    clock = Clock(Linear(1.0), residuals, seed)
    assert all(residuals[0] <= clock.step_s(SHAPE) <= residuals[-1] for _ in range(20))


def test_draws_follow_the_quantiles() -> None:
    # Quantiles 0, 1/2, 1 at 0, 1, 3: half of the mass is uniform on 0-1, half on 1-3, so the mean is 1.25.
    clock = Clock(Linear(1.0), (0.0, 1.0, 3.0), seed=5)
    assert abs(fmean(clock.step_s(SHAPE) for _ in range(20_000)) - 1.25) < 0.02


def reachable(root: object) -> set[int]:
    """Ids of every object of ours that can be reached from `root`, modules and classes left out."""
    seen: dict[int, object] = {}
    stack = [root]
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type) or type(thing).__name__ in ("module", "function"):
            continue
        seen[id(thing)] = thing
        stack += gc.get_referents(thing)
    return {key for key, thing in seen.items() if type(thing).__module__.startswith(("headway.", "tests."))}


def test_the_clock_and_what_policies_know_of_cost_share_no_state() -> None:
    known: list[CostModel] = []

    def build(cost: CostModel) -> Policy:
        known.append(cost)
        return build_policy(find_preset("vllm", order="slack"), cost)

    costs: Calibration = calibration(Linear(0.1, 0.001), (0.9, 1.1))
    trace = [request(f"{n}", n / 4, 20 + n % 7, 10) for n in range(60)]
    run(trace, build, System(limits=limits(), calibration=costs))
    (cost,) = known
    assert isinstance(cost, LearnedCost)
    clock = Clock(costs.step, costs.residuals)
    shared = reachable(cost) & (reachable(clock) | reachable(costs))
    assert not shared
    # It has learned the law from what it saw, and not been told: the first steps it could say nothing of.
    assert StepTimeModel().prefill_s(20) == 0.0
    assert abs(cost.prefill_s(20) - 0.12) < 0.03
