"""Configuration of a simulated engine: its sizes, and the KV tier beside it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from headway.core.batch_shape import captured_tokens
from headway.core.host_copies import DEFAULT_RESTORE_SHARE
from headway.errors import ConfigError
from headway.predict.models.kv_groups import KvGroup
from headway.predict.steps.copies import TransferModel

_WITH_WINDOWS = "with a model whose layers have sliding windows, whose blocks are not copied"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes of one engine, named like vLLM's own flags where these exist.

    `num_blocks` counts usable KV blocks (vLLM's own count has one more, its null block). `batch_width` is how many
    requests a step may run; None for `max_num_seqs`.

    `max_cudagraph_capture_size` is 0 without CUDA graphs, None for vLLM's own choice. `host_blocks` is room for KV
    copies in host memory. Jobs on their way back from the host, or back and not yet run, hold at most `restore_share`
    (0 to 1) of the KV blocks, unless there is only one such job. `kv_groups` are the groups of layers that share the
    blocks in a model with sliding windows; empty if all layers keep all tokens.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    batch_width: int | None = None
    max_cudagraph_capture_size: int | None = None
    watermark_blocks: int = 0
    prefix_caching: bool = True
    asynchronous: bool = False
    pipeline_stages: int = 1
    host_blocks: int = 0
    restore_share: float = DEFAULT_RESTORE_SHARE
    kv_groups: tuple[KvGroup, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "pipeline_stages"):
            if getattr(self, name) < 1:
                raise ConfigError.of(name, getattr(self, name), "1 or more")
        if self.batch_width is not None and self.batch_width < 1:
            raise ConfigError.of("batch_width", self.batch_width, "1 or more")
        if (self.max_cudagraph_capture_size or 0) < 0:
            raise ConfigError.of("max_cudagraph_capture_size", self.max_cudagraph_capture_size, "0 or more")
        for name in ("watermark_blocks", "host_blocks"):
            if getattr(self, name) < 0:
                raise ConfigError.of(name, getattr(self, name), "0 or more")
        if self.kv_groups and self.host_blocks:
            raise ConfigError.of("host_blocks", f"{self.host_blocks} {_WITH_WINDOWS}", "0")
        if not 0 < self.restore_share <= 1:
            raise ConfigError.of("restore_share", self.restore_share, "more than 0, up to 1")
        if self.asynchronous and self.pipeline_stages > 1:
            raise ConfigError("asynchronous scheduling with pipeline stages is not simulated; choose one")

    @property
    def graphed_tokens(self) -> int:
        """Most tokens of a step that CUDA graphs hold."""
        if self.max_cudagraph_capture_size is None:
            return captured_tokens(self.max_num_seqs, self.max_num_batched_tokens)
        return min(self.max_cudagraph_capture_size, self.max_num_batched_tokens)

    @property
    def depth(self) -> int:
        """Most steps in flight: vLLM's `max_concurrent_batches`."""
        return 2 if self.asynchronous else self.pipeline_stages

    @property
    def max_run(self) -> int:
        """Requests that a step may run."""
        return min(self.batch_width or self.max_num_seqs, self.max_num_seqs)

    @property
    def restore_blocks(self) -> int:
        """KV blocks that jobs on their way back, or back and not yet run, may hold together."""
        return int(self.restore_share * self.num_blocks)


_GIB = 1 << 30
_MOST_GIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTier:
    """Memory outside the device in which a KV connector keeps blocks: `--kv-offloading-size`, LMCache and the like.

    `gib` is its size. A transfer takes `latency_ms`, then its bytes at `gib_per_s`, each direction separately; None
    means as fast as the simulated machine's host memory. Sizes and speeds are for one GPU; `of_engine` converts them to
    an engine.
    """

    gib: float
    gib_per_s: float | None = None
    latency_ms: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gib <= _MOST_GIB:
            raise ConfigError(f"gib of the KV tier is {self.gib:g}; accepted: 0 to {_MOST_GIB:,}")
        if self.gib_per_s is not None and not self.gib_per_s > 0:
            raise ConfigError(f"gib_per_s of the KV tier is {self.gib_per_s:g}; accepted: more than 0")
        if self.latency_ms is not None and not 0 <= self.latency_ms < float("inf"):
            raise ConfigError(f"latency_ms of the KV tier is {self.latency_ms:g}; accepted: 0 or more")

    def of_engine(self, gpus: int) -> KvTier:
        """The tier of an engine with `gpus` GPUs, each with its share and its own link."""
        gib_per_s = None if self.gib_per_s is None else gpus * self.gib_per_s
        return replace(self, gib=gpus * self.gib, gib_per_s=gib_per_s)

    def num_blocks(self, block_bytes: int) -> int:
        """Whole KV blocks that fit."""
        return int(self.gib * _GIB) // block_bytes

    def link(self, host: TransferModel) -> TransferModel:
        """The cost of a transfer, given the cost `host` of a copy between device and host memory."""
        start_s = host.start_s if self.latency_ms is None else self.latency_ms / 1000
        bytes_per_s = host.bytes_per_s if self.gib_per_s is None else self.gib_per_s * _GIB
        return TransferModel(start_s=start_s, bytes_per_s=bytes_per_s)

    def __str__(self) -> str:
        return "/".join(
            f"{field.name}={getattr(self, field.name):.15g}"
            for field in fields(self)
            if getattr(self, field.name) is not None
        )


def parse_kv_tier(text: str) -> KvTier:
    """Parse a tier. Raises ConfigError for a part that is not accepted.

    >>> parse_kv_tier("gib=200/gib_per_s=20")
    KvTier(gib=200.0, gib_per_s=20.0, latency_ms=None)
    """
    accepted = "gib=X[/gib_per_s=X][/latency_ms=X], each a number"
    names = {field.name for field in fields(KvTier)}
    found: dict[str, float] = {}
    for part in text.split("/"):
        name, _, value = part.partition("=")
        if name not in names or name in found:
            raise ConfigError(
                f"{part!r} of the KV tier {text!r} is unknown or given twice; accepted: {accepted}"
            )
        try:
            found[name] = float(value)
        except ValueError:
            raise ConfigError(f"{name} of the KV tier is {value!r}; accepted: {accepted}") from None
    if "gib" not in found:
        raise ConfigError(f"the KV tier {text!r} has no size; accepted: {accepted}")
    return KvTier(**found)
