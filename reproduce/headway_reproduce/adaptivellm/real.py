"""AdaptiveLLM on this machine's own engine: the same kind of workload, fewer requests, a made model."""

from __future__ import annotations

from headway.lab.stream import Stream
from headway.traces import TraceRequest, take
from headway_reproduce.adaptivellm.setting import (
    BLOCK_TOKENS,
    GPU_BLOCKS,
    GROUPS,
    HOST_BLOCKS,
    REAL,
    Point,
)
from headway_reproduce.real_study import RealColumn, RealPlan, RealSizes

POINT = Point(group=GROUPS[0])
"""Whose requests are served; the paper's model plays no part."""
REQUESTS = 200
ENGINE_BLOCK_TOKENS = 32
"""The CPU backend's; as many KV tokens as in the paper, in fewer blocks."""


def real_requests(count: int = REQUESTS) -> list[TraceRequest]:
    """The first requests of the group's own draw, all at 0 s, each declaring the limit of its output."""
    return take(Stream(POINT.trace()).requests(0), count)


REAL_PLAN = RealPlan(
    policies=REAL,
    sizes=RealSizes(
        blocks=GPU_BLOCKS * BLOCK_TOKENS // ENGINE_BLOCK_TOKENS,
        host_blocks=HOST_BLOCKS * BLOCK_TOKENS // ENGINE_BLOCK_TOKENS,
        block_tokens=ENGINE_BLOCK_TOKENS,
    ),
    requests=real_requests,
    columns=(
        RealColumn(key="throughput_rps", heading="req/s", over=True),
        RealColumn(key="weighted_turnaround", heading="weighted turnaround"),
        RealColumn(key="preemptions", heading="preemptions"),
        RealColumn(key="swapped_out_blocks", heading="blocks out"),
        RealColumn(key="recomputed_tokens", heading="recomputed tokens"),
    ),
    what="requests of the chat groups, all at once",
    note="A CPU's copies and products are not a GPU's: this shows the same policies on the real engine, not the "
    "paper's gains.",
    seconds=140.0,
)
