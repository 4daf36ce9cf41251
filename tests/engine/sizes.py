"""The sizes of a small engine that is not there."""

from __future__ import annotations

from headway.engine.stepped_engine import ReportedSizes

SIZES = ReportedSizes(
    block_size=32,
    num_blocks=511,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    graphed_tokens=64,
    max_model_len=1024,
    prefix_caching=True,
    asynchronous=True,
    kv_bytes_per_token=64,
    tensor_parallel=1,
    dtype="bfloat16",
)
