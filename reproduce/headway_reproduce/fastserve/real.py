"""FastServe on this machine's own engine: the same lengths, fewer jobs, a made model."""

from __future__ import annotations

from headway.lab.stream import Stream
from headway.traces import TraceRequest, take
from headway_reproduce.fastserve.setting import CLUSTER, REAL, THETA, Point, zipf
from headway_reproduce.real_study import RealColumn, RealPlan, RealSizes

REQUESTS = 60
POINT = Point(machine=CLUSTER, lengths=zipf(THETA))
"""Whose requests are served."""
SIZES = RealSizes(blocks=96, host_blocks=256, batch_width=8)
"""Half of what eight of the longest jobs would need, so that memory is short."""


def real_requests(count: int = REQUESTS) -> list[TraceRequest]:
    """The first requests of the end-to-end draw, all at 0 s, each declaring the limit of its answer."""
    trace = f"{POINT.trace()}/max_output={POINT.lengths.limit}"
    return take(Stream(trace).requests(0), count)


REAL_PLAN = RealPlan(
    policies=REAL,
    sizes=SIZES,
    requests=real_requests,
    columns=(
        RealColumn(key="mean_jct_s", heading="mean JCT s", over=True),
        RealColumn(key="p99_jct_s", heading="p99 JCT s", over=True),
        RealColumn(key="throughput_rps", heading="req/s"),
        RealColumn(key="preemptions", heading="preemptions"),
        RealColumn(key="swapped_out_blocks", heading="blocks out"),
        RealColumn(key="recomputed_tokens", heading="recomputed tokens"),
    ),
    what="jobs of the end-to-end workload, all at once",
    note="Over orca less than 1 is shorter. Memory is short, and orca reserves room for 512 tokens of every answer, so "
    "that few of its jobs run at a time. A CPU's copies and products are not a GPU's.",
    seconds=180.0,
)
