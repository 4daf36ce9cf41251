"""The KV connector that vLLM loads: its scheduler side decides, its worker side copies."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from headway.engine.host_kv import HostKv, most_layers, why_not
from headway.engine.kv.copies import CopyOrders
from headway.engine.kv.scheduler_side import KvSwaps
from headway.engine.reason import reason_left
from headway.engine.step.admission import Admission
from headway.engine.step.ports import KvPort
from headway.engine.step.step_listeners import StepListeners

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from headway.engine.kv.worker_side import KvWorker


logger = logging.getLogger(__name__)


class HeadwayConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Forwards vLLM's calls: on the scheduler's side to `swaps`, on a worker to `worker`.

    Without Headway's scheduler, or for a model whose KV cannot be copied, the connector reports nothing to load and
    does nothing.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.swaps: KvSwaps | None = None
        self.worker: KvWorker | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """False: vLLM may deliver a preempted request's tokens in flight. Saving its KV is decided elsewhere."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """False: workers keep views of KV tensors, and sleep mode maps those anew. vLLM asks from 0.33 on."""
        return False

    # ---- the scheduler's side ----------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens of a swapped request to copy back, and whether the copy runs beside other steps."""
        return (0, False) if self.swaps is None else self.swaps.matched(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """A request is admitted: copies into its blocks may start."""
        if self.swaps is not None:
            self.swaps.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The copies that start with this step."""
        return CopyOrders() if self.swaps is None else self.swaps.orders()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Learn which copies are done."""
        report = connector_output.kv_connector_worker_meta
        if self.swaps is not None and report is not None:
            self.swaps.hear(report)

    def has_pending_block_frees(self) -> bool:
        """Whether a request short of blocks should wait for those that copies hold."""
        return self.swaps is not None and self.swaps.waits_for_blocks()

    def has_pending_push_work(self) -> bool:
        """Whether steps are needed only to learn that copies are done."""
        return self.swaps is not None and self.swaps.copies.busy

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Let vLLM free the blocks at once: copies hold references to those that they need."""
        return False, None

    def reset_cache(self) -> bool:
        """Nothing to reset: copies belong to requests, not to prefixes."""
        return True

    # ---- a worker's side ---------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Allocate host memory for the layers' blocks, unless this model's KV is never copied."""
        from headway.engine.kv.worker_side import KvWorker

        config = self._kv_cache_config
        if why_not(config, zeroes_blocks=False) is not None:
            return
        with reason_left():
            host = HostKv.of(self._vllm_config)
            num_host_blocks = host.num_blocks(
                config,
                self._vllm_config.parallel_config.world_size,
                most_layers=most_layers(self._vllm_config),
            )
            self.worker = KvWorker.over(kv_caches, config, num_host_blocks, host.bytes_per_s)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Runs before everything else in a step: start the copies, and wait for the serial ones."""
        if self.worker is not None:
            assert isinstance(kv_connector_metadata, CopyOrders)
            self.worker.start(kv_connector_metadata)

    def has_connector_metadata(self) -> bool:
        """False: no layer has to wait or to save, so vLLM need not ask each of them."""
        return False

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: `handle_preemptions` has started the loads."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads that a step needs are finished before the step begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are saved between steps."""

    def wait_for_save(self) -> None:
        """Nothing: the scheduler holds the blocks of a save until the worker reports it done."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Device blocks whose serial copy failed; vLLM computes their KV again."""
        return set() if self.worker is None else self.worker.take_invalid_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """The copies that finished since the last call."""
        return None if self.worker is None else self.worker.report()

    def shutdown(self) -> None:
        """End the copies that are under way."""
        if self.worker is not None:
            self.worker.close()


def swaps_of(
    engine: KvPort, admission: Admission, listeners: StepListeners, *, serial: bool
) -> KvSwaps | None:
    """Make the swaps of a scheduler; None without Headway's connector, or if the model's KV cannot be copied."""
    connector = engine.connector
    if not isinstance(connector, HeadwayConnector):
        return None
    reason = why_not(engine.kv_cache_config, zeroes_blocks=engine.needs_kv_cache_zeroing)
    if reason is not None:
        logger.warning("KV is not swapped, preempted requests are recomputed: %s", reason)
        return None
    connector.swaps = KvSwaps(engine, HostKv.of(engine.vllm_config), admission, listeners, serial=serial)
    return connector.swaps
