"""The real vLLM scheduler and KV manager without a model: shows what each step would compute, in under a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from vllm.config import KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from headway.engine.host_kv import HostKv
from headway.engine.kv.copies import CopyOrders, CopyReport
from headway.engine.scheduler import PolicyScheduler, scheduler_class

BLOCK_SIZE = 32
"""Tokens of a KV block, as the CPU backend's attention wants them."""

STOP_TOKEN = 999_999
"""Ends a request; no other generated token has this value."""

_STEP_S = 5e-3
_TOKEN_S = 2e-5
"""Virtual seconds of a step, and of each token in it: roughly a small model on one core."""


SchedulerT = TypeVar("SchedulerT", bound=Scheduler)


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A request with a given prompt, output length and arrival step.

    It ends at its limit, or by a stop token of its own if `max_tokens` is above `output_tokens`.
    """

    id: str
    arrival_step: int
    prompt_token_ids: Sequence[int]
    output_tokens: int
    priority: int = 0
    extra_args: dict[str, Any] | None = None
    max_tokens: int | None = None


@dataclass(slots=True)
class StepLog:
    """What one step granted, and which jobs lost their KV in it."""

    tokens: dict[str, int] = field(default_factory=dict)
    preempted: frozenset[str] = frozenset()


def engine_config(model: str, *, host_kv: HostKv | None = None, **overrides: Any) -> VllmConfig:
    """Make vLLM's configuration for `model` as the engine would, with host memory for swaps if given."""
    arguments: dict[str, Any] = {
        "model": model,
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 256,
        "enforce_eager": True,
        "seed": 0,
        **overrides,
    }
    if host_kv is not None:
        arguments["kv_transfer_config"] = KVTransferConfig(**host_kv.transfer_config())
    return EngineArgs(**arguments).create_engine_config()


def make_scheduler(build: Callable[..., SchedulerT], config: VllmConfig, num_blocks: int) -> SchedulerT:
    """Make a scheduler of the given class over a KV cache of `num_blocks` blocks, one of them vLLM's null block."""
    import torch

    model = config.model_config
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=model.get_num_kv_heads(config.parallel_config),
        head_size=model.get_head_size(),
        dtype=torch.float32,
    )
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return build(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
        log_stats=False,
    )


def to_request(scripted: ScriptedRequest) -> Request:
    """Make vLLM's request, which ends exactly at the scripted output length."""
    sampling = SamplingParams(
        max_tokens=scripted.max_tokens or scripted.output_tokens,
        ignore_eos=True,
        stop_token_ids=[STOP_TOKEN],
        extra_args=scripted.extra_args,
        temperature=0.0,
    )
    init_none_hash(sha256)
    return Request(
        request_id=scripted.id,
        prompt_token_ids=list(scripted.prompt_token_ids),
        sampling_params=sampling,
        pooling_params=None,
        priority=scripted.priority,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


class ModelFreeEngine:
    """vLLM's engine loop with generated tokens: one step at a time, `depth` steps in flight.

    Time is virtual: `step_s` gives the duration of a step, so a replay decides the same on any machine, however busy.

    Copies of KV are simulated too: each is reported done with the output of the step `copy_steps` later.
    """

    def __init__(self, scheduler: Scheduler, depth: int = 1, copy_steps: int = 0) -> None:
        self.scheduler = scheduler
        self.now_s = 0.0
        scheduler.clock = scheduler.wall_clock = lambda: (
            self.now_s
        )  # vLLM's own scheduler reads neither clock
        self._depth = depth
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._serial: dict[str, int] = {}
        self._stops_after: dict[str, int] = {}
        self._orders: deque[CopyOrders] = deque(CopyOrders() for _ in range(copy_steps))

    def add(self, scripted: ScriptedRequest) -> None:
        """Queue a request."""
        self.expect(scripted)
        self.scheduler.add_request(to_request(scripted))

    def expect(self, scripted: ScriptedRequest) -> None:
        """Remember where a request ends by a stop token, if it does."""
        if scripted.max_tokens is not None and scripted.max_tokens > scripted.output_tokens:
            self._stops_after[scripted.id] = scripted.output_tokens

    def step(self) -> StepLog:
        """Schedule one step. When `depth` steps are in flight, process the oldest output."""
        log = self.schedule()
        if len(self._in_flight) >= self._depth or not log.tokens:
            self.process_oldest()
        return log

    def schedule(self) -> StepLog:
        """Schedule a step, which is then in flight."""
        output = self.scheduler.schedule(self.defers_prompts())
        self._in_flight.append((output, self.compute(output)))
        self.scheduler.get_grammar_bitmask(output)
        return StepLog(dict(output.num_scheduled_tokens), frozenset(output.preempted_req_ids or ()))

    def defers_prompts(self) -> bool:
        """Whether vLLM is asked to start no prompts in this step."""
        return False

    def drain(self) -> None:
        """Process all steps in flight."""
        while self._in_flight:
            self.process_oldest()

    def process_oldest(self) -> None:
        """Process the output of the oldest step in flight."""
        self.scheduler.update_from_output(*self.next_output())

    def next_output(self) -> tuple[SchedulerOutput, ModelRunnerOutput]:
        """The oldest step in flight and its output; advances the clock by its duration."""
        step = self._in_flight.popleft()
        self.now_s += self.step_s(step[0])
        return step

    def step_s(self, output: SchedulerOutput) -> float:
        """The virtual seconds of a step."""
        return _STEP_S + _TOKEN_S * int(output.total_num_scheduled_tokens)

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Generate a token for every request whose known tokens are all computed, none for those in mid-prefill."""
        request_ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[i].is_prefill_chunk else [self._token(requests[i])] for i in request_ids]
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=self.kv_output(output),
        )

    def kv_output(self, output: SchedulerOutput) -> KVConnectorOutput | None:
        """What workers would report with this step about the KV that they move."""
        orders = output.kv_connector_metadata
        if not isinstance(orders, CopyOrders):
            return None
        self._orders.append(orders)
        due = self._orders.popleft()
        done = {order.number: (1, 1e-3) for order in (*due.to_host, *due.to_device)}
        return KVConnectorOutput(kv_connector_worker_meta=CopyReport(done=done))

    def _token(self, request: Request) -> int:
        """The stop token at the end, else a token unique to request and position, so that no two block hashes
        collide.
        """
        position: int = request.num_computed_tokens
        if position + 1 - request.num_prompt_tokens == self._stops_after.get(request.request_id):
            return STOP_TOKEN
        serial = self._serial.setdefault(request.request_id, len(self._serial))
        return 1_000_000 + serial * 10_000 + position


def replay(engine: ModelFreeEngine, script: Sequence[ScriptedRequest], max_steps: int) -> Iterator[StepLog]:
    """Step until every scripted request has ended, or `max_steps`. Requests join at their arrival step."""
    pending = deque(sorted(script, key=lambda scripted: scripted.arrival_step))
    for step in range(max_steps):
        while pending and pending[0].arrival_step <= step:
            engine.add(pending.popleft())
        if not pending and not engine.scheduler.has_unfinished_requests():
            break
        yield engine.step()
    engine.drain()


def headway_builder(**settings: Any) -> Callable[..., PolicyScheduler]:
    """A builder for `make_scheduler` that first puts Headway's settings into the configuration."""
    return partial(_build_headway, settings)


def _build_headway(settings: dict[str, Any], *, vllm_config: VllmConfig, **kwargs: Any) -> PolicyScheduler:
    vllm_config.additional_config = {**(vllm_config.additional_config or {}), "headway": settings}
    return scheduler_class(vllm_config)(vllm_config, **kwargs)
