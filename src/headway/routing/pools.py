"""Pools of instances, and when an instance should change its pool."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.job import Job
from headway.errors import ConfigError

PoolSizes = Mapping[str, int]
"""Instances in each pool, in the given order."""

LP, HP = "lp", "hp"
"""Ascendra's pools: low and high priority."""
PREFILL, DECODE = "prefill", "decode"
"""Pools that compute prompts, and that continue from the prompts' KV."""
STAGES = frozenset({PREFILL, DECODE})

_POOL = re.compile(r"[a-z][a-z0-9]*")
_ACCEPTED = "POOL=COUNT,... with names of small letters and digits and counts of 1 or more, as lp=2,hp=1"


def parse_pools(text: str) -> PoolSizes:
    """Parse `lp=2,hp=1`. Raises ConfigError for anything else, or a repeated pool."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if not (_POOL.fullmatch(name) and count.isascii() and count.isdigit() and int(count)):
            raise ConfigError(f"pools are {text!r}; accepted: {_ACCEPTED}")
        if name in sizes:
            raise ConfigError(f"pools are {text!r}, with {name} twice; accepted: each pool once")
        sizes[name] = int(count)
    return sizes


def check_low_priority(pools: Container[str]) -> None:
    """Raise ConfigError for high-priority instances without low-priority ones, which new requests go to."""
    if HP in pools and LP not in pools:
        raise ConfigError(f"pools are {HP} alone; accepted: {LP} beside it, which new requests go to")


def instance_names(sizes: PoolSizes) -> tuple[str, ...]:
    """A name for each instance: its pool, and its number there from 0 on."""
    return tuple(instance_name(pool, number) for pool, count in sizes.items() for number in range(count))


def instance_name(pool: str, number: int) -> str:
    """The name of one instance; without a pool its number alone."""
    return f"{pool}-{number}" if pool else f"{number}"


def pool_of(name: str) -> str:
    """The pool of an instance; empty if it is in none."""
    return name.rpartition("-")[0]


_POOLS = (LP, HP)


def share_left(waiting: Iterable[Job], now_s: float) -> float:
    """Mean share of the first-token target left to waiting requests: 1 on arrival, 0 when due.

    An overdue request counts 0, one without the target is left out; 1 if none remains. O(waiting).
    """
    shares = [
        max(0.0, 1.0 - (now_s - job.arrival_s) / job.slo.ttft_s)
        for job in waiting
        if job.slo.ttft_s is not None and not job.num_output_tokens
    ]
    return sum(shares) / len(shares) if shares else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """When a pool is short, when the other has an instance to spare, and the waiting times around a change.

    Shares are of the first-token target, as in `share_left`. The gap between `short` and `spare` keeps an instance from
    going back and forth. Raises ConfigError for a value out of range.
    """

    short: float = 0.3
    spare: float = 0.7
    patience_s: float = 10.0
    dwell_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.short < self.spare <= 1:
            raise ConfigError(f"short is {self.short}, spare {self.spare}; accepted: 0 <= short < spare <= 1")
        for name in ("patience_s", "dwell_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError.of(name, getattr(self, name), "0 or more seconds")


@dataclass(frozen=True, slots=True)
class RoleChange:
    """`instance` is to drain and come back as `new_name`, in another pool."""

    instance: str
    new_name: str


@dataclass(slots=True)
class Roles:
    """Moves one instance at a time from the pool with time to spare to the one that is short of it.

    A pool is short while its share is below `short` and the other's above `spare`. This must last for `patience_s`, and
    `dwell_s` must have passed since the last change, so that the new split is what is judged. No pool gives its last
    instance. Pure: time and shares are passed in. O(instances). An option beyond the paper, which chooses the split in
    advance (Ascendra, section on configuration).
    """

    settings: RoleSettings = field(default_factory=RoleSettings)
    _short: str | None = None
    _short_since_s: float = 0.0
    _changed_s: float | None = None

    def decide(
        self, instances: Sequence[str], shares: Mapping[str, float], now_s: float
    ) -> RoleChange | None:
        """The change to make now, if any, which counts as made; call every second or so.

        `instances` are those that serve, `shares` the share left in each pool (1 if no job waits).
        """
        short = self._short_pool(shares)
        if short is None or short != self._short:
            self._short, self._short_since_s = short, now_s
        if short is None or now_s - self._short_since_s < self.settings.patience_s:
            return None
        if self._changed_s is not None and now_s - self._changed_s < self.settings.dwell_s:
            return None
        giving = [name for name in instances if pool_of(name) in _POOLS and pool_of(name) != short]
        if len(giving) < 2:
            return None
        self._short, self._changed_s = None, now_s
        return RoleChange(giving[-1], _free_name(short, instances))

    def _short_pool(self, shares: Mapping[str, float]) -> str | None:
        """The pool that is short while the other has time to spare."""
        for pool, other in (_POOLS, _POOLS[::-1]):
            if shares.get(pool, 1.0) < self.settings.short and shares.get(other, 1.0) > self.settings.spare:
                return pool
        return None


def _free_name(pool: str, taken: Sequence[str]) -> str:
    """The first name of a pool that no instance has."""
    number = 0
    while instance_name(pool, number) in taken:
        number += 1
    return instance_name(pool, number)
