"""Does preset `vllm` decide as stock vLLM does? Asked of the installed vLLM, without a model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from headway.engine.kv.transfers import is_anothers
from headway.engine.model_free import (
    ModelFreeEngine,
    ScriptedRequest,
    StepLog,
    headway_builder,
    make_scheduler,
    replay,
)
from headway.errors import SeamError

_REQUESTS = 60
_NUM_BLOCKS = 64
_MAX_STEPS = 2_000


@dataclass(frozen=True, slots=True)
class Parity:
    """Two runs of one script, step by step: how many steps, how many alike, where they first differ."""

    steps: int
    same_steps: int
    preemptions: int
    first_difference: str | None


def stock_builder(asynchronous: bool) -> Callable[..., Any]:
    """vLLM's own scheduler class for this mode."""
    stock: type[Any] = AsyncScheduler if asynchronous else Scheduler
    return stock


def run_script(
    build: Callable[..., Any],
    vllm_config: Any,
    script: Sequence[ScriptedRequest],
    *,
    num_blocks: int,
    max_steps: int,
) -> tuple[Any, list[StepLog]]:
    """A fresh scheduler and the log of every step it took; two steps in flight if the config is asynchronous."""
    scheduler = make_scheduler(build, copy.deepcopy(vllm_config), num_blocks)
    depth = 2 if vllm_config.scheduler_config.async_scheduling else 1
    return scheduler, list(replay(ModelFreeEngine(scheduler, depth), script, max_steps))


def compare_logs(stock: Sequence[StepLog], ours: Sequence[StepLog]) -> Parity:
    """Step by step: the same tokens to the same requests, and the same preemptions."""
    pairs = list(zip_longest(stock, ours))
    differing = [index for index, (left, right) in enumerate(pairs) if left != right]
    first = None
    if differing:
        left, right = pairs[differing[0]]
        first = f"step {differing[0]}: stock granted {left and left.tokens}, Headway {right and right.tokens}"
    return Parity(
        steps=len(pairs),
        same_steps=len(pairs) - len(differing),
        preemptions=sum(len(log.preempted) for log in ours),
        first_difference=first,
    )


def self_check(vllm_config: Any) -> Parity:
    """Drive stock's scheduler and ours through one short script in which blocks run out.

    Raises SeamError naming the first step that differs, or what broke.
    """
    if is_anothers(vllm_config.kv_transfer_config):
        # Made for a check, it could open ports and files that the server's own needs.
        vllm_config = copy.copy(vllm_config)
        vllm_config.kv_transfer_config = None
    script = _script(vllm_config.model_config.max_model_len)
    stock = stock_builder(vllm_config.scheduler_config.async_scheduling)
    try:
        limits = {"num_blocks": _NUM_BLOCKS, "max_steps": _MAX_STEPS}
        _, expected = run_script(stock, vllm_config, script, **limits)
        _, actual = run_script(headway_builder(check=True), vllm_config, script, **limits)
    except Exception as error:
        raise SeamError(f"the self-check failed with {type(error).__name__}: {error}") from error
    parity = compare_logs(expected, actual)
    if parity.first_difference is not None:
        raise SeamError(f"preset 'vllm' differs from stock in {parity.first_difference}")
    return parity


def _script(max_model_len: int) -> list[ScriptedRequest]:
    """Prompts of 1 to 300 tokens and answers of 1 to 120, less where the model holds less."""
    rng = random.Random(0)
    prompt, answer = min(300, max_model_len // 2), min(120, max_model_len // 2)
    return [
        ScriptedRequest(
            id=f"check-{index}",
            arrival_step=index * 2,
            prompt_token_ids=range(index * 1_000, index * 1_000 + rng.randint(1, prompt)),
            output_tokens=rng.randint(1, answer),
        )
        for index in range(_REQUESTS)
    ]
