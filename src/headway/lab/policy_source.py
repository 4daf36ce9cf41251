"""What a policy is made of now, so that runs of an older one are not taken for its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.core.cost import UnknownCost
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory, rows_of
from headway.policies.parts import BUILT_IN
from headway.policies.presets import PRESETS, Preset
from headway.sim.killed_steps import KILLING_ROWS

HEADWAY = "headway"
POLICIES = f"{HEADWAY}.policies."
_DIGITS = 16
_PRESET = "preset"


def made_of(policy: str, parts: Parts = OWN_PARTS) -> dict[str, dict[str, Any]]:
    """All that decides what a policy does, of one release, as plain data by row: that of each pool where it has some.

    The parts of the row, with `parts` in place of its own, a digest of their code, and what other packages bring of
    it, in which version. Nothing for an oracle.
    """
    return {name: _made_of(name, row, parts) for name, row in rows_of(policy, parts).items()}


def _made_of(name: str, row: Preset, parts: Parts) -> dict[str, Any]:
    policy = policy_factory(name, parts, ())(UnknownCost())
    made = {
        "order": row.order,
        "batching": row.batching,
        "eviction": row.eviction,
        "leaving": list(row.leaving),
        "code": code_digest((policy.order, policy.batching, policy.eviction, *policy.leaving))[:_DIGITS],
    }
    packages = sorted(set(_packages(name, row)))
    return made | ({"packages": packages} if packages else {})


def _packages(name: str, row: Preset) -> Iterator[str]:
    """The packages, but for Headway itself, that bring a row or a part of it, with their versions."""
    parts = {"order": [row.order], "batching": [row.batching], "eviction": [row.eviction]}
    named = {_PRESET: [name], **parts, "leaving": row.leaving}
    built_in = {**BUILT_IN, _PRESET: PRESETS | KILLING_ROWS}
    for kind, specs in named.items():
        for part in {spec.partition(":")[0] for spec in specs} - built_in[kind].keys():
            for entry in entry_points(group=f"{HEADWAY}.{kind}", name=part):
                if entry.dist is not None:
                    yield f"{entry.dist.name} {entry.dist.version}"


# ---- code ----------------------------------------------------------------------------------------------


def code_digest(parts: Iterable[object]) -> str:
    """A digest of the modules that define the parts, of those in `headway.policies` that these use, and of all that is
    loaded of another package that brings one.

    Headway's packages themselves, which only name their modules, are left out, and so is all that every policy shares:
    the simulator, and what costs are learned with.
    """
    found: dict[str, ModuleType] = {}
    todo = [sys.modules[type(part).__module__] for part in parts]
    while todo:
        module = todo.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            todo += [*_used(module), *_beside(module)]
    digest = sha256()
    for name in sorted(found):
        digest.update(_content(found[name]))
    return digest.hexdigest()


def _used(module: ModuleType) -> list[ModuleType]:
    """The modules of policies that something in a module comes from."""
    names = {getattr(value, "__module__", None) for value in vars(module).values()}
    modules = [sys.modules[name] for name in names if isinstance(name, str) and name.startswith(POLICIES)]
    return [used for used in modules if not hasattr(used, "__path__")]


def _beside(module: ModuleType) -> list[ModuleType]:
    """What is loaded of the package that a module is of, unless that is Headway."""
    package = module.__name__.partition(".")[0]
    if package == HEADWAY:
        return []
    return [other for name, other in [*sys.modules.items()] if name.partition(".")[0] == package]


def _content(module: ModuleType) -> bytes:
    """What its file holds; nothing of a folder without one, and of what is in no file of its own."""
    file = Path(getattr(module, "__file__", None) or "")
    return file.read_bytes() if file.is_file() else b""
