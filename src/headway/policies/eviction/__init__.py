"""Evictions decide whose KV leaves the device, and how. One idea a file."""

from __future__ import annotations

from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.proactive import Proactive
from headway.policies.eviction.reactive import Recompute, Swap
from headway.policies.protocols import Eviction

EVICTIONS: dict[str, type[Eviction]] = {
    "recompute": Recompute,
    "swap": Swap,
    "cheapest": Cheapest,
    "proactive": Proactive,
}
