"""The sizes of an engine when a user gives few of them: vLLM's own defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from headway.errors import ConfigError
from headway.predict.steps.attention_kernels import DEFAULT_ATTENTION
from headway.setting import COUNT, Setting, Shown, ValueBounds, check_settings
from headway.written_path import written_path

if TYPE_CHECKING:
    from headway.predict.models.kv_groups import KvLayout
    from headway.predict.steps.calibration import Calibration, EngineDefaults
    from headway.sim.limits import EngineLimits

MOST_HOST_GIB = 1 << 16
"""Most host memory that can be simulated: more than any machine has; every block of it takes memory here."""

_HOST_GIB = ValueBounds(f"0 or more GiB, up to {MOST_HOST_GIB:,}", lambda value: 0 <= value <= MOST_HOST_GIB)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """An engine's sizes as given; None means vLLM 0.32's default, or the measured value.

    `asynchronous` is vLLM's asynchronous scheduling: by default on for GPUs without pipeline stages; for a machine
    measured by `headway profile`, as it is served there. `host_blocks` is room for KV in host memory, in blocks of the
    device's size; `host_kv_gib` gives it in GiB, rounded down to whole blocks. The default is none, as in vLLM.
    """

    tp: Annotated[int, Setting("GPUs of an engine, tensor-parallel.", "N", COUNT)] = 1
    pp: Annotated[int, Setting("Pipeline stages of an engine.", "N", COUNT)] = 1
    max_num_seqs: Annotated[int | None, Setting("Seats (default: vLLM's).", "N")] = None
    max_num_batched_tokens: Annotated[int | None, Setting("Tokens a step (default: vLLM's).", "N", COUNT)] = (
        None
    )
    max_cudagraph_capture_size: Annotated[
        int | None,
        Setting(
            "Most tokens of a step that CUDA graphs hold; 0: as --enforce-eager (default: vLLM's).",
            "N",
        ),
    ] = None
    block_size: Annotated[
        int | None,
        Setting("Tokens a KV block (default: vLLM's, or what a cost file was measured with).", "N", COUNT),
    ] = None
    num_blocks: Annotated[int | None, Setting("KV blocks (default: what fits the memory).", "N")] = None
    host_blocks: Annotated[
        int,
        Setting("KV blocks of host memory for swaps. Without any, policies compute KV again.", "N"),
    ] = 0
    host_kv_gib: Annotated[
        float, Setting("Host memory for swaps in GiB, as `headway serve --host-kv-gib`.", "GIB", _HOST_GIB)
    ] = 0.0
    batch_width: Annotated[
        int | None, Setting("Most requests that one step runs (default: all seats).", "N")
    ] = None
    prefix_caching: Annotated[
        bool,
        Setting(
            "Let prompts that begin alike share their KV.",
            shown=Shown(flag="--prefix-caching/--no-prefix-caching"),
        ),
    ] = True
    attention: Annotated[
        str,
        Setting(
            "Attention kernels as this engine launches them: flash-attn (today's vLLM), flashinfer, vllm-v0 or "
            "sarathi-serve. The last three give decodes beside prompts a kernel of their own.",
            "NAME",
        ),
    ] = DEFAULT_ATTENTION
    asynchronous: Annotated[
        bool | None,
        Setting(
            "vLLM's asynchronous scheduling (default: on for GPUs, --pp 1).",
            shown=Shown(flag="--async/--sync"),
        ),
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if self.host_kv_gib and self.host_blocks:
            raise ConfigError.of(
                "host_kv_gib", f"{self.host_kv_gib:g} and host_blocks {self.host_blocks}", "one of the two"
            )


def engine_limits(sizes: EngineSizes, name: str, calibration: Calibration) -> EngineLimits:
    """The limits of one engine of this calibration: the given sizes, else vLLM's defaults for `name`.

    Raises ConfigError for a size that is not accepted, for more seats than tokens a step (which vLLM refuses), or for a
    KV cache of less than one block. Reads a cost file.
    """
    from headway.predict.steps.calibration import load_cost_file  # imports numpy, too slow for `--help`
    from headway.predict.steps.hardware import GPU_BLOCK_TOKENS, is_cost_file
    from headway.sim.limits import EngineLimits

    measured = load_cost_file(written_path(name)) if is_cost_file(name) else None
    engine = _gpu_engine(name) if measured is None else measured.engine or _cpu_engine(sizes.tp * sizes.pp)
    tokens = engine.max_num_batched_tokens
    if sizes.max_num_batched_tokens is not None:
        tokens = sizes.max_num_batched_tokens
    if sizes.max_num_seqs is not None and sizes.max_num_seqs > tokens:
        raise ConfigError.of(
            "max_num_seqs",
            f"{sizes.max_num_seqs} with max_num_batched_tokens {tokens}, which vLLM refuses",
            "no more seats than tokens a step",
        )
    asynchronous = sizes.asynchronous
    block_size, captured = sizes.block_size, sizes.max_cudagraph_capture_size
    if block_size is None:
        block_size = GPU_BLOCK_TOKENS if measured is None else measured.block_size
    if captured is None and measured is not None:
        captured = measured.graphed_tokens
    layout = _windowed_layout(sizes.tp, block_size, calibration)
    num_blocks = sizes.num_blocks
    if num_blocks is None:
        num_blocks = calibration.kv_capacity_tokens // block_size
        if layout is not None:
            told = measured.kv_blocks if measured else calibration.kv_bytes // layout.block_bytes
            num_blocks = told or num_blocks
    return EngineLimits(
        num_blocks=num_blocks,
        kv_groups=layout.groups if layout else (),
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


def _windowed_layout(tp: int, block_size: int, calibration: Calibration) -> KvLayout | None:
    """How the model's layers share the KV cache; None if all of them keep all tokens."""
    from headway.predict.models.kv_groups import kv_layout_of

    model = calibration.model
    return kv_layout_of(model, tp, block_size) if model is not None and model.windowed else None


def host_blocks(gib: float, block_size: int, calibration: Calibration) -> int:
    """Whole blocks of KV that fit this host memory."""
    return int(gib * _GIB) // (block_size * calibration.kv_bytes_per_token)


def _gpu_engine(name: str) -> EngineDefaults:
    """vLLM's defaults on a GPU. Source: vLLM 0.32, EngineArgs.get_batch_defaults."""
    from headway.predict.steps.calibration import EngineDefaults
    from headway.predict.steps.hardware import hardware

    device = hardware(name)
    if device.memory_bytes >= 160 * _GIB:
        return EngineDefaults(max_num_batched_tokens=16384, max_num_seqs=1024, asynchronous=True)
    if device.memory_bytes >= 70 * _GIB and "a100" not in device.name.lower():
        return EngineDefaults(max_num_batched_tokens=8192, max_num_seqs=1024, asynchronous=True)
    return EngineDefaults(max_num_batched_tokens=2048, max_num_seqs=256, asynchronous=True)


def _cpu_engine(world_size: int) -> EngineDefaults:
    """vLLM's defaults on a CPU, for a cost file without any. Source: as above."""
    from headway.predict.steps.calibration import EngineDefaults

    return EngineDefaults(
        max_num_batched_tokens=2048 * world_size, max_num_seqs=128 * world_size, asynchronous=False
    )
