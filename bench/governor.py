"""Policies that are told wrong predictions, and how their governor reacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.policies.protocols import Predicting
from headway.sim.simulation import PolicyFactory
from headway.statistics import mean_of_known

# ---- a cost model that is wrong about steps ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrongSteps:
    """An engine's learned costs, except that every step is predicted to last `factor` times as long.

    Learning does not correct it, since the error is applied to what is learned. Copies keep their true cost.
    """

    learned: CostModel
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ConfigError(f"factor is {self.factor}; accepted: more than 0")

    @property
    def kv_tokens(self) -> int:
        """As in the true model."""
        return self.learned.kv_tokens

    def prefill_s(self, num_tokens: int) -> float:
        """`factor` times the seconds of one prompt of `num_tokens` tokens alone."""
        return self.factor * self.learned.prefill_s(num_tokens)

    def step_s(self, shape: BatchShape) -> float:
        """`factor` times the seconds of a step of this shape."""
        return self.factor * self.learned.step_s(shape)

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """`factor` times the seconds within which a step of this shape stays with this probability."""
        return self.factor * self.learned.step_within_s(shape, confidence)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds a copy to the host takes."""
        return self.learned.swap_out_s(num_blocks)

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds a copy back to the device takes."""
        return self.learned.swap_in_s(num_blocks)

    def load_s(self, num_tokens: int) -> float:
        """Seconds a load from a connector's store takes."""
        return self.learned.load_s(num_tokens)


def wrong_by(factor: float) -> Callable[[CostModel], CostModel]:
    """Wraps a cost model so that its step times are wrong by this factor."""
    return partial(WrongSteps, factor=factor)


def told_wrongly(build: PolicyFactory, factor: float) -> PolicyFactory:
    """A factory of the same policies with step times wrong by `factor`; at 1 the same factory."""
    if factor == 1:
        return build

    def build_wrongly(cost: CostModel) -> Policy:
        return build(WrongSteps(cost, factor))

    return build_wrongly


# ---- what a governor goes by, and when ---------------------------------------------------------------

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
        """Whether the order uses predicted step times now."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the basis that a governor orders by, with its time; the first is the basis at the start."""

    at_s: float
    goes_by: str


class GovernorWatch:
    """Notes the changes of one policy's governor; None, vLLM's own scheduler, has none."""

    def __init__(self, policy: Policy | None) -> None:
        order = None if policy is None else policy.order
        # Asked once, as the answers take microseconds.
        self._lengths = order if isinstance(order, Predicting) else None
        self._steps = order if isinstance(order, TimesSteps) else None
        self.changes: list[Change] = []

    def look(self, now_s: float) -> None:
        """Note the basis in use now. O(1)."""
        found = self.goes_by
        if not self.changes or self.changes[-1].goes_by != found:
            self.changes.append(Change(now_s, found))

    @property
    def goes_by(self) -> str:
        """The basis in use; `arrival` while step times are not trusted, whatever the governor thinks of lengths."""
        if self._steps is not None and not self._steps.trusts_step_times:
            return NO_STEPS
        if self._lengths is None:
            return UNGOVERNED
        return TRUSTING if self._lengths.trusts_predictions else NO_LENGTHS


def shares(changes: Sequence[Change], end_s: float) -> dict[str, float]:
    """The share of the time from the first look to `end_s` for each basis; empty without a governor."""
    if not changes or end_s <= changes[0].at_s:
        return {}
    until_s = [*(change.at_s for change in changes[1:]), end_s]
    found: dict[str, float] = {}
    for change, next_s in zip(changes, until_s, strict=True):
        if change.goes_by != UNGOVERNED:
            found[change.goes_by] = found.get(change.goes_by, 0.0) + next_s - change.at_s
    whole_s = end_s - changes[0].at_s
    return {name: seconds / whole_s for name, seconds in found.items()}


def governor_figures(changes: Sequence[Sequence[Change]], ends_s: Sequence[float]) -> dict[str, Any]:
    """Over several runs: the share of time of each basis, and the changes in the first run."""
    by_run = [shares(each, end_s) for each, end_s in zip(changes, ends_s, strict=True)]
    names = sorted({name for each in by_run for name in each})
    return {
        "share_of_time": {name: mean_of_known([each.get(name, 0.0) for each in by_run]) for name in names},
        "steps": [len(each) - 1 for each in changes],
        "first_run": [{"at_s": round(change.at_s, 3), "goes_by": change.goes_by} for change in changes[0]],
    }


# ---- ways of breaking predictions --------------------------------------------------------------------

REFERENCES = ("fastserve", "sarathi")
"""Policies that need no predictions."""
WRONG_BY = 3.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way to break predictions: the predictor of lengths, and the factor on step times."""

    name: str
    predictor: str
    steps: float = 1.0


def ways(honest: str) -> tuple[Way, ...]:
    """All ways, and beside them the unbroken predictor."""
    random = "broken:way=random"
    return (
        Way("honest", honest),
        Way("random lengths", random),
        Way("steps x 3", honest, WRONG_BY),
        Way("steps / 3", honest, 1 / WRONG_BY),
        Way("random lengths, steps x 3", random, WRONG_BY),
        Way("random lengths, steps / 3", random, 1 / WRONG_BY),
    )
