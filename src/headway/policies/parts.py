"""Parts by name: the built-in ones, and those that other packages provide by entry points."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from headway.core.cost import CostModel
from headway.errors import ConfigError, meant
from headway.policies.batching import BATCHINGS
from headway.policies.eviction import EVICTIONS
from headway.policies.leaving import LEAVINGS
from headway.policies.order import ORDERS

BUILT_IN: dict[str, Mapping[str, type[Any]]] = {
    "order": ORDERS,
    "batching": BATCHINGS,
    "eviction": EVICTIONS,
    "leaving": LEAVINGS,
}
"""Kind of part -> name -> class. Another package adds one by an entry point in the group `headway.<kind>`."""
LISTED = "`headway policies`"
"""The command that lists all policies and parts, for messages."""


T = TypeVar("T")


def known_parts(kind: str) -> dict[str, type[Any]]:
    """Every available part of a kind, built in or installed."""
    return known(f"headway.{kind}", BUILT_IN[kind])


def known(group: str, built_in: Mapping[str, T]) -> dict[str, T]:
    """The built-in objects and those that other packages registered in an entry point group; raises as `find` does."""
    return {**built_in, **{name: entry.load() for name, entry in _registered(group, built_in).items()}}


def find(group: str, built_in: Mapping[str, T], name: str) -> T | None:
    """The object of that name, built in or registered by another package; imports only that one.

    Raises ConfigError if any name in the group is ambiguous.
    """
    registered = _registered(group, built_in)
    if name in registered:
        found: T = registered[name].load()
        return found
    return built_in.get(name)


def _registered(group: str, built_in: Mapping[str, object]) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in _installed(group, tuple(sys.path)):
        other = found[entry.name].value if entry.name in found else "Headway's own"
        if entry.name in found or entry.name in built_in:
            raise ConfigError(
                f"{entry.value} and {other} are both called {entry.name!r} in {group!r}; accepted: one of a name"
            )
        found[entry.name] = entry
    return found


@lru_cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The group's entry points in the distributions on this path; looking them up takes some 10 ms."""
    return tuple(entry_points(group=group))


def build_part(
    kind: str,
    spec: str,
    cost: CostModel | None,
    variant: Callable[[type[Any]], type[Any]] = lambda part: part,
) -> Any:
    """Build the part that `name` or `name:setting=value,...` describes, from the class that `variant` makes of its
    class.

    Raises ConfigError for an unknown name or setting, and for a bad value.
    """
    name, _, settings = spec.partition(":")
    part = find(f"headway.{kind}", BUILT_IN[kind], name)
    if part is None:
        raise ConfigError(f"unknown {kind} {name!r}; {meant(name, sorted(known_parts(kind)), listed=LISTED)}")
    accepted = part_settings(part)
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, given, text = setting.partition("=")
        if not given or key not in accepted:
            written = ", ".join(f"{each}=..." for each in sorted(accepted))
            raise ConfigError(f"{kind} {name!r} has no setting {setting!r}; {meant(key, accepted, written)}")
        if key in values:
            raise ConfigError(f"{kind} {name!r} is given {key} twice: {spec!r}")
        values[key] = _parse(f"{kind} {name!r}, {key}", text, accepted[key])
    if asks_for_costs(part):
        values["cost"] = cost
    return variant(part)(**values)


def asks_for_costs(part: type[Any]) -> bool:
    """Whether a part receives the engine's cost model: its constructor has a parameter `cost`."""
    return "cost" in inspect.signature(part).parameters


def part_settings(part: type[Any]) -> dict[str, type[Any]]:
    """Settings that a user may give a part: its public constructor parameters, with their plain types."""
    hints = get_type_hints(part.__init__)
    names = [
        name for name in inspect.signature(part).parameters if name != "cost" and not name.startswith("_")
    ]
    return {name: _plain_type(hints[name]) for name in names}


def _plain_type(hint: Any) -> type[Any]:
    options: list[type[Any]] = [option for option in get_args(hint) or (hint,) if option is not NoneType]
    return options[0]


def _parse(what: str, text: str, wanted: type[Any]) -> Any:
    if wanted is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"{what} is {text!r}; accepted: true or false")
        return text == "true"
    try:
        return wanted(text)
    except ValueError:
        raise ConfigError(f"{what} is {text!r}; accepted: a value of type {wanted.__name__}") from None
