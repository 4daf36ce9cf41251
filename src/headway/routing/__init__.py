"""Routers: on which instance a request runs. One router a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headway.core.job import Job
from headway.errors import ConfigError
from headway.routing.least_work import LeastWork
from headway.routing.power_of_two import PowerOfTwo
from headway.routing.round_robin import RoundRobin


class Router(Protocol):
    """Places each request once, knowing what it placed before and what has ended since.

    The same sequence of calls gives the same answers: no clock, no chance.
    """

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance, one of `instances` (at least one), that serves the job."""
        ...

    def end(self, job: Job) -> None:
        """A job that was placed is gone."""
        ...


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-work": LeastWork,
    "power-of-two": PowerOfTwo,
}
"""The routers a flag can name."""


def build_router(name: str) -> Router:
    """A fresh router; ConfigError for an unknown name."""
    if name not in ROUTERS:
        raise ConfigError(f"unknown router {name!r}; accepted: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
