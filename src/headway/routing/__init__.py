"""Routers: on which instance a request runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from headway.core.job import Job
from headway.errors import ConfigError, meant
from headway.routing.ascendra import Ascendra
from headway.routing.cache_aware import CacheAware
from headway.routing.load import LeastLoaded, PowerOfTwo, RoundRobin
from headway.routing.prefill_decode import PrefillDecode


class Router(Protocol):
    """Places each request, given its earlier placements and the starts and ends since.

    `instances` are the names of those that can serve now, at least one, in a stable order. Jobs are identified by their
    ids. Equal sequences of calls give equal answers: no clock, no randomness.
    """

    @property
    def hands_off(self) -> bool:
        """Whether `hand_off` may name another instance; if False, no instance needs to give a job up."""
        ...

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance for a new job, or for one whose instance was lost: the job counts there from now on."""
        ...

    def started(self, job: Job) -> None:
        """A job's first token is out: it no longer waits where it was placed."""
        ...

    def hand_off(self, job: Job, instances: Sequence[str]) -> str | None:
        """Another instance for a job that its own gave up unstarted; None: the job stays there."""
        ...

    def waiting_elsewhere(self, instance: str, instances: Sequence[str]) -> Sequence[int]:
        """Prompt tokens that wait at each instance to which this one may hand off; empty if it never does."""
        ...

    def end(self, job: Job) -> None:
        """A placed job is gone; called once for each, wherever it was."""
        ...

    def lost(self, instance: str) -> None:
        """An instance is gone with its state; a new one of its name holds nothing."""
        ...


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-work": LeastLoaded,
    "power-of-two": PowerOfTwo,
    "cache-aware": CacheAware,
    "ascendra": Ascendra,
    "ascendra-no-ticket": partial(Ascendra, tickets=False),
    "ascendra-revoke": partial(Ascendra, revoke=True),
    "prefill-decode": PrefillDecode,
}
"""The routers that a flag can name."""
DEFAULT_ROUTER, POOL_ROUTER = "cache-aware", "ascendra"
"""Defaults for equal instances and for pools, in serving, simulation and planning alike."""
STAGE_ROUTER = "prefill-decode"
"""Router of the pools `prefill` and `decode`. Only the gateway has two stages; the simulator refuses it."""


def build_router(name: str) -> Router:
    """Make a fresh router. Raises ConfigError for an unknown name."""
    if name not in ROUTERS:
        raise ConfigError(f"unknown router {name!r}; {meant(name, ROUTERS)}")
    return ROUTERS[name]()
