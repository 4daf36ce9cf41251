"""From the prefix blocks of a trace to the keys of KV blocks."""

from __future__ import annotations

from headway.errors import ConfigError
from headway.sim.kv_pool import BlockKey
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest


def shared_keys(request: TraceRequest, block_size: int) -> list[BlockKey]:
    """The keys of a prompt's full KV blocks, as far as the trace says what they hold.

    A trace block of 512 tokens is several KV blocks; ConfigError if it is not a whole number of them.
    """
    if not request.prefix_blocks:
        return []
    per_trace_block, rest = divmod(MOONCAKE_BLOCK_TOKENS, block_size)
    if rest:
        raise ConfigError(
            f"block_size is {block_size}; accepted with a trace of prefix blocks: "
            f"a divisor of {MOONCAKE_BLOCK_TOKENS}"
        )
    known = min(request.input_tokens // block_size, len(request.prefix_blocks) * per_trace_block)
    return [
        request.prefix_blocks[index // per_trace_block] * per_trace_block + index % per_trace_block
        for index in range(known)
    ]
