from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.predict.models.known_models import model_shape
from headway.predict.models.roofline import Roofline
from headway.predict.steps.hardware import calibration
from headway.predict.steps.learned import LearnedCost
from headway.predict.steps.step_time import READY_STEPS, StepSecondsPrediction, StepTimeModel
from tests.predict.shapes import batch, batches, decodes
from tests.strategies import UNTIMED

LLAMA = model_shape("Llama-3.1-8B")
NOISE = 0.03


@dataclass(frozen=True)
class Device:
    """Steps of this device take base + per job + the larger of traffic and arithmetic, and 3 % noise."""

    base_s: float
    per_job_s: float
    bytes_per_s: float
    flops_per_s: float

    def step_s(self, shape: BatchShape) -> float:
        work = Roofline(LLAMA)
        device_s = max(work.of(shape).bytes / self.bytes_per_s, work.of(shape).flops / self.flops_per_s)
        return self.base_s + self.per_job_s * shape.num_jobs + device_s

    def teach(self, model: StepTimeModel, steps: int, seed: int = 0, stalls: float = 0.0) -> None:
        """Mixed work; a share of `stalls` steps take ten times as long."""
        rng = random.Random(seed)
        for _ in range(steps):
            shape = mixed(rng)
            slow = 10 if rng.random() < stalls else 1
            model.observe(shape, self.step_s(shape) * rng.gauss(1, NOISE) * slow)


def mixed(rng: random.Random) -> BatchShape:
    """1 to 64 decodes, two in five steps with a chunk beside them."""
    shape = decodes(rng.choice([1, 4, 16, 64]), rng.randint(50, 3000))
    if rng.random() < 0.4:
        shape.add(rng.choice([128, 512, 2048]), rng.choice([0, 0, 1024]))
    return shape


FAST = Device(base_s=0.001, per_job_s=0.00003, bytes_per_s=1.5e12, flops_per_s=200e12)
SLOW = Device(base_s=0.010, per_job_s=0.00020, bytes_per_s=0.4e12, flops_per_s=60e12)
WORK = [decodes(1, 500), decodes(16, 2000), decodes(64, 1000), batch((2048, 0)), batch((512, 512), (1, 900))]


def assert_knows(model: StepTimeModel, device: Device, rel: float = 0.1) -> None:
    for shape in WORK:
        assert model.step_s(shape) == pytest.approx(device.step_s(shape), rel=rel)


