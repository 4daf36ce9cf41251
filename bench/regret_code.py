"""What the code of a policy is now, so that runs of an older one are not taken for its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256
from inspect import getsource
from types import ModuleType

POLICIES = "headway.policies."


def code_digest(parts: Iterable[object]) -> str:
    """A digest of the modules that define the parts, and of those in `headway.policies` that these use.

    Packages themselves, which only name their modules, are left out, and so is all that every policy shares: the
    simulator, and what costs are learned with.
    """
    found: dict[str, ModuleType] = {}
    todo = [sys.modules[type(part).__module__] for part in parts]
    while todo:
        module = todo.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            todo += _used(module)
    digest = sha256()
    for name in sorted(found):
        digest.update(getsource(found[name]).encode())
    return digest.hexdigest()


def _used(module: ModuleType) -> list[ModuleType]:
    """The modules of policies that something in a module comes from."""
    names = {getattr(value, "__module__", None) for value in vars(module).values()}
    modules = [sys.modules[name] for name in names if isinstance(name, str) and name.startswith(POLICIES)]
    return [used for used in modules if not hasattr(used, "__path__")]
