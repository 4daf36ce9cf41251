"""Pools of instances, and the names of those in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headway.errors import ConfigError

PoolSizes = Mapping[str, int]
"""How many instances each pool has, in the order they were given."""

LP, HP = "lp", "hp"
"""Ascendra's pools: low and high priority."""
PREFILL, DECODE = "prefill", "decode"
"""Pools of instances that compute prompts, and that go on from the KV of those prompts."""
STAGES = frozenset({PREFILL, DECODE})

_POOL = re.compile(r"[a-z][a-z0-9]*")
_ACCEPTED = "POOL=COUNT,... with names of small letters and digits and counts of 1 or more, as lp=2,hp=1"


def parse_pools(text: str) -> PoolSizes:
    """Sizes from `lp=2,hp=1`; ConfigError for anything else, or a pool given twice."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.partition("=")
        if not (_POOL.fullmatch(name) and count.isascii() and count.isdigit() and int(count)):
            raise ConfigError(f"pools are {text!r}; accepted: {_ACCEPTED}")
        if name in sizes:
            raise ConfigError(f"pools are {text!r}, with {name} twice; accepted: each pool once")
        sizes[name] = int(count)
    return sizes


def instance_names(sizes: PoolSizes) -> tuple[str, ...]:
    """A name for each instance: its pool, and its number there from 0 on."""
    return tuple(instance_name(pool, number) for pool, count in sizes.items() for number in range(count))


def instance_name(pool: str, number: int) -> str:
    """The name of one instance; without a pool its number alone."""
    return f"{pool}-{number}" if pool else f"{number}"


def pool_of(name: str) -> str:
    """The pool an instance belongs to; empty for one that is in none."""
    return name.rpartition("-")[0]
