"""Turns a policy's name into the policies of a simulation's engines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from headway.core.cost import UnknownCost
from headway.errors import ConfigError, meant
from headway.lab.grid import OWN_PARTS as OWN_PARTS
from headway.lab.grid import Parts as Parts
from headway.policies.parts import BUILT_IN, LISTED
from headway.policies.policy import Policy
from headway.policies.presets import (
    POOLED,
    PRESETS,
    Preset,
    build_policy,
    dials_of,
    find_preset,
    known_presets,
    with_dials,
)
from headway.routing.pools import PoolSizes, check_low_priority
from headway.sim.killed_steps import KILLING_ROWS, build_killing
from headway.sim.oracles import ORACLES
from headway.sim.simulation import Policies, PolicyFactory
from headway.traces import TraceRequest

ORACLE_NOTE = "clairvoyant"
KILLING_NOTE = "simulator only"


def is_oracle(name: str) -> bool:
    """Whether a name is that of an oracle, which knows true lengths: a reference, never a policy."""
    return name in ORACLES


def is_pooled(name: str) -> bool:
    """Whether a name stands for one policy in each pool of instances."""
    return name in POOLED


def label(name: str) -> str:
    """The name in tables and files, which marks oracles."""
    if is_oracle(name):
        return f"{name} ({ORACLE_NOTE})"
    return f"{name} ({KILLING_NOTE})" if name in KILLING_ROWS else name


def check_policies(names: Sequence[str], parts: Parts, pools: PoolSizes | None = None) -> None:
    """Raise ConfigError unless every name is a policy or an oracle, and every part is accepted.

    A pooled policy needs `pools` for which it has policies.
    """
    for name in names:
        if is_pooled(name):
            _check_pools(name, pools)
            for policy in POOLED[name].values():
                policy_factory(policy, parts, ())(UnknownCost())
        elif is_oracle(name):
            if parts:
                raise ConfigError(
                    f"parts are given for all policies, but {name!r} is an oracle, which has no parts"
                )
        elif name not in known_presets() and name not in KILLING_ROWS:
            simulated = [*KILLING_ROWS, *ORACLES]
            accepted = [*known_presets(), *POOLED, *simulated]
            listed = f"{LISTED}, and in the simulator {', '.join(simulated)}"
            raise ConfigError(f"unknown policy {name!r}; {meant(name, accepted, listed=listed)}")
        else:
            policy_factory(name, parts, ())(UnknownCost())
    rows = [row for name in names for row in rows_of(name, parts).values()]
    for dial in ("tail", "decode_share"):
        if dial in parts.given() and not any(dial in dials_of(row) for row in rows):
            raise ConfigError.of(dial, parts.given()[dial], "with a policy that has it: headway")


def _check_pools(name: str, pools: PoolSizes | None) -> None:
    """Raise ConfigError unless a pooled policy has a policy for each pool."""
    served = ", ".join(POOLED[name])
    if pools is None:
        raise ConfigError(f"policy {name!r} serves pools; give their sizes (of {served}), as lp=2,hp=1")
    if unserved := [pool for pool in pools if pool not in POOLED[name]]:
        raise ConfigError(f"policy {name!r} has none for pool {unserved[0]!r}; accepted: {served}")
    check_low_priority(pools)


def uses_predictions(name: str, parts: Parts) -> bool:
    """Whether predicted lengths change a policy's decisions, so that predicting is worthwhile."""
    return any(policy.uses_predictions for policy in _made(name, parts))


def uses_host(name: str, parts: Parts) -> bool:
    """Whether host memory changes a policy's decisions, so that without it the policy is weaker than its name says."""
    return any(policy.uses_host for policy in _made(name, parts))


def said_without_targets(names: Sequence[str], parts: Parts = OWN_PARTS) -> list[str]:
    """Warnings, for a trace without targets, about policies that then differ from what their names say."""
    needing = [name for name in names if any(policy.needs_targets for policy in _made(name, parts))]
    if not needing:
        return []
    return [
        f"no request has a target (--slo-ttft, --slo-tbt), so first come is first served: {', '.join(needing)}"
    ]


