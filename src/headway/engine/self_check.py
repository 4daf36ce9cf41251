"""Checks whether Headway works on the installed vLLM, with this engine's features, on the schedulers without a model.

Each feature that the configuration enables gets a short run of its own in which blocks run out. Preset `vllm` must
decide like stock in every step. The preset in use must end every request once, with a known reason for every difference
from its plan.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from headway.core.plan import Reason
from headway.engine.host_kv import CONNECTOR
from headway.engine.model_free import (
    ModelFreeEngine,
    SchedulerT,
    ScriptedRequest,
    StepLog,
    headway_builder,
    make_scheduler,
    replay,
    to_request,
)
from headway.errors import SeamError

_REQUESTS = 24
_NUM_BLOCKS = 40
_MAX_STEPS = 2_000
_COPY_STEPS = 2
_PRIORITIES = 3
_IMAGE_TOKENS = 24
_ENCODER_TOKENS = 64
_DRAFT_TOKEN = 7


@dataclass(frozen=True, slots=True)
class CheckedFeature:
    """A feature that the configuration enables, in an operator's words, and how a run exercises it.

    Requests use this many LoRA adapters. A decode brings up to `drafts` accepted draft tokens. `images` stand in every
    third prompt. Prompts start only in every `interval`-th step. With `host_kv` KV is swapped to host memory, which
    stock cannot do.
    """

    name: str
    adapters: int = 0
    drafts: int = 0
    images: bool = False
    interval: int = 1
    host_kv: bool = False


@dataclass(frozen=True, slots=True)
class Parity:
    """Two runs of one script compared: how many steps, how many equal, and the first difference."""

    steps: int
    same_steps: int
    preemptions: int
    first_difference: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the self-check: its steps, the features it ran, and the fault of the preset in use, if any."""

    steps: int
    features: tuple[str, ...]
    fault: str | None


def features_in_use(vllm_config: VllmConfig) -> list[CheckedFeature]:
    """Plain requests, each enabled feature that changes scheduling decisions, and all of these together."""
    found = [CheckedFeature("plain requests")]
    if vllm_config.lora_config is not None:
        limit = vllm_config.lora_config.max_loras
        found.append(CheckedFeature(f"LoRA adapters (--max-loras {limit})", adapters=limit + 2))
    if vllm_config.num_speculative_tokens:
        found.append(
            CheckedFeature("draft tokens (--speculative-config)", drafts=vllm_config.num_speculative_tokens)
        )
    if vllm_config.model_config.is_multimodal_model:
        found.append(CheckedFeature("images and other media in prompts", images=True))
    interval = getattr(vllm_config.scheduler_config, "prefill_schedule_interval", 1)
    if interval > 1:
        found.append(
            CheckedFeature(f"prompts deferred (--prefill-schedule-interval {interval})", interval=interval)
        )
    if len(found) > 2:
        found.append(
            CheckedFeature(
                "all of these together",
                adapters=max(feature.adapters for feature in found),
                drafts=max(feature.drafts for feature in found),
                images=any(feature.images for feature in found),
                interval=interval,
            )
        )
    transfer = vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector == CONNECTOR:
        found.append(CheckedFeature("KV swapped to host memory (--host-kv-gib)", host_kv=True))
    return found


class CheckedEngine(ModelFreeEngine):
    """A model-free engine that uses a feature, and records which requests end."""

    def __init__(self, scheduler: Scheduler, feature: CheckedFeature, depth: int) -> None:
        super().__init__(scheduler, depth, _COPY_STEPS if feature.host_kv else 0)
        self._feature = feature
        self._steps = self._requests = 0
        self.ended: Counter[str] = Counter()
        if feature.images:
            scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=2 * _ENCODER_TOKENS)
            scheduler.max_num_encoder_input_tokens = _ENCODER_TOKENS

    def add(self, scripted: ScriptedRequest) -> None:
        """Queue a request that uses the feature."""
        request = to_request(scripted)
        self._use(self._feature, request, self._requests)
        self._requests += 1
        self.scheduler.add_request(request)

    def _use(self, feature: CheckedFeature, request: Request, number: int) -> None:
        request.arrival_time = self.now_s + number * 1e-6
        adapter = number % (feature.adapters + 1)
        if adapter:
            request.lora_request = LoRARequest(f"adapter-{adapter}", adapter, "nowhere")
        if feature.images and number % 3 == 0 and request.num_prompt_tokens > _IMAGE_TOKENS:
            offset = request.num_prompt_tokens - _IMAGE_TOKENS
            image = PlaceholderRange(offset, _IMAGE_TOKENS)
            request.mm_features = [MultiModalFeatureSpec(None, "image", f"image-{number % 9}", image)]

    def defers_prompts(self) -> bool:
        """Whether the step falls between two that start prompts."""
        self._steps += 1
        return self._steps % self._feature.interval != 0

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute as without drafts, and accept some of the scheduled drafts."""
        computed = super().compute(output)
        for request_id, tokens in zip(computed.req_ids, computed.sampled_token_ids, strict=True):
            drafts = output.scheduled_spec_decode_tokens.get(request_id)
            if drafts:
                tokens.extend([_DRAFT_TOKEN] * ((self._steps + len(request_id)) % (len(drafts) + 1)))
        return computed

    def process_oldest(self) -> None:
        """Process the oldest output, record which requests end, and draft for the others."""
        scheduled, computed = self.next_output()
        for outputs in self.scheduler.update_from_output(scheduled, computed).values():
            self.ended.update(one.request_id for one in outputs.outputs if one.finish_reason is not None)
        if self._feature.drafts and self._depth == 1:  # with overlapping steps the worker makes the drafts
            live = [one for one in scheduled.num_scheduled_tokens if one in self.scheduler.requests]
            drafts = [[_DRAFT_TOKEN] * self._feature.drafts for _ in live]
            self.scheduler.update_draft_token_ids(DraftTokenIds(live, drafts))


def stock_builder(asynchronous: bool) -> type[Scheduler]:
    """vLLM's own scheduler class for this mode."""
    stock: type[Scheduler] = AsyncScheduler if asynchronous else Scheduler
    return stock


