"""Predicted step times held against what steps took, while serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import fmean

from headway.core.batch_shape import StepKind, shape_of
from headway.core.cost import CostModel
from headway.core.plan import StepOutcome
from headway.policies.policy import Policy
from headway.sim.simulation import Policies, PolicyFactory

MINUTE_S = 60.0


@dataclass(slots=True)
class StepErrors:
    """Relative errors of each instance's own predictions, each made when its step was scheduled.

    For steps one at a time: what a step took is from there to its output, the host's time among it. Steps before the
    model answers are left out.
    """

    _expected: dict[int, tuple[StepKind, float]] = field(default_factory=dict)
    _found: dict[StepKind, dict[int, list[float]]] = field(default_factory=dict)

    def following(self, policies: Policies) -> Policies:
        """The same policies, whose cost models are asked about every step."""
        if not isinstance(policies, Mapping):
            return self._following(policies)
        return {pool: self._following(build) for pool, build in policies.items()}

    def _following(self, build: PolicyFactory) -> PolicyFactory:
        def build_followed(cost: CostModel) -> Policy:
            policy = build(cost)
            followed = _Followed(**{part.name: getattr(policy, part.name) for part in fields(policy)})
            followed.errors, followed.cost = self, cost
            followed.uses_costs = True
            return followed

        return build_followed

    def expect(self, outcome: StepOutcome, cost: CostModel) -> None:
        """A step was scheduled."""
        if outcome.tokens:
            shape = shape_of(outcome.tokens)
            self._expected[id(outcome)] = (shape.kind, cost.step_s(shape))

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """A step's output has come."""
        kind, expected_s = self._expected.pop(id(outcome))
        if expected_s:
            took_s = finished_s - started_s
            minute = int(started_s // MINUTE_S)
            self._found.setdefault(kind, {}).setdefault(minute, []).append(abs(expected_s / took_s - 1))

    def by_minute(self) -> dict[str, tuple[float | None, ...]]:
        """Kind of step -> mean relative error of each minute; None where it had no such step."""
        return {
            kind: tuple(fmean(minutes[at]) if at in minutes else None for at in range(max(minutes) + 1))
            for kind, minutes in sorted(self._found.items())
        }


class _Followed(Policy):
    """Decides as the policy whose parts it has."""

    errors: StepErrors
    cost: CostModel

    def observe(self, outcome: StepOutcome) -> None:
        """As the policy, its cost model asked first."""
        self.errors.expect(outcome, self.cost)
        super().observe(outcome)
