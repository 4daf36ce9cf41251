"""From a name given to a simulation to the policy of each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.policies.presets import build_policy, find_preset, known_presets
from headway.sim.killed_steps import KILLING_ROWS, build_killing
from headway.sim.oracle import ORACLES
from headway.sim.simulation import PolicyFactory
from headway.traces import TraceRequest

ORACLE_NOTE = "clairvoyant"
KILLING_NOTE = "simulator only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts put in place of every policy's own; None leaves a policy as its row says."""

    order: str | None = None
    batching: str | None = None
    eviction: str | None = None
    leaving: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.given())

    def given(self) -> dict[str, Any]:
        """Those that are given, by kind."""
        parts = {
            "order": self.order,
            "batching": self.batching,
            "eviction": self.eviction,
            "leaving": self.leaving,
        }
        return {kind: part for kind, part in parts.items() if part is not None}


OWN_PARTS = Parts()
"""Every policy as its row says."""


def is_oracle(name: str) -> bool:
    """Whether a name is of an oracle, which knows true lengths: a reference to compare with, never a policy."""
    return name in ORACLES


def label(name: str) -> str:
    """How tables and files call it, so that it is never taken for a policy."""
    if is_oracle(name):
        return f"{name} ({ORACLE_NOTE})"
    return f"{name} ({KILLING_NOTE})" if name in KILLING_ROWS else name


def check_policies(names: Sequence[str], parts: Parts) -> None:
    """Raise ConfigError unless every name is of a policy or an oracle and every part is accepted."""
    for name in names:
        if is_oracle(name):
            if parts:
                raise ConfigError(
                    f"parts are given for all policies, but {name!r} is an oracle, which has no parts"
                )
        elif name not in known_presets() and name not in KILLING_ROWS:
            accepted = ", ".join([*known_presets(), *KILLING_ROWS, *ORACLES])
            raise ConfigError(f"unknown policy {name!r}; accepted: {accepted}")
        else:
            policy_factory(name, parts, ())(UnknownCost())


def uses_predictions(name: str, parts: Parts) -> bool:
    """Whether predicted lengths make a difference to a policy, so that it is worth while to predict them."""
    if is_oracle(name):
        return False
    return policy_factory(name, parts, ())(UnknownCost()).uses_predictions


def policy_factory(name: str, parts: Parts, requests: Sequence[TraceRequest]) -> PolicyFactory:
    """Makes the named policy for one engine, its parts replaced as `parts` say.

    An oracle is told the true lengths of `requests`. Raises ConfigError for an unknown name.
    """
    if name in ORACLES:
        return ORACLES[name]({request.id: request.output_tokens for request in requests})
    if name in KILLING_ROWS:
        return partial(build_killing, replace(KILLING_ROWS[name], **parts.given()))
    return partial(build_policy, find_preset(name, **parts.given()))
