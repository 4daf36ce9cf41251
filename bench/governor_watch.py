"""What a policy's governor says while it serves: when it goes by predictions, and when it steps down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headway.policies.order import Predicting
from headway.policies.policy import Policy

TRUSTING = "predictions"
NO_LENGTHS = "no lengths"
NO_STEPS = "arrival"
UNGOVERNED = ""
"""A policy without a governor."""


@runtime_checkable
class TimesSteps(Protocol):
    """An order that watches whether steps take as long as predicted."""

    @property
    def trusts_step_times(self) -> bool:
        """Whether it goes by predicted step times now."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """From when on it goes by what: the first is how it began."""

    at_s: float
    goes_by: str


class GovernorWatch:
    """Notes the changes of one policy; None, vLLM's own scheduler, never changes."""

    def __init__(self, policy: Policy | None) -> None:
        order = None if policy is None else policy.order
        # Asked once, as the answers take microseconds.
        self._lengths = order if isinstance(order, Predicting) else None
        self._steps = order if isinstance(order, TimesSteps) else None
        self.changes: list[Change] = []

    def look(self, now_s: float) -> None:
        """See what it goes by now. O(1)."""
        found = self.goes_by
        if not self.changes or self.changes[-1].goes_by != found:
            self.changes.append(Change(now_s, found))

    @property
    def goes_by(self) -> str:
        """`arrival` while step times are not trusted, whatever it thinks of lengths."""
        if self._steps is not None and not self._steps.trusts_step_times:
            return NO_STEPS
        if self._lengths is None:
            return UNGOVERNED
        return TRUSTING if self._lengths.trusts_predictions else NO_LENGTHS


def shares(changes: Sequence[Change], end_s: float) -> dict[str, float]:
    """The share of the time from the first look to `end_s` that it went by each; empty without a governor."""
    if not changes or end_s <= changes[0].at_s:
        return {}
    until_s = [*(change.at_s for change in changes[1:]), end_s]
    found: dict[str, float] = {}
    for change, next_s in zip(changes, until_s, strict=True):
        if change.goes_by != UNGOVERNED:
            found[change.goes_by] = found.get(change.goes_by, 0.0) + next_s - change.at_s
    whole_s = end_s - changes[0].at_s
    return {name: seconds / whole_s for name, seconds in found.items()}
