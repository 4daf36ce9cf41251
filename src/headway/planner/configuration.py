"""One deployment as the planner sees it, with every number said."""

from __future__ import annotations

from dataclasses import dataclass

from headway.predict.length_choice import NONE
from headway.routing.pools import HP, LP, PoolSizes
from headway.sim.kv_tier import KvTier


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What serves: `instances` engines of `tp` GPUs each under one policy, or in two pools.

    `lp` of the instances are of low priority, 0 where there are no pools. `seats` is vLLM's `max_num_seqs`,
    `tokens_a_step` its `max_num_batched_tokens`. `threshold` takes the place of the hand-off rule's own; None leaves
    it. `host_gib` is host memory for KV, of each instance. `kv_tier` is beside each GPU. `predictor` says how long
    answers will be.
    """

    gpus: int
    policy: str
    tp: int
    instances: int
    lp: int = 0
    seats: int
    tokens_a_step: int
    threshold: float | None = None
    host_gib: float = 0.0
    kv_tier: KvTier | None = None
    predictor: str = NONE

    @property
    def pools(self) -> PoolSizes | None:
        """How many instances each pool has; None without pools."""
        return {LP: self.lp, HP: self.instances - self.lp} if self.lp else None

    @property
    def place(self) -> tuple[object, ...]:
        """Where it comes among others that are as good, so that every ranking is total."""
        threshold = -1.0 if self.threshold is None else self.threshold
        sizes = (self.gpus, self.tp, self.instances, self.lp, self.seats, self.tokens_a_step)
        return (*sizes, self.policy, threshold, self.host_gib, f"{self.kv_tier or ''}", self.predictor)

    def layout(self) -> str:
        """Its instances, for people."""
        pools = self.pools
        named = f"{self.instances}" if pools is None else ",".join(f"{p}={n}" for p, n in pools.items())
        return f"{named} x TP {self.tp}"

    def __str__(self) -> str:
        given = [f"{self.seats:,} seats", f"{self.tokens_a_step:,} tokens a step"]
        if self.threshold is not None:
            given.append(f"threshold {self.threshold:g}")
        if self.host_gib:
            given.append(f"{self.host_gib:g} GiB of host memory")
        if self.kv_tier is not None:
            given.append(f"KV tier {self.kv_tier}")
        return f"{self.policy} on {self.layout()}, {', '.join(given)}"


def moving_parts(configuration: Configuration, default: Configuration) -> int:
    """In how many ways it differs from what serves where nothing is chosen; pools count twice, as a policy and apart.

    Of two configurations as good as each other the one with fewer is easier to run.
    """
    differing = (
        configuration.policy != default.policy,
        configuration.tp != default.tp,
        configuration.lp != default.lp,
        configuration.seats != default.seats,
        configuration.tokens_a_step != default.tokens_a_step,
        configuration.threshold != default.threshold,
        configuration.host_gib != default.host_gib,
        configuration.kv_tier != default.kv_tier,
        configuration.predictor != default.predictor,
    )
    return sum(differing)
