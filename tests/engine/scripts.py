"""Scripted streams and schedulers the engine tests share; all without a model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.request import Request

from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import (
    ModelFreeEngine,
    ScriptedRequest,
    engine_config,
    headway_builder,
    make_scheduler,
)

NUM_BLOCKS = 64
"""2,016 tokens: a few prompts of `stream` fill it, so requests are preempted."""


def stream(
    count: int = 80, seed: int = 0, mean_gap_steps: int = 2, extra_args: dict[str, Any] | None = None
) -> list[ScriptedRequest]:
    """Prompts of 1 to 400 tokens, half of each shared with others, answers of 1 to 100."""
    rng = random.Random(seed)
    step, script = 0, []
    for index in range(count):
        step += rng.randint(0, 2 * mean_gap_steps)
        length = rng.randint(1, 400)
        shared = [rng.randrange(3) * 10_000 + offset for offset in range(length // 2)]
        own = [1_000_000 + index * 1_000 + offset for offset in range(length - length // 2)]
        script.append(ScriptedRequest(str(index), step, shared + own, rng.randint(1, 100), 0, extra_args))
    return script


def _config(*, prefix_caching: bool, **options: Any) -> Any:
    """vLLM's configuration of a small engine with the demo model."""
    sizes: dict[str, Any] = {"max_num_seqs": 32, "max_num_batched_tokens": 512}
    return engine_config(
        str(ensure_demo_random()), **{**sizes, "enable_prefix_caching": prefix_caching, **options}
    )


_usual_config = cache(_config)
"""Made once for all tests that want nothing else, which copy it: vLLM makes one in as long as a short replay takes."""


def scheduler(
    *,
    asynchronous: bool = False,
    prefix_caching: bool = False,
    num_blocks: int = NUM_BLOCKS,
    vllm: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Headway's scheduler over a small KV cache, checking itself after every step."""
    if vllm:
        config = _config(prefix_caching=prefix_caching, **vllm)
    else:
        config = deepcopy(_usual_config(prefix_caching=prefix_caching))
    config.scheduler_config.async_scheduling = asynchronous
    return make_scheduler(headway_builder(**{"check": True, **settings}), config, num_blocks)


def image_request(id_: str, prompt_tokens: int, *images: tuple[int, int]) -> Request:
    """A request in whose prompt images stand at these (offset, length)."""
    features = [
        MultiModalFeatureSpec(None, "image", f"{id_} at {offset}", PlaceholderRange(offset, length))
        for offset, length in images
    ]
    return Request(
        request_id=id_,
        prompt_token_ids=list(range(prompt_tokens)),
        sampling_params=SamplingParams(max_tokens=3),
        pooling_params=None,
        mm_features=features,
    )


def give_encoder(built: Any, tokens: int) -> None:
    """Let a scheduler's model read images of so many tokens a step, as if it were one that can."""
    built.encoder_cache_manager = EncoderCacheManager(cache_size=10_000)
    built.max_num_encoder_input_tokens = tokens


def depth(built: Any) -> int:
    """Steps in flight for a scheduler, as vLLM's engine would keep."""
    return 2 if built.scheduler_config.async_scheduling else 1


class HearingEngine(ModelFreeEngine):
    """A model-free engine that keeps what clients would have heard."""

    def __init__(self, built: Any) -> None:
        super().__init__(built, depth(built))
        self.heard: list[EngineCoreOutput] = []

    def process_oldest(self) -> None:
        for outputs in self.scheduler.update_from_output(*self.next_output()).values():
            self.heard.extend(outputs.outputs)

    def endings(self) -> dict[str, Any]:
        """Request id -> its one finishing output; a second one is an error."""
        finals = [output for output in self.heard if output.finish_reason is not None]
        ids = [output.request_id for output in finals]
        assert len(set(ids)) == len(ids), "a request ended twice"
        return {output.request_id: output for output in finals}


def assert_empty(built: Any) -> None:
    """Assert that nothing is left behind: no job, no request, every block free."""
    built.ledger.check()
    assert built.ledger.live == 0
    assert not built.jobs
    assert not built.requests
    pool = built.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def steps(engine: ModelFreeEngine, limit: int = 5_000) -> Iterator[int]:
    """Step numbers until the scheduler has nothing left to do."""
    for step in range(limit):
        if not engine.scheduler.has_requests():
            return
        yield step
    raise AssertionError(f"still busy after {limit} steps")
