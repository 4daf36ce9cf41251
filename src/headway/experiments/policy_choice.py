"""From a name given to a simulation to the policy of each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.cost import CostModel, UnknownCost
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset, known_presets
from headway.sim.oracle import ORACLES
from headway.sim.simulation import PolicyFactory
from headway.traces import TraceRequest

ORACLE_NOTE = "clairvoyant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts put in place of every policy's own; None leaves a policy as its row says."""

    order: str | None = None
    batching: str | None = None
    eviction: str | None = None
    leaving: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.order, self.batching, self.eviction, self.leaving))


OWN_PARTS = Parts()
"""Every policy as its row says."""


def is_oracle(name: str) -> bool:
    """Whether a name is of an oracle, which knows true lengths: a reference to compare with, never a policy."""
    return name in ORACLES


def label(name: str) -> str:
    """How tables and files call it, so that it is never taken for a policy."""
    return f"{name} ({ORACLE_NOTE})" if is_oracle(name) else name


def check_policies(names: Sequence[str], parts: Parts) -> None:
    """Raise ConfigError unless every name is of a policy or an oracle and every part is accepted."""
    for name in names:
        if is_oracle(name):
            if parts:
                raise ConfigError(
                    f"parts are given for all policies, but {name!r} is an oracle, which has no parts"
                )
        elif name not in known_presets():
            accepted = ", ".join([*known_presets(), *ORACLES])
            raise ConfigError(f"unknown policy {name!r}; accepted: {accepted}")
        else:
            policy_factory(name, parts, ())(UnknownCost())


def policy_factory(name: str, parts: Parts, requests: Sequence[TraceRequest]) -> PolicyFactory:
    """Makes the named policy for one engine; an oracle is told the true lengths of `requests`."""
    if name in ORACLES:
        return ORACLES[name]({request.id: request.output_tokens for request in requests})
    preset = find_preset(
        name, order=parts.order, batching=parts.batching, eviction=parts.eviction, leaving=parts.leaving
    )

    def build(cost: CostModel) -> Policy:
        return build_policy(preset, cost)

    return build
