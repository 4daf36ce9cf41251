"""Protocols through which the parts of a step, and of KV, access their scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.host_copies import HostCopies
from headway.core.job import Job
from headway.core.kept_programs import KeptPrograms
from headway.core.ledger import Ledger
from headway.core.plan import Fate
from headway.core.view import StepView
from headway.engine.settings import EngineSettings
from headway.engine.step.context import StepContext
from headway.engine.step.counters import Counters
from headway.engine.step.guard import GuardedPolicy
from headway.engine.step.window_queue import WindowQueue
from headway.predict.steps.learned import LearnedCost

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request, RequestStatus


class DevicePins(Protocol):
    """Device blocks that KV copies hold."""

    @property
    def coming_free(self) -> int:
        """Blocks that only copies hold."""
        ...


class Swaps(Protocol):
    """Swapped KV, as the parts of a step see it."""

    admitted: list[Job]
    found_tokens: dict[Job, int]

    @property
    def copies(self) -> HostCopies:
        """What the host holds, and what is on its way."""
        ...

    @property
    def device(self) -> DevicePins:
        """The blocks that copies hold."""
        ...

    @property
    def answered_s(self) -> float:
        """When workers last answered."""
        ...

    def put_back(self, request: Request, fate: Fate) -> None:
        """Preempt a request that came back and has not run."""
        ...

    def forget(self, job: Job) -> None:
        """A request ended."""
        ...

    def check(self, residents: Sequence[Job]) -> None:
        """Assert that blocks are conserved on both sides."""
        ...


class Loads(Protocol):
    """KV that another package's connector moves, as the parts of a step see it."""

    @property
    def holds_blocks(self) -> bool:
        """Whether the connector holds blocks that will come free, or blocks of a loaded request that has not run."""
        ...

    def is_undecided(self, request: Request) -> bool:
        """Whether the connector does not know yet what it holds of a waiting request."""
        ...

    def loads_beside(self, request: Request) -> int:
        """Tokens that an asynchronous load would bring; 0 for none."""
        ...


class VllmScheduler(Protocol):
    """The parts of vLLM's scheduler that Headway reads or sets (rows of `PATCHES` in `engine/vllm/seams.py`)."""

    vllm_config: VllmConfig
    scheduler_config: Any
    parallel_config: Any
    lora_config: Any
    kv_cache_config: KVCacheConfig
    kv_cache_manager: KVCacheManager
    connector: Any
    requests: dict[str, Request]
    running: list[Request]
    max_model_len: int
    max_num_running_reqs: int
    max_num_active_reqs: int
    max_num_scheduled_tokens: int
    block_size: int
    num_spec_tokens: int
    num_lookahead_tokens: int
    num_sampled_tokens_per_step: int
    scheduler_reserve_full_isl: bool
    need_mamba_block_aligned_split: bool
    needs_kv_cache_zeroing: bool
    requires_kv_delivery: bool
    prefill_capacity_bound: bool
    num_executed_steps: int
    last_prefill_step: int
    structured_output_manager: Any
    finished_recving_kv_req_ids: set[str]
    deferred_waiting: set[Request]
    deferred_frees: Sequence[Any]
    _pause_state: Any
    _inflight_prefills: set[Request]
    _spec_decode_step_blocks: int
    _reserve_prefill_lookahead: Callable[[Request, int, int], int]

    def _inflight_prefill_reserved_blocks(self) -> int: ...

    def _set_kv_fetch_stage(self, request: Request, stage: str | None) -> None: ...


class StepPort(VllmScheduler, Protocol):
    """Headway's scheduler, as the parts of a step see it."""

    settings: EngineSettings
    counters: Counters
    ledger: Ledger
    cost: LearnedCost
    guard: GuardedPolicy
    view: StepView
    jobs: dict[str, Job]
    preempted: dict[Job, Fate]
    clock: Callable[[], float]
    waiting: WindowQueue
    kv_holding_waiting: WindowQueue

    @property
    def swaps(self) -> Swaps | None:
        """KV swapped to the host; None without host memory."""
        ...

    @property
    def transfers(self) -> Loads | None:
        """KV that another package's connector moves; None without one."""
        ...

    @property
    def kept(self) -> KeptPrograms | None:
        """KV kept for agent programs; None if the policy keeps none."""
        ...

    def _preempt_request(
        self,
        request: Request,
        timestamp: float,
        drop_stale_output: bool = False,
        *,
        fate: Fate | None = None,
    ) -> None: ...

    def dismiss(self, request_id: str, status: RequestStatus, reason: str) -> None:
        """End one request now, and queue its last output."""
        ...


class KvPort(StepPort, Protocol):
    """Headway's scheduler, as the KV connector's scheduler side sees it while a step is filled."""

    step: StepContext

    @property
    def short_of_blocks(self) -> bool:
        """Whether the step being filled has run out of blocks."""
        ...

    def take_seat(self) -> None:
        """Take a seat for an admitted request that waits for its KV; vLLM does not count it."""
        ...

    def close_admission(self) -> None:
        """Let vLLM start or resume no more requests in this step."""
        ...