@pytest.mark.parametrize("device", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("stalls", [0.0, 0.05])
def test_a_law_is_learned_from_noisy_steps_with_stalls(device: Device, stalls: float) -> None:
    model = StepTimeModel(LLAMA)
    device.teach(model, 1_500, stalls=stalls)
    assert_knows(model, device)


@pytest.mark.parametrize("name", ["a100-80g", "h100", "l40s", "rtx-pro-6000"])
def test_the_bend_and_the_price_of_mixing_are_learned(name: str) -> None:
    # Products wait for arithmetic from some number of tokens on, each device from another; and on the A100 and the
    # RTX PRO decodes beside a prompt take up to twice what they take alone.
    law, model, rng = calibration(name, LLAMA).step, StepTimeModel(LLAMA), random.Random(3)
    for _ in range(800):
        shape = mixed(rng)
        model.observe(shape, law.step_s(shape) * rng.gauss(1, NOISE))
    for shape in (decodes(16, 2000), decodes(64, 1000), batch((1024, 0), *[(1, 1000)] * 64)):
        assert model.step_s(shape) == pytest.approx(law.step_s(shape), rel=0.04)


def test_five_minutes_of_slow_traffic_are_enough() -> None:
    # 300 s of steps that take 0.5 s and more are fewer than 600, of which one in four is learned.
    model = StepTimeModel(LLAMA)
    SLOW.teach(model, 150, stalls=0.05)
    assert_knows(model, SLOW, rel=0.15)


def test_a_stall_among_the_first_steps_does_not_spoil_them() -> None:
    model = StepTimeModel(LLAMA)
    rng = random.Random(3)
    shapes = [mixed(rng) for _ in range(READY_STEPS)]
    for index, shape in enumerate(shapes):
        model.observe(shape, FAST.step_s(shape) * (30 if index == 0 else 1))
    for shape in shapes:
        assert model.step_s(shape) == pytest.approx(FAST.step_s(shape), rel=0.15)


def test_a_device_a_thousand_times_slower_than_nominal_is_learned_as_soon() -> None:
    # A processor: features at nominal peaks are then small beside the seconds, which is no reason to doubt them.
    model = StepTimeModel(LLAMA)
    device = Device(base_s=0.002, per_job_s=0.0002, bytes_per_s=20e9, flops_per_s=0.3e12)
    device.teach(model, 60)
    for shape in (batch((2048, 0)), batch((512, 512), (1, 900))):
        assert model.step_s(shape) == pytest.approx(device.step_s(shape), rel=0.1)


def test_attention_may_cost_more_than_its_operations_say() -> None:
    # Long prompts alone hold far more attention for their tokens than short ones side by side.
    work = Roofline(LLAMA)

    def true_s(shape: BatchShape) -> float:
        return 0.01 + (work.of(shape).flops + 4 * work.of(shape).prefill_attention_flops) / 100e12

    model = StepTimeModel(LLAMA)
    rng = random.Random(5)
    for _ in range(200):
        tokens = rng.choice([256, 512, 1024, 2048, 4096, 8192])
        shape = batch(*[(tokens, 0)] * rng.choice([1, 8192 // tokens]))
        model.observe(shape, true_s(shape) * rng.gauss(1, NOISE))
    for shape in (batch((8192, 0)), batch(*[(256, 0)] * 32), batch((1024, 0))):
        assert model.step_s(shape) == pytest.approx(true_s(shape), rel=0.03)


@pytest.mark.parametrize(("graphed", "sees_it"), [(128, True), (512, False), (0, False)])
def test_what_a_step_beyond_cuda_graphs_costs_is_learned_where_they_end(graphed: int, sees_it: bool) -> None:
    # Prompts of 16 to 400 tokens; those of more than 128 take 6 ms more at once.
    work, rng = Roofline(LLAMA), random.Random(3)

    def true_s(shape: BatchShape) -> float:
        return 0.01 + work.of(shape).flops / 100e12 + (0.006 if shape.num_tokens > 128 else 0.0)

    model = StepTimeModel(LLAMA, graphed_tokens=graphed)
    for _ in range(300):
        shape = batch((rng.randint(16, 400), 0))
        model.observe(shape, true_s(shape))
    jump_s = model.step_s(batch((129, 0))) - model.step_s(batch((128, 0)))
    assert (jump_s == pytest.approx(0.006, rel=0.15)) == sees_it


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_short_prompts_is_not_taken_for_attention(seed: int) -> None:
    # On prompts of 16 to 24 tokens attention is one operation in hundreds; on one of 2,000 it would be all.
    work = Roofline(LLAMA)
    model, rng = StepTimeModel(LLAMA), random.Random(seed)
    for _ in range(300):
        shape = batch((rng.randint(16, 24), 0)) if rng.random() < 0.5 else decodes(8, 200)
        model.observe(shape, (0.01 + work.of(shape).flops / 1e12) * rng.gauss(1, 0.2))
    prompt = batch((2000, 0))
    assert model.step_s(prompt) < 3 * (0.01 + work.of(prompt).flops / 1e12)


def test_nothing_is_predicted_before_it_is_ready() -> None:
    model = StepTimeModel(LLAMA)
    FAST.teach(model, READY_STEPS - 1)
    assert not model.ready
    assert (model.step_s(WORK[0]), model.prefill_s(512), model.predict(WORK[0]).high) == (0.0, 0.0, 0.0)
    FAST.teach(model, 1)
    assert model.ready
    assert model.prefill_s(512) > 0


def test_a_prior_answers_until_it_is_ready() -> None:
    model = StepTimeModel(LLAMA, prior=SLOW)
    assert model.step_s(WORK[1]) == SLOW.step_s(WORK[1])
    FAST.teach(model, 400)
    assert_knows(model, FAST)


def test_it_follows_a_change_of_load() -> None:
    model = StepTimeModel(LLAMA)
    FAST.teach(model, 1_000)
    SLOW.teach(model, 3_000, seed=1)
    assert_knows(model, SLOW, rel=0.15)


def test_a_long_decode_does_not_forget_what_prompts_cost() -> None:
    model = StepTimeModel(LLAMA)
    FAST.teach(model, 1_000)
    rng = random.Random(1)
    for _ in range(10_000):
        model.observe(decodes(16, 2000), FAST.step_s(decodes(16, 2000)) * rng.gauss(1, NOISE))
    assert_knows(model, FAST, rel=0.5)
    assert model.step_s(decodes(16, 2000)) == pytest.approx(FAST.step_s(decodes(16, 2000)), rel=0.03)


def test_what_a_step_stays_within_goes_through_the_mean_and_the_ends() -> None:
    # Nine in ten lie between 8 and 20 s, so one in twenty above 20.
    prediction = StepSecondsPrediction(10.0, 8.0, 20.0)
    within = [prediction.within_s(confidence) for confidence in (0.05, 0.5, 0.95)]
    assert within == pytest.approx([8.0, 10.0, 20.0])
    assert prediction.within_s(0.99) > 20.0
    assert StepSecondsPrediction(0.0, 0.0, 0.0).within_s(0.99) == 0.0


def test_the_interval_holds_nine_steps_in_ten() -> None:
    model = StepTimeModel(LLAMA)
    FAST.teach(model, 1_000)
    rng = random.Random(7)
    inside = 0
    for _ in range(400):
        shape = mixed(rng)
        predicted = model.predict(shape)
        inside += predicted.low <= FAST.step_s(shape) * rng.gauss(1, NOISE) <= predicted.high
    assert inside / 400 == pytest.approx(0.9, abs=0.06)


def test_thinning_wants_every_step_until_ready_and_one_in_four_then() -> None:
    model = StepTimeModel(LLAMA)
    assert all(model.wants(step) for step in range(10))
    FAST.teach(model, READY_STEPS)
    assert [step for step in range(12) if model.wants(step)] == [0, 4, 8]


def test_prompts_are_learned_though_rare_beside_steady_decodes() -> None:
    """Held against the error of decodes each would be an outlier."""
    rng, model, chunk = random.Random(0), StepTimeModel(LLAMA), batch((512, 1024), *((1, 800),) * 16)
    for step in range(400):
        shape = chunk if step > 40 and step % 20 == 0 else decodes(16, 800)
        model.observe(shape, FAST.step_s(shape) * (2 if shape is chunk else 1) * rng.gauss(1, 0.002))
    assert model.step_s(chunk) == pytest.approx(2 * FAST.step_s(chunk), rel=0.15)
    assert model.step_s(decodes(16, 800)) == pytest.approx(FAST.step_s(decodes(16, 800)), rel=0.02)


def test_decodes_beside_prompts_are_learned_though_rare_among_prompts_alone() -> None:
    """As where both take turns, and what they take together is tried now and then."""
    rng, model = random.Random(0), StepTimeModel(LLAMA)
    chunk, both = batch((512, 1024)), batch((512, 1024), *((1, 800),) * 16)
    for step in range(400):
        shape = both if step > 40 and step % 20 == 0 else (chunk, decodes(16, 800))[step % 2]
        model.observe(shape, FAST.step_s(shape) * (2 if shape is both else 1) * rng.gauss(1, 0.002))
    assert model.step_s(both) == pytest.approx(2 * FAST.step_s(both), rel=0.15)
    assert model.step_s(chunk) == pytest.approx(FAST.step_s(chunk), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_what_every_step_with_prompts_costs_is_not_taken_for_the_price_of_decodes_beside_them(
    seed: int,
) -> None:
    """As on a GPU, where decodes alone replay a CUDA graph: for each of the first few decodes that is much."""
    rng, model = random.Random(seed), StepTimeModel(LLAMA)
    gpu = Device(base_s=0.004, per_job_s=0.0, bytes_per_s=3e12, flops_per_s=600e12)

    def seconds(shape: BatchShape) -> float:
        return gpu.step_s(shape) + (0.012 if shape.num_prefill_tokens else 0.0)

    for step in range(100):
        shape = decodes(1 + step // 50, rng.randint(500, 1500))
        if step % 5 == 0:
            shape.add(rng.randint(100, 2500), 0)
        model.observe(shape, seconds(shape) * rng.gauss(1, 0.01))
    both = batch((16, 0), *((1, 1200),) * 20)
    assert model.step_s(both) == pytest.approx(seconds(both), rel=0.25)
    # In truth 0.71 times what two steps take; as the price of decodes it came to 3.4 to 4.1 times.
    assert model.step_s(both) < 0.8 * (model.step_s(decodes(20, 1200)) + model.step_s(batch((16, 0))))


def test_a_prompt_pays_for_the_context_it_reads() -> None:
    """Small chunks late in a long prompt: what they cost is the KV before them, many times over."""
    rng, model = random.Random(0), StepTimeModel(LLAMA)

    def seconds(shape: BatchShape) -> float:
        return FAST.step_s(shape) + 1e-6 * shape.prefill_context_tokens

    for _ in range(400):
        shape = decodes(32, rng.randint(500, 1500))
        if rng.random() < 0.5:
            shape.add(rng.choice([64, 256, 1024]), rng.randint(0, 8_000))
        model.observe(shape, seconds(shape) * rng.gauss(1, 0.01))
    late = batch((64, 16_000), *((1, 1000),) * 32)
    assert model.step_s(late) == pytest.approx(seconds(late), rel=0.1)


def test_its_memory_is_bounded() -> None:
    def size(model: StepTimeModel) -> int:
        parts = [model, model._fit, *model._errors.values()]
        return sum(sys.getsizeof(value) for part in parts for value in vars(part).values())

    model = StepTimeModel(LLAMA)
    FAST.teach(model, 500)
    before = size(model)
    FAST.teach(model, 2_000, seed=1)
    assert size(model) == before


def test_prefill_is_a_prompt_alone_and_follows_what_is_learned() -> None:
    model = StepTimeModel(LLAMA)
    FAST.teach(model, 300)
    first = model.prefill_s(777)
    assert first == model.step_s(batch((777, 0)))
    SLOW.teach(model, 300)
    assert model.prefill_s(777) > first


def test_steps_without_time_or_work_teach_nothing() -> None:
    model = StepTimeModel(LLAMA)
    model.observe(BatchShape(), 1.0)
    model.observe(WORK[0], 0.0)
    assert model.observed_steps == 0


def test_two_models_fed_alike_are_alike() -> None:
    first, second = StepTimeModel(LLAMA), StepTimeModel(LLAMA)
    for model in (first, second):
        SLOW.teach(model, 300)
    assert [first.predict(shape) for shape in WORK] == [second.predict(shape) for shape in WORK]


def test_policies_may_ask_it_for_cost() -> None:
    model = StepTimeModel(LLAMA)
    cost: CostModel = LearnedCost(steps=model)
    assert cost.prefill_s(100) == cost.step_s(WORK[0]) == 0.0
    SLOW.teach(model, 40)
    assert [cost.step_s(shape) for shape in WORK] == [model.step_s(shape) for shape in WORK]
    assert cost.step_s(WORK[0]) > 0


steps = st.lists(st.tuples(batches, st.floats(0, 1e4)), min_size=20, max_size=60)


@UNTIMED
@given(seen=steps, shape=batches)
def test_a_prediction_is_a_number_inside_its_interval_and_never_negative(
    seen: list[tuple[BatchShape, float]], shape: BatchShape
) -> None:
    model = StepTimeModel(LLAMA)
    for step in seen:
        model.observe(*step)
    predicted = model.predict(shape)
    assert isfinite(predicted.high)
    assert 0 <= predicted.low <= predicted.mean <= predicted.high


@UNTIMED
@given(shape=batches, more=st.integers(1, 3000))
def test_more_work_is_never_predicted_to_be_faster(shape: BatchShape, more: int) -> None:
    grown = BatchShape(**{name: getattr(shape, name) for name in BatchShape.__slots__})
    grown.add(more, 100)
    assert TAUGHT.step_s(grown) >= TAUGHT.step_s(shape) > 0


TAUGHT = StepTimeModel(LLAMA)
FAST.teach(TAUGHT, 200)
