"""The flags that give an engine memory for KV beside the device, alike wherever one is started or simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.kv.host import HostKv

HostKvGib = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        help="Host memory for the KV of requests that are swapped out, so that they come back by a copy and "
        "not by computing; all workers together. 0: none. Only policies with eviction `swap`, `cheapest` or "
        "`proactive` use it.",
    ),
]
HostKvBytesPerS = Annotated[
    float | None,
    typer.Option(
        metavar="B",
        help="Bytes per second that KV copies reach at most, each direction by itself: what a slower link "
        "would cost, such as 12e9 for PCIe 3.0.",
    ),
]
KV_TIER_SPEC = "gib=X[/gib_per_s=X][/latency_ms=X]"
KV_TIER_HELP = (
    "KV offloading, as vLLM's --kv-offloading-size or LMCache: a store for the KV of requests that end or are "
    "preempted, beside each GPU. Size, speed of its link and start of a transfer (default: those of copies to host "
    "memory)."
)


def host_memory(gib: float | None, bytes_per_s: float | None) -> HostKv | None:
    """What the flags ask for; None without memory. Raises ConfigError for values that are not accepted."""
    from headway.engine.kv.host import HostKv

    if gib is not None and gib != 0:
        return HostKv(gib=gib, bytes_per_s=bytes_per_s)
    if bytes_per_s is not None:
        raise ConfigError(
            f"--host-kv-bytes-per-s is {bytes_per_s} without host memory; accepted: with --host-kv-gib"
        )
    return None
