from __future__ import annotations

import random
from dataclasses import dataclass
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.predict.step_time import OnlineStepTime
from tests.strategies import UNTIMED

READY_STEPS = 20
NOISE = 0.05


@dataclass(frozen=True)
class Device:
    """Steps of this device take base + per_job x jobs + per_token x prefill tokens, and 5 % noise."""

    base_s: float
    per_job_s: float
    per_token_s: float

    def step_s(self, jobs: int, prefill_tokens: int) -> float:
        return self.base_s + self.per_job_s * jobs + self.per_token_s * prefill_tokens

    def teach(self, model: OnlineStepTime, steps: int, seed: int = 0) -> None:
        """Mixed work: 1 to 64 jobs, every second step with up to 512 prefill tokens."""
        rng = random.Random(seed)
        for _ in range(steps):
            jobs, prefill_tokens = rng.randint(1, 64), rng.choice([0, rng.randint(1, 512)])
            model.observe(jobs, prefill_tokens, self.step_s(jobs, prefill_tokens) * rng.gauss(1, NOISE))


FAST = Device(base_s=0.001, per_job_s=0.00003, per_token_s=0.00005)
SLOW = Device(base_s=0.010, per_job_s=0.00020, per_token_s=0.00030)
WORK = [(1, 0), (8, 0), (64, 0), (1, 511), (32, 256)]


def assert_knows(model: OnlineStepTime, device: Device, rel: float = 0.1) -> None:
    for jobs, prefill_tokens in WORK:
        assert model.predict_s(jobs, prefill_tokens) == pytest.approx(
            device.step_s(jobs, prefill_tokens), rel=rel
        )


@pytest.mark.parametrize("device", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("seed", range(3))
def test_known_coefficients_are_recovered_from_noisy_steps(device: Device, seed: int) -> None:
    model = OnlineStepTime()
    device.teach(model, 4_000, seed)
    assert_knows(model, device)


def test_without_noise_the_first_steps_are_enough() -> None:
    # 1 ms + 0.1 ms a job + 0.01 ms a token: 4 jobs and 100 prefill tokens take 1 + 0.4 + 1 = 2.4 ms.
    model = OnlineStepTime()
    for index in range(READY_STEPS):
        jobs, tokens = 1 + index % 5, 50 * (index % 3)
        model.observe(jobs, tokens, 0.001 + 0.0001 * jobs + 0.00001 * tokens)
    assert model.predict_s(4, 100) == pytest.approx(0.0024, rel=1e-3)
    assert model.prefill_s(101) == model.predict_s(1, 100) == pytest.approx(0.0021, rel=1e-3)


def test_nothing_is_predicted_before_twenty_steps() -> None:
    model = OnlineStepTime()
    FAST.teach(model, READY_STEPS - 1)
    assert (model.predict_s(64, 512), model.prefill_s(512)) == (0.0, 0.0)
    FAST.teach(model, 1)
    assert model.observed_steps == READY_STEPS
    assert model.prefill_s(512) > 0


def test_it_follows_a_change_of_load() -> None:
    model = OnlineStepTime()
    FAST.teach(model, 4_000)
    SLOW.teach(model, 12_000, seed=1)
    assert_knows(model, SLOW)
    FAST.teach(model, 16_000, seed=2)
    assert_knows(model, FAST, rel=0.2)


@pytest.mark.parametrize(("jobs", "prefill_tokens"), [(1, 0), (16, 0), (1, 512), (1000, 200_000)])
def test_days_of_one_kind_of_step_neither_spoil_nor_forget_the_others(jobs: int, prefill_tokens: int) -> None:
    model = OnlineStepTime()
    FAST.teach(model, 4_000)
    rng = random.Random(1)
    for _ in range(200_000):
        model.observe(jobs, prefill_tokens, FAST.step_s(jobs, prefill_tokens) * rng.gauss(1, NOISE))
    assert_knows(model, FAST, rel=0.5)
    FAST.teach(model, 2_000, seed=2)
    assert_knows(model, FAST)


steps = st.lists(
    st.tuples(st.integers(1, 1_000), st.integers(0, 200_000), st.floats(0, 1e4)), min_size=20, max_size=200
)


@UNTIMED
@given(seen=steps, jobs=st.integers(0, 10_000), prefill_tokens=st.integers(0, 10**6))
def test_a_prediction_is_a_number_and_never_negative(
    seen: list[tuple[int, int, float]], jobs: int, prefill_tokens: int
) -> None:
    model = OnlineStepTime()
    for step in seen:
        model.observe(*step)
    predicted_s = model.predict_s(jobs, prefill_tokens)
    assert isfinite(predicted_s)
    assert predicted_s >= 0


def test_falling_times_do_not_make_a_prediction_negative() -> None:
    model = OnlineStepTime()
    for index in range(60):
        model.observe(1 + index, 0, max(0.0, 0.05 - 0.001 * index))
    assert model.predict_s(1_000, 0) == 0.0


def test_two_models_fed_alike_are_alike() -> None:
    first, second = OnlineStepTime(), OnlineStepTime()
    for model in (first, second):
        SLOW.teach(model, 500)
    assert [first.predict_s(*work) for work in WORK] == [second.predict_s(*work) for work in WORK]


def test_policies_may_ask_it_for_cost() -> None:
    cost: CostModel = OnlineStepTime()
    assert cost.prefill_s(100) == 0.0