def run_script(
    build: Callable[..., SchedulerT],
    vllm_config: VllmConfig,
    script: Sequence[ScriptedRequest],
    *,
    num_blocks: int,
    max_steps: int,
) -> tuple[SchedulerT, list[StepLog]]:
    """Run a fresh scheduler on a script; return it with the log of every step. As many steps overlap as in the
    engine.
    """
    scheduler = make_scheduler(build, copy.deepcopy(vllm_config), num_blocks)
    engine = ModelFreeEngine(scheduler, vllm_config.max_concurrent_batches)
    return scheduler, list(replay(engine, script, max_steps))


def compare_logs(stock: Sequence[StepLog], ours: Sequence[StepLog]) -> Parity:
    """Compare step by step: equal tokens for equal requests, and equal preemptions."""
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


def self_check(vllm_config: VllmConfig) -> Verdict:
    """Try preset `vllm` and the preset in use with each enabled feature; some 0.1 s a run.

    Raises SeamError, naming the feature and the first step that differs, if preset `vllm` does not decide like stock.
    """
    features = features_in_use(vllm_config)
    script = _script(vllm_config.model_config.max_model_len)
    steps, fault = 0, None
    for feature in features:
        steps += _check_parity(feature, vllm_config, script)
        found = None if fault else _fault(feature, vllm_config, script)
        fault = fault or (found and f"with {feature.name}: {found}")
    return Verdict(steps, tuple(feature.name for feature in features), fault)


def _check_parity(feature: CheckedFeature, vllm_config: VllmConfig, script: Sequence[ScriptedRequest]) -> int:
    """The number of steps in which preset `vllm` decided like stock; 0 if stock lacks the feature."""
    if feature.host_kv:
        return 0
    try:
        stock = stock_builder(vllm_config.scheduler_config.async_scheduling)
        expected = list(replay(_engine(feature, stock, vllm_config), script, _MAX_STEPS))
        ours = _engine(feature, headway_builder(), vllm_config)
        actual = list(replay(ours, script, _MAX_STEPS))
    except Exception as error:
        raise SeamError(
            f"the self-check of preset 'vllm' with {feature.name} failed with {type(error).__name__}: {error}"
        ) from error
    parity = compare_logs(expected, actual)
    if parity.first_difference is not None:
        raise SeamError(f"preset 'vllm' differs from stock with {feature.name} in {parity.first_difference}")
    return parity.steps


def _fault(feature: CheckedFeature, vllm_config: VllmConfig, script: Sequence[ScriptedRequest]) -> str | None:
    """The fault of the preset in use, in an operator's words; None if there is none."""
    given = (vllm_config.additional_config or {}).get("headway", {})
    # The check writes no records, learns no lengths and explains no requests.
    alone = {"records": None, "explain": 0, "predictor": "none", "length_model": None, "check": False}
    try:
        engine = _engine(feature, headway_builder(**{**given, **alone}), vllm_config)
        steps = len(list(replay(engine, script, _MAX_STEPS)))
        engine.scheduler.ledger.check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    counters = engine.scheduler.counters
    unexplained = counters.differences[Reason.UNEXPLAINED]
    if counters.policy_faults:
        return "the policy failed; the error is above"
    if counters.watchdog_faults:
        return "requests that could run did not"
    if unexplained:
        return f"requests got less than planned {unexplained} times in {steps} steps, for no known reason"
    once = sum(count == 1 for count in engine.ended.values())
    if once != len(script) or len(engine.ended) != len(script):
        return f"{len(script) - once} of {len(script)} requests did not end exactly once"
    return None


def _engine(
    feature: CheckedFeature, build: Callable[..., Scheduler], vllm_config: VllmConfig
) -> CheckedEngine:
    """Make a fresh engine over a copy of the configuration.

    The copy enables only this feature, so that a fault can be named. It has a connector only if KV is swapped, since
    connectors of other packages reach beyond this process. It reads no media, so no media processor is loaded; the
    engine gives the scheduler an encoder if media are tried.
    """
    config = copy.deepcopy(vllm_config)
    config.model_config.multimodal_config = None
    if not feature.adapters:
        config.lora_config = None
    if not feature.drafts:
        config.speculative_config = None
    if feature.interval == 1:
        config.scheduler_config.prefill_schedule_interval = 1
    if not feature.host_kv:
        config.kv_transfer_config = None
    scheduler = make_scheduler(build, config, _NUM_BLOCKS)
    return CheckedEngine(scheduler, feature, vllm_config.max_concurrent_batches)


def _script(max_model_len: int) -> list[ScriptedRequest]:
    """Prompts of 1 to 300 tokens and answers of 1 to 80 (fewer for short models), with several priorities."""
    rng = random.Random(0)
    prompt, answer = min(300, max_model_len // 2), min(80, max_model_len // 2)
    return [
        ScriptedRequest(
            id=f"check-{index}",
            arrival_step=index * 2,
            prompt_token_ids=range(index * 1_000, index * 1_000 + rng.randint(1, prompt)),
            output_tokens=rng.randint(1, answer),
            priority=rng.randrange(_PRIORITIES),
            extra_args={"headway_ttft_ms": 500, "headway_tbt_ms": 50} if index % 2 else None,
        )
        for index in range(_REQUESTS)
    ]
