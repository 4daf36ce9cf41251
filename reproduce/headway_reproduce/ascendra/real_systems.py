"""Who is compared with Ascendra on real instances: the same instances under stock vLLM, routed and dropped two ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headway.errors import ConfigError
from headway.policies.presets import POOLED
from headway.routing.pools import HP, LP, PoolSizes

ASCENDRA = "ascendra"
DROP = ("expired",)
"""What is still waiting past its TTFT target leaves (Ascendra section 3.9); Ascendra's own presets have it too."""


@dataclass(frozen=True, slots=True)
class RealService:
    """How a set of instances schedules: pool -> preset, and rules in place of the presets' own.

    Instances of the one pool `""` are all alike.
    """

    presets: Mapping[str, str]
    leaving: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class RealSystem:
    """A gateway over the instances of a service (a key of SERVICES), and its router."""

    service: str
    router: str


SERVICES = {
    ASCENDRA: RealService(POOLED[ASCENDRA]),
    "vllm": RealService({"": "vllm"}),
    "vllm-drop": RealService({"": "vllm"}, leaving=DROP),
}

SYSTEMS = {
    ASCENDRA: RealSystem(ASCENDRA, ASCENDRA),
    "vllm round-robin": RealSystem("vllm", "round-robin"),
    "vllm least-work": RealSystem("vllm", "least-work"),
    "vllm round-robin, drop": RealSystem("vllm-drop", "round-robin"),
    "vllm least-work, drop": RealSystem("vllm-drop", "least-work"),
}
STOCK = tuple(name for name in SYSTEMS if name != ASCENDRA)
"""The four that the best is taken of."""


def calibrating(systems: Iterable[str]) -> str:
    """The system that capacity and light-load latencies are measured on: the first of stock's.

    Its requests have no targets then, so that nothing is dropped. Raises ConfigError if there is none.
    """
    for name in systems:
        if name in STOCK:
            return name
    raise ConfigError(f"nothing to measure capacity on; accepted: systems with one of {', '.join(STOCK)}")


def pool_sizes(service: RealService, instances: int) -> PoolSizes:
    """How many of so many instances each pool has: one is for high priority, all others for low.

    Raises ConfigError for fewer instances than pools.
    """
    if instances < len(service.presets):
        raise ConfigError(f"instances is {instances}; accepted: {len(service.presets)} or more")
    if len(service.presets) == 1:
        return dict.fromkeys(service.presets, instances)
    return {LP: instances - 1, HP: 1}