def _made(name: str, parts: Parts) -> list[Policy]:
    """The policy, or that of each pool; empty for an oracle."""
    return [policy_factory(row, parts, ())(UnknownCost()) for row in rows_of(name, parts)]


def rows_of(name: str, parts: Parts) -> dict[str, Preset]:
    """The presets of a policy, or of each pool's policy, by name, with `parts` applied; empty for an oracle.

    Raises ConfigError for an unknown name.
    """
    if is_oracle(name):
        return {}
    names = POOLED[name].values() if is_pooled(name) else [name]
    return {each: _row(each, parts) for each in names}


def _row(name: str, parts: Parts) -> Preset:
    own = replace(parts, tail=None, decode_share=None).given()
    row = replace(KILLING_ROWS.get(name) or find_preset(name), **own)
    given = parts.given()
    return with_dials(row, {dial: given[dial] for dial in dials_of(row) & given.keys()})


def policies_of(name: str, parts: Parts, requests: Sequence[TraceRequest]) -> Policies:
    """The policy factory for all engines, or one for each pool if the name is pooled."""
    if not is_pooled(name):
        return policy_factory(name, parts, requests)
    return {pool: policy_factory(policy, parts, requests) for pool, policy in POOLED[name].items()}


def policy_factory(name: str, parts: Parts, requests: Sequence[TraceRequest]) -> PolicyFactory:
    """A factory of the named policy for one engine, with `parts` applied.

    An oracle gets the true lengths of `requests`. Raises ConfigError for an unknown name.
    """
    if name in ORACLES:
        return ORACLES[name]({request.id: request.output_tokens for request in requests})
    return partial(build_killing if name in KILLING_ROWS else build_policy, _row(name, parts))


HEADWAY = "headway"
POLICIES = f"{HEADWAY}.policies."
_DIGITS = 16
_PRESET = "preset"


def made_of(policy: str, parts: Parts = OWN_PARTS) -> dict[str, dict[str, Any]]:
    """Everything that determines a policy's decisions within one release, as plain data by preset.

    Includes the preset's parts with `parts` applied, a digest of their code, and the other packages involved with their
    versions. Empty for an oracle.
    """
    return {name: _made_of(name, row, parts) for name, row in rows_of(policy, parts).items()}


def _made_of(name: str, row: Preset, parts: Parts) -> dict[str, Any]:
    policy = policy_factory(name, parts, ())(UnknownCost())
    made_parts = (policy.order, policy.batching, policy.eviction, *policy.leaving, policy.retention)
    made = {
        "order": row.order,
        "batching": row.batching,
        "eviction": row.eviction,
        "leaving": list(row.leaving),
        "code": code_digest(filter(None, made_parts))[:_DIGITS],
    }
    packages = sorted(set(_packages(name, row)))
    return made | ({"packages": packages} if packages else {})


def _packages(name: str, row: Preset) -> Iterator[str]:
    """Yield other packages that provide a preset or a part of it, with their versions."""
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
    """Digest of the code that decides: the parts' modules, the policy modules they use, and other packages' loaded
    modules.

    Package `__init__` files of Headway, which only name their modules, are left out, and so is everything that all
    policies share: the simulator and the cost models.
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
    """The policy modules from which a module imports something."""
    names = {getattr(value, "__module__", None) for value in vars(module).values()}
    modules = [sys.modules[name] for name in names if isinstance(name, str) and name.startswith(POLICIES)]
    return [used for used in modules if not hasattr(used, "__path__")]


def _beside(module: ModuleType) -> list[ModuleType]:
    """The loaded modules of a module's package, unless that is Headway."""
    package = module.__name__.partition(".")[0]
    if package == HEADWAY:
        return []
    return [other for name, other in [*sys.modules.items()] if name.partition(".")[0] == package]


def _content(module: ModuleType) -> bytes:
    """A module's file content; empty for folders without one and for modules without a file."""
    file = Path(getattr(module, "__file__", None) or "")
    return file.read_bytes() if file.is_file() else b""
