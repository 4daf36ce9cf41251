"""A cost model that is wrong about steps on purpose, for the benches of broken predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.sim.simulation import PolicyFactory


@dataclass(frozen=True, slots=True)
class WrongSteps:
    """What an engine has learned, with every step taken to last `factor` times as long as it does.

    It stays wrong however much is learned, since what is learned is the truth. Copies are told as they are.
    """

    learned: CostModel
    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ConfigError(f"factor is {self.factor}; accepted: more than 0")

    @property
    def kv_tokens(self) -> int:
        """As they are."""
        return self.learned.kv_tokens

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds one prompt of `num_tokens` tokens is wrongly said to take alone."""
        return self.factor * self.learned.prefill_s(num_tokens)

    def step_s(self, shape: BatchShape) -> float:
        """Seconds a step of this shape is wrongly said to take."""
        return self.factor * self.learned.step_s(shape)

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Seconds that a step of this shape is wrongly said to stay within with this probability."""
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
    """Makes of a cost model one that is wrong about steps by this factor."""
    return partial(WrongSteps, factor=factor)


def told_wrongly(build: PolicyFactory, factor: float) -> PolicyFactory:
    """A factory of the same policies, which are told that steps take `factor` times as long; at 1 the same factory."""
    if factor == 1:
        return build

    def build_wrongly(cost: CostModel) -> Policy:
        return build(WrongSteps(cost, factor))

    return build_wrongly
