"""Makes the step-time model for the served model; it learns beside the scheduler."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headway.core.batch_shape import MOST_GRAPHED_TOKENS, BatchShape, StepKind, shape_of
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.predict.models.model_shape import model_shape_of
from headway.predict.steps.learned import StepClock
from headway.predict.steps.step_time import StepTimeModel

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


def step_time_model(vllm_config: VllmConfig) -> StepTimeModel:
    """A model that has learned nothing yet, with the sizes from the served model's config."""
    config, graphed = vllm_config.model_config, graphed_tokens(vllm_config)
    _warn_of_few(graphed, vllm_config)
    try:
        shape = model_shape_of(config.hf_config.to_dict(), str(config.model))
    except ConfigError as error:
        logger.warning("step times are learned without the model's sizes: %s", error)
        return StepTimeModel(graphed_tokens=graphed)
    tp = vllm_config.parallel_config.tensor_parallel_size
    return StepTimeModel(shape, tp, graphed_tokens=graphed)


def graphed_tokens(vllm_config: VllmConfig) -> int:
    """Largest step with prompts that CUDA graphs hold, in tokens: 0 without graphs, or with graphs for decodes
    alone.
    """
    compilation = vllm_config.compilation_config
    return (compilation.max_cudagraph_capture_size or 0) if compilation.cudagraph_mode.mixed_mode() else 0


def _warn_of_few(tokens: int, vllm_config: VllmConfig) -> None:
    """Warn if few seats disable CUDA graphs, and name the flag that keeps them."""
    usual = min(MOST_GRAPHED_TOKENS, vllm_config.scheduler_config.max_num_batched_tokens)
    if 0 < tokens < usual:
        logger.warning(
            "CUDA graphs hold steps of %d tokens at most, since seats are few; --max-cudagraph-capture-size %d may "
            "make steps with prompts cheaper",
            tokens,
            usual,
        )


def lesson(outcome: StepOutcome, clock: StepClock, *, alike: bool = False) -> BatchShape | None:
    """The shape of a step, to learn from; None if the clock does not want it, since making it costs O(jobs).

    `alike`: the step repeats the one before, whose shape is reused.
    """
    wanted = not outcome.tokens or clock.learns_next(outcome.now_s, _kind(outcome), alike=alike)
    return shape_of(outcome.tokens) if wanted else None


def _kind(outcome: StepOutcome) -> StepKind:
    """The kind of a step, without computing its shape."""
    if outcome.num_tokens == len(outcome.tokens):
        return StepKind.DECODE
    return StepKind.MIXED if 1 in outcome.tokens.values() else StepKind.PREFILL
