"""What a gateway is told when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.gateway.http.keys import NO_KEYS, Keys

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Cors:
    """Which pages of other origins may read the gateway's answers: vLLM's flags, in Starlette's words."""

    allow_origins: tuple[str, ...]
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Limits and defaults of the serving path. None is no limit.

    `slo`: targets of requests that name none. `max_in_flight`, `max_queue` and `max_per_tenant` count sequences: a
    request has one for each of its prompts, times `n`. `max_in_flight` are sent to each instance at a time (where
    some are kept free for hand-offs, so many times the instances to all), the others wait in the queue; Headway's
    instances order better than that. `max_queue` may be without their first token, in the queue and at
    instances, and each for `max_age_s`; a tenant may have `max_per_tenant` in all. A request is handed off `max_moves`
    times at most, and asked for `max_tries` times, or as long as an instance is left that has not failed with it (two
    tries at least): one that brings its instances down must not bring all of them down.
    `resume`: streams whose instance breaks go on at another. `drain_s`: how long running requests have to end when the
    gateway stops. `cors` None: no page of another origin may read an answer.
    """

    slo: Slo = NO_TARGETS
    resume: bool = True
    keys: Keys = NO_KEYS
    cors: Cors | None = None
    access_log: Path | None = None
    max_body_bytes: int = 64 * MIB
    max_in_flight: int | None = None
    max_queue: int | None = None
    max_age_s: float | None = None
    max_per_tenant: int | None = None
    max_moves: int = 3
    max_tries: int = 3
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_in_flight", "max_queue", "max_per_tenant", "max_tries"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; accepted: 1 or more")
        if self.max_moves < 0:
            raise ConfigError(f"max_moves is {self.max_moves}; accepted: 0 or more")
        if self.max_age_s is not None and not 0 < self.max_age_s < float("inf"):
            raise ConfigError(f"max_age_s is {self.max_age_s}; accepted: more than 0 seconds")
        if not 0 <= self.drain_s < float("inf"):
            raise ConfigError(f"drain_s is {self.drain_s}; accepted: 0 or more seconds")
