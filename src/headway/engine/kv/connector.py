"""The KV connector vLLM loads: one class, whose scheduler side decides and whose worker side copies."""

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
    """Passes vLLM's questions on: on the scheduler's side to `swaps`, on a worker to `worker`.

    Without a scheduler of Headway's, or for a model whose KV cannot be copied, it says that there is nothing
    to load and does nothing.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.swaps: KvSwaps | None = None
        self.worker: KvWorker | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a preempted request's tokens in flight are delivered, its KV is saved where that is decided."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """No: workers keep views of KV tensors, which sleep mode maps anew. vLLM asks from 0.33 on."""
        return False

    # ---- the scheduler's side ----------------------------------------------------------------------

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How much of a swapped request is to be copied back, and whether while other steps run."""
        return (0, False) if self.swaps is None else self.swaps.matched(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """A request is admitted: copies into its blocks can start."""
        if self.swaps is not None:
            self.swaps.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The copies that start with this step."""
        return CopyOrders() if self.swaps is None else self.swaps.orders()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Hear which copies are done."""
        report = connector_output.kv_connector_worker_meta
        if self.swaps is not None and report is not None:
            self.swaps.hear(report)

    def has_pending_block_frees(self) -> bool:
        """Whether a request short of blocks should wait for those that copies hold."""
        return self.swaps is not None and self.swaps.waits_for_blocks()

    def has_pending_push_work(self) -> bool:
        """Whether steps are needed only to hear that copies are done."""
        return self.swaps is not None and self.swaps.copies.busy

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks may be freed at once: those that copies need are held by references of their own."""
        return False, None

    def reset_cache(self) -> bool:
        """Nothing to reset: copies belong to requests, not to prefixes."""
        return True

    # ---- a worker's side ---------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take host memory for the layers' blocks, unless nothing of this model's will be copied."""
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
        """Called before anything of a step runs: copies start, serial ones are waited for."""
        if self.worker is not None:
            assert isinstance(kv_connector_metadata, CopyOrders)
            self.worker.start(kv_connector_metadata)

    def has_connector_metadata(self) -> bool:
        """No layer has anything to wait for or to save, so vLLM need not ask each of them."""
        return False

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: `handle_preemptions` has started what is to be loaded."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a step's own loads are waited for before it begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are saved between steps."""

    def wait_for_save(self) -> None:
        """Nothing: blocks being saved are held by the scheduler until it hears that they are."""

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Device blocks a failed serial copy left without their KV; vLLM has them computed again."""
        return set() if self.worker is None else self.worker.take_invalid_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Which copies have been done since it was last asked."""
        return None if self.worker is None else self.worker.report()

    def shutdown(self) -> None:
        """End the copies under way."""
        if self.worker is not None:
            self.worker.close()


def swaps_of(
    engine: KvPort, admission: Admission, listeners: StepListeners, *, serial: bool
) -> KvSwaps | None:
    """The swaps of a scheduler whose engine has Headway's connector and a model whose KV can be copied."""
    connector = engine.connector
    if not isinstance(connector, HeadwayConnector):
        return None
    reason = why_not(engine.kv_cache_config, zeroes_blocks=engine.needs_kv_cache_zeroing)
    if reason is not None:
        logger.warning("KV is not swapped, preempted requests are recomputed: %s", reason)
        return None
    connector.swaps = KvSwaps(engine, HostKv.of(engine.vllm_config), admission, listeners, serial=serial)
    return connector.swaps
