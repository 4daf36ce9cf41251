"""What an engine is configured with when a user says little, as vLLM decides it itself."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError
from headway.predict.steps.calibration import Calibration, EngineDefaults, load_cost_file
from headway.predict.steps.hardware import hardware, is_cost_file
from headway.sim.limits import EngineLimits
from headway.written_path import written_path

GPU_BLOCK_TOKENS = 16
"""Tokens a KV block that vLLM takes by itself on GPUs."""

MOST_HOST_GIB = 1 << 16
"""Host memory that can be simulated: more than any machine has, and every block of it is accounted for."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """An engine's sizes as far as they were given; None means as vLLM 0.32 serves by default, or as it was measured.

    `asynchronous` is vLLM's asynchronous scheduling: by default on for GPUs without pipeline stages, for a machine
    measured by `headway profile` as it is served there. `host_blocks` is room for KV in host memory, in blocks of
    the same size, or `host_kv_gib` in GiB, of which what is no whole block is left; none by default, as in vLLM.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_cudagraph_capture_size: int | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    batch_width: int | None = None
    prefix_caching: bool = True
    asynchronous: bool | None = None
    host_blocks: int = 0
    host_kv_gib: float = 0.0
    tp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "block_size", "tp", "pp"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; accepted: 1 or more")
        if not 0 <= self.host_kv_gib <= MOST_HOST_GIB:
            raise ConfigError(
                f"host_kv_gib is {self.host_kv_gib}; accepted: 0 or more GiB, up to {MOST_HOST_GIB:,}"
            )
        if self.host_kv_gib and self.host_blocks:
            raise ConfigError(
                f"host_kv_gib is {self.host_kv_gib:g} and host_blocks {self.host_blocks}; accepted: one of the two"
            )


def engine_limits(sizes: Sizes, name: str, calibration: Calibration) -> EngineLimits:
    """The limits of one engine of this calibration: what was given, and vLLM's defaults for `name` else.

    Raises ConfigError for a size that is not accepted, for more seats than tokens a step, which vLLM refuses, or for a
    KV cache of less than one block. Reads a cost file.
    """
    measured = load_cost_file(written_path(name)) if is_cost_file(name) else None
    engine = _gpu_engine(name) if measured is None else measured.engine or _cpu_engine(sizes.tp * sizes.pp)
    tokens = engine.max_num_batched_tokens
    if sizes.max_num_batched_tokens is not None:
        tokens = sizes.max_num_batched_tokens
    if sizes.max_num_seqs is not None and sizes.max_num_seqs > tokens:
        raise ConfigError(
            f"max_num_seqs is {sizes.max_num_seqs} with max_num_batched_tokens {tokens}, which vLLM refuses; accepted: "
            "no more seats than tokens a step"
        )
    asynchronous = sizes.asynchronous
    block_size, captured = sizes.block_size, sizes.max_cudagraph_capture_size
    if block_size is None:
        block_size = GPU_BLOCK_TOKENS if measured is None else measured.block_size
    if captured is None and measured is not None:
        captured = measured.graphed_tokens
    num_blocks = sizes.num_blocks
    if num_blocks is None:
        num_blocks = calibration.kv_capacity_tokens // block_size
    return EngineLimits(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=min(engine.max_num_seqs, tokens) if sizes.max_num_seqs is None else sizes.max_num_seqs,
        max_num_batched_tokens=tokens,
        max_cudagraph_capture_size=captured,
        batch_width=sizes.batch_width,
        prefix_caching=sizes.prefix_caching,
        asynchronous=sizes.pp == 1 and engine.asynchronous if asynchronous is None else asynchronous,
        pipeline_stages=sizes.pp,
        host_blocks=sizes.host_blocks or host_blocks(sizes.host_kv_gib, block_size, calibration),
    )


def host_blocks(gib: float, block_size: int, calibration: Calibration) -> int:
    """The whole blocks of KV that so much host memory holds."""
    return int(gib * _GIB) // (block_size * calibration.kv_bytes_per_token)


def _gpu_engine(name: str) -> EngineDefaults:
    """`vllm serve` on a GPU. Source: vLLM 0.32, EngineArgs.get_batch_defaults."""
    device = hardware(name)
    if device.memory_bytes >= 160 * _GIB:
        return EngineDefaults(max_num_batched_tokens=16384, max_num_seqs=1024, asynchronous=True)
    if device.memory_bytes >= 70 * _GIB and "a100" not in device.name.lower():
        return EngineDefaults(max_num_batched_tokens=8192, max_num_seqs=1024, asynchronous=True)
    return EngineDefaults(max_num_batched_tokens=2048, max_num_seqs=256, asynchronous=True)


def _cpu_engine(world_size: int) -> EngineDefaults:
    """The same on a CPU, for a cost file that says nothing of it. Source: as above."""
    return EngineDefaults(
        max_num_batched_tokens=2048 * world_size, max_num_seqs=128 * world_size, asynchronous=False
    )
