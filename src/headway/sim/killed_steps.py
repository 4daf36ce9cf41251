"""Kills steps when a quantum ends: a preemption that no engine offers, for one ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import cast

from headway.core.cost import CostModel
from headway.core.job import Job, is_decode
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.parts import build_part
from headway.policies.policy import Policy
from headway.policies.presets import Preset, build_policy
from headway.sim.limits import EngineLimits

MLFQ_PREEMPT = Preset(
    name="mlfq-preempt",
    order="skip-join-mlfq:skip_join=false",
    batching="top-jobs",
    eviction="proactive",
    summary="ablation: every job starts at the top, an iteration is killed when its quantum ends",
    source="FastServe section 6.3",
)
KILLING_ROWS = {MLFQ_PREEMPT.name: MLFQ_PREEMPT}
"""Presets that exist only in the simulator, by name."""


@dataclass(slots=True)
class KillingPolicy(Policy):
    """A policy that kills a step the moment a member's quantum ends in its prefill.

    The step's time and results are lost; the member sinks a level, and the next step is planned. Decodes are not
    killed: they are preempted between tokens.

    Progress is guaranteed. A job whose step is killed sinks, and quanta double. In the time of a quantum q at most one
    step is killed for each of n jobs at that level or lower, so once q is longer than n steps, some step ends. A
    starved job back at level 1 may run its next iteration without preemption (FastServe section 4.1): a step with such
    a member is not killed. Source: FastServe section 6.3, spec 4.7.
    """

    order: SkipJoinMlfq
    _sunk: set[Job] = field(default_factory=set)

    def cut_s(self, outcome: StepOutcome) -> float:
        """When a step that was just scheduled is killed if it has not ended; inf for never. O(batch)."""
        members = _prefilling(outcome)
        if any(job in self._sunk and self.order.level_of(job) == 1 for job in members):
            return inf
        ends_s = min((self.order.quantum_ends_s(job) for job in members), default=inf)
        return nextafter(ends_s, inf)  # a quantum is used up only after its full length

    def killed(self, outcome: StepOutcome, now_s: float) -> None:
        """Note which jobs sink because a step was killed now."""
        self._sunk.update(job for job in _prefilling(outcome) if self.order.quantum_ends_s(job) < now_s)

    def end(self, job: Job, *, finished: bool) -> None:
        """A job ended; as in any policy."""
        Policy.end(self, job, finished=finished)
        self._sunk.discard(job)


def _prefilling(outcome: StepOutcome) -> Sequence[Job]:
    """The members of the step in flight that are in prefill."""
    return [job for job, tokens in outcome.tokens.items() if not is_decode(job, tokens)]


class _WithoutProfile:
    """Cost model for an order without FastServe's profile: any prompt takes the time of one token.

    Jobs then sink level by level, instead of at once to where their prefill fits.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of one token."""
        return self._cost.prefill_s(1)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cost, name)


def build_killing(row: Preset, cost: CostModel) -> KillingPolicy:
    """Build a policy whose steps are killed when quanta end. Raises ConfigError for an order without quanta."""
    order = build_part("order", row.order, cast("CostModel", _WithoutProfile(cost)))
    if not isinstance(order, SkipJoinMlfq):
        raise ConfigError(
            f"the order of {row.name!r} is {row.order!r}; accepted: skip-join-mlfq, for its quanta"
        )
    policy = build_policy(row, cost)
    return KillingPolicy(row.name, order, policy.batching, policy.eviction, policy.leaving)


def as_killing(policy: Policy, limits: EngineLimits) -> KillingPolicy | None:
    """The policy if it kills steps, else None. Raises ConfigError if this engine's steps cannot be killed.

    A step in flight behind the killed one would rely on its tokens, and on blocks that others found and that were never
    filled.
    """
    if not isinstance(policy, KillingPolicy):
        return None
    if limits.depth > 1 or limits.prefix_caching:
        raise ConfigError(
            f"{policy.name!r} kills steps; accepted for it: synchronous scheduling, one pipeline stage and no "
            f"prefix caching; found {limits.depth} steps in flight and prefix caching "
            f"{'on' if limits.prefix_caching else 'off'}"
        )
    return policy
