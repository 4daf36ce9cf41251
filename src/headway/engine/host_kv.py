"""Host memory for KV copies: how much, and whether a model's KV can be copied at all."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from headway.core.host_copies import DEFAULT_RESTORE_SHARE
from headway.errors import ConfigError
from headway.setting import POSITIVE, SHARE, Setting, Shown, check_settings

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

CONNECTOR = "HeadwayConnector"
CONNECTOR_MODULE = "headway.engine.kv.connector"

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class HostKv:
    """Host memory for KV copies of one engine, summed over its workers.

    `gib` or `blocks` sets the size. `bytes_per_s` limits the copies in each direction, to show the effect of a slower
    link on any machine. Requests that are being copied back, or are back and have not run, hold at most `restore_share`
    (0 to 1) of the device's blocks, unless there is only one such request.
    """

    gib: Annotated[
        float | None,
        Setting(
            "Host memory of all workers together for the KV of swapped requests; 0: none. Swapped "
            "requests come back by a copy in place of a computation. Only policies with eviction "
            "`swap`, `cheapest` or `proactive` use it.",
            "GIB",
            POSITIVE,
        ),
    ] = None
    blocks: Annotated[int | None, Setting(bounds=POSITIVE, shown=Shown(option=False))] = None
    bytes_per_s: Annotated[
        float | None,
        Setting(
            "Upper limit of KV copies in bytes per second, for each direction: shows what a slower link "
            "costs, such as 12e9 for PCIe 3.0.",
            "B",
            POSITIVE,
        ),
    ] = None
    restore_share: Annotated[float, Setting(bounds=SHARE, shown=Shown(option=False))] = DEFAULT_RESTORE_SHARE

    def __post_init__(self) -> None:
        check_settings(self, "host_kv.")
        if (self.gib is None) == (self.blocks is None):
            raise ConfigError.of("host_kv.gib", f"{self.gib} and host_kv.blocks {self.blocks}", "one of them")

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> HostKv:
        """Read the setting with which the engine was started. Raises ConfigError if that fails."""
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{CONNECTOR}: {error}") from None

    def num_blocks(
        self, kv_cache_config: KVCacheConfig, world_size: int, *, most_layers: int | None = None
    ) -> int:
        """How many blocks fit. A block has the bytes of all layers on all workers.

        With pipeline stages of unequal size, `most_layers` is the number of layers of the largest stage, so that all
        workers and the scheduler compute the same number.
        """
        if self.blocks is not None:
            return self.blocks
        assert self.gib is not None
        bytes_a_block = worker_block_bytes(kv_cache_config, most_layers) * world_size
        blocks = int(self.gib * _GIB) // bytes_a_block
        if not blocks:
            raise ConfigError.of("host_kv.gib", self.gib, f"at least a block, {bytes_a_block} bytes")
        return blocks

    def check_machine(self, memory_bytes: int) -> None:
        """Raise ConfigError, before anything starts, if this is more memory than the machine has."""
        if self.gib is not None and self.gib * _GIB > memory_bytes:
            raise ConfigError.of(
                "host_kv.gib",
                f"{self.gib:g} but this machine has {memory_bytes / _GIB:.1f} GiB of memory in all",
                "less, and what vLLM and others take on top",
            )

    def transfer_config(self) -> dict[str, Any]:
        """The `--kv-transfer-config` that enables the copies.

        The role is `kv_producer`. In any other role vLLM keeps the blocks of preempted requests for one more step, to
        guard against copies that run out of order with the steps. Ours run in order.
        """
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": CONNECTOR_MODULE,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": given,
        }


def worker_block_bytes(kv_cache_config: KVCacheConfig, num_layers: int | None = None) -> int:
    """Bytes of one KV block on one worker, over all layers or over `num_layers`."""
    return sum(
        group.kv_cache_spec.page_size_bytes * (num_layers or len(group.layer_names))
        for group in kv_cache_config.kv_cache_groups
    )


def most_layers(vllm_config: VllmConfig) -> int | None:
    """Layers of the largest pipeline stage; None without stages, where all workers have equally many."""
    from vllm.distributed.utils import get_pp_indices

    num_stages = vllm_config.parallel_config.pipeline_parallel_size
    if num_stages == 1:
        return None
    num_layers = vllm_config.model_config.get_total_num_hidden_layers()
    stages: list[tuple[int, int]] = [
        get_pp_indices(num_layers, stage, num_stages) for stage in range(num_stages)
    ]
    return max(end - start for start, end in stages)


def why_not(kv_cache_config: KVCacheConfig, *, zeroes_blocks: bool) -> str | None:
    """The reason why this model's KV cannot be copied block by block; None if it can."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"its KV cache has {len(groups)} groups of layers; accepted: one"
    if not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return f"its layers keep {type(groups[0].kv_cache_spec).__name__}; accepted: full attention"
    return "its KV blocks have to be zeroed" if zeroes_blocks else None
