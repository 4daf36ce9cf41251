"""What a simulated engine is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.cuda_graphs import captured_tokens
from headway.core.host_copies import DEFAULT_RESTORE_SHARE
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes of one engine, by the names of vLLM's own flags where it has one.

    `num_blocks` counts usable KV blocks (vLLM's own count has one more, its null block). `batch_width` is
    how many requests a step may run, None for as many as may be resident (`max_num_seqs`).

    `max_cudagraph_capture_size` is 0 where there are no CUDA graphs, None for what vLLM takes by itself.
    `host_blocks` is room for copies of KV in host memory. Jobs on their way back from there, or back and not
    yet run, hold at most `restore_share` (0 to 1) of the KV blocks, or there is only one of them.
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

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "pipeline_stages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: 1 or more")
        if self.batch_width is not None and self.batch_width < 1:
            raise ConfigError(f"batch_width is {self.batch_width}; accepted: 1 or more")
        if (self.max_cudagraph_capture_size or 0) < 0:
            raise ConfigError(
                f"max_cudagraph_capture_size is {self.max_cudagraph_capture_size}; accepted: 0 or more"
            )
        for name in ("watermark_blocks", "host_blocks"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: 0 or more")
        if not 0 < self.restore_share <= 1:
            raise ConfigError(f"restore_share is {self.restore_share}; accepted: more than 0, up to 1")
        if self.asynchronous and self.pipeline_stages > 1:
            raise ConfigError("asynchronous scheduling with pipeline stages is not simulated; choose one")

    @property
    def graphed_tokens(self) -> int:
        """Tokens of a step that CUDA graphs hold at most."""
        if self.max_cudagraph_capture_size is None:
            return captured_tokens(self.max_num_seqs, self.max_num_batched_tokens)
        return min(self.max_cudagraph_capture_size, self.max_num_batched_tokens)

    @property
    def depth(self) -> int:
        """Steps in flight at most: vLLM's `max_concurrent_batches`."""
        return 2 if self.asynchronous else self.pipeline_stages

    @property
    def max_run(self) -> int:
        """Requests a step may run."""
        return min(self.batch_width or self.max_num_seqs, self.max_num_seqs)

    @property
    def restore_blocks(self) -> int:
        """KV blocks that jobs on their way back, or back and not yet run, may hold together."""
        return int(self.restore_share * self.num_blocks)
