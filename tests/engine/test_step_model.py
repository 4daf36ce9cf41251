from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config.compilation import CUDAGraphMode

from headway.core.batch_shape import BatchShape
from headway.core.plan import StepOutcome, StepPlan
from headway.engine.step.step_model import lesson, step_time_model
from headway.predict.steps.learned import StepClock
from headway.predict.steps.step_time import READY_STEPS, StepTimeModel
from tests.predict.shapes import batch, decodes
from tests.strategies import decoding, prefilling

DEMO = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 2048,
}


def config(
    values: dict[str, Any], mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE, captured: int | None = 512
) -> Any:
    """The part of vLLM's configuration that is read."""
    hf_config = SimpleNamespace(to_dict=lambda: values)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf_config, model="demo"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
        compilation_config=SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=captured),
    )


def taught(model: StepTimeModel) -> StepTimeModel:
    for count in range(1, READY_STEPS + 1):
        model.observe(decodes(count, 100), 0.01)
    return model


def test_it_learns_with_the_sizes_of_the_served_model() -> None:
    assert step_time_model(config(DEMO))._roofline.model.hidden_size == 256


@pytest.mark.parametrize(
    ("mode", "captured", "tokens"),
    [
        (CUDAGraphMode.FULL_AND_PIECEWISE, 256, 256),
        (CUDAGraphMode.PIECEWISE, 512, 512),
        (CUDAGraphMode.FULL_DECODE_ONLY, 512, 0),
        (CUDAGraphMode.NONE, 0, 0),
        (CUDAGraphMode.NONE, None, 0),
    ],
)
def test_it_knows_the_steps_with_prompts_that_cuda_graphs_hold(
    mode: CUDAGraphMode, captured: int | None, tokens: int
) -> None:
    for values in (DEMO, {"hidden_size": 256}):
        assert step_time_model(config(values, mode, captured)).graphed_tokens == tokens


def test_graphs_of_few_seats_are_logged_with_the_flag_that_keeps_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # vLLM shows no less than warnings of other packages' loggers.
    with caplog.at_level(logging.WARNING):
        step_time_model(config(DEMO))
        assert not caplog.text
        step_time_model(config(DEMO, captured=64))
    assert "steps of 64 tokens at most" in caplog.text
    assert "--max-cudagraph-capture-size 512 may" in caplog.text


def test_unknown_sizes_are_logged_and_it_learns_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        model = step_time_model(config({"hidden_size": 256}))
    assert "without the model's sizes" in caplog.text
    assert taught(model).step_s(decodes(4, 100)) == pytest.approx(0.01, rel=0.01)


def test_a_lesson_is_the_shape_of_what_was_granted() -> None:
    # 7 of 10 tokens are computed, 5 of them in this step: 5 new after 2.
    outcome = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={prefilling(computed=7): 5}, num_tokens=5)
    assert lesson(outcome, StepClock(StepTimeModel())) == batch((5, 2))


def test_a_ready_model_is_spared_three_steps_in_four_but_never_an_empty_one() -> None:
    clock = StepClock(taught(StepTimeModel()))
    busy = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={decoding(): 1}, num_tokens=1)
    # A second a step: longer than lessons are apart anyway.
    idle = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={}, num_tokens=0)
    spared = []
    for step in range(5):
        shape = lesson(replace(busy, now_s=float(step)), clock)
        spared.append(shape is None)
        clock.dispatched(shape, float(step))
    assert spared == [False, True, True, True, False]
    assert lesson(idle, clock) == BatchShape()
    prompts = StepOutcome(now_s=9.0, plan=StepPlan(), tokens={prefilling(computed=5): 5}, num_tokens=5)
    assert lesson(prompts, clock) == batch((5, 0))
