"""Runs a whole simulation: requests in, records out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

from headway.core.cost import CostModel
from headway.core.host_copies import Direction
from headway.core.record import Record
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.predict.steps.calibration import Calibration, StepSeconds
from headway.predict.steps.copies import CopyTimeModel
from headway.predict.steps.learned import LearnedCost, StepClock
from headway.predict.steps.step_time import StepTimeModel
from headway.routing import build_router
from headway.routing.pools import PoolSizes, instance_names, pool_of
from headway.sim.clock import Clock, CopyEngine, EventLoop
from headway.sim.cluster import Cluster
from headway.sim.elastic import ElasticFleet
from headway.sim.engine import EngineTotals, SimulatedEngine
from headway.sim.instance import Instance, LearnCopy, StepObserver
from headway.sim.lengths import LengthSource
from headway.sim.limits import EngineLimits, KvTier
from headway.sim.watcher import Watcher, watched
from headway.traces import TraceRequest

PolicyFactory = Callable[[CostModel], Policy]
"""Makes one engine's policy, given the cost model that learns beside it."""

Policies = PolicyFactory | Mapping[str, PolicyFactory]
"""One factory for all engines, or one for each pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The simulated system: `instances` equal engines behind a router, or the engines of `pools`.

    Each engine has its own `kv_tier`, if there is one. Raises ConfigError if an engine cannot have it.
    """

    limits: EngineLimits
    calibration: Calibration
    instances: int = 1
    router: str = "round-robin"
    pools: PoolSizes | None = None
    kv_tier: KvTier | None = None

    def __post_init__(self) -> None:
        if not self.store_blocks:
            return
        if self.limits.host_blocks:
            raise ConfigError.of(
                "host_blocks",
                f"{self.limits.host_blocks} beside a KV tier ({self.kv_tier})",
                "one of the two",
            )
        if self.limits.kv_groups:
            raise ConfigError(
                f"a KV tier ({self.kv_tier}) with a model whose layers have sliding windows is not simulated; "
                "accepted: no tier"
            )
        if not self.limits.prefix_caching:
            raise ConfigError(
                f"a KV tier ({self.kv_tier}) without prefix caching; accepted: with prefix caching"
            )

    @property
    def block_bytes(self) -> int:
        """Bytes of a KV block, over all GPUs of an engine."""
        return self.limits.block_size * self.calibration.kv_bytes_per_token

    @property
    def store_blocks(self) -> int:
        """KV blocks in an engine's tier; 0 without one."""
        return 0 if self.kv_tier is None else self.kv_tier.num_blocks(self.block_bytes)

    @property
    def step(self) -> StepSeconds:
        """The step times of one engine."""
        return self.calibration.step_with(self.limits.graphed_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the engines: pool and number, or number alone."""
        if self.pools is None:
            return tuple(map(str, range(self.instances)))
        return instance_names(self.pools)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of a run: the final time, each instance's totals, and the records unless `on_record` took them."""

    end_s: float
    totals: dict[str, EngineTotals]
    records: list[Record]

    def total(self, count: str) -> int:
        """A count of `EngineTotals`, summed over all instances."""
        return sum(getattr(totals, count) for totals in self.totals.values())


def simulate(
    requests: Iterable[TraceRequest],
    policy: Policies,
    system: System,
    *,
    max_output_tokens: int,
    on_record: Callable[[Record], None] | None = None,
    seed: int = 0,
    watch: StepObserver | None = None,
    watcher: Watcher | None = None,
    shortcut: bool = True,
    check: bool = False,
    lengths: LengthSource | None = None,
    elastic: ElasticFleet | None = None,
) -> SimulatedRun:
    """Serve `requests` (in order of arrival) to their end. Equal arguments give equal records.

    Turns with a think time arrive that long after the previous answer. `on_record` gets each record when its request
    ends or moves; without it the records are in the result. With pools, `policy` has a factory for each. A request that
    an engine hands off arrives at another in the same instant, with the rest of its targets, as the router decides.
    `max_output_tokens` is the limit that policies see if a request declares none.

    Step times are the calibration's law with residuals drawn by `seed`. The policies' cost model starts empty (for a KV
    tier's loads: from the host's link) and learns from finished steps and copies. `lengths` predicts answers; `elastic`
    decides when instances come and go. `shortcut` skips stretches in which nothing changes, with the same records; a
    `watch` or `watcher` disables it. `check` asserts the invariants at each step. Raises SimulationError if a policy
    leaves work undone, TraceError for too long a request, ConfigError for a pool without a policy.
    """
    loop = EventLoop()
    cluster = Cluster(
        loop, build_router(system.router), default_max_output_tokens=max_output_tokens, lengths=lengths
    )
    records: list[Record] = []
    keep = records.append if on_record is None else on_record
    watch = watch if watcher is None else watcher.stepped

    def ended(record: Record) -> None:
        cluster.ended(record)
        keep(record)
        if watcher is not None:
            watcher.ended(record)
        if elastic is not None:
            elastic.ended(record)

    def put(name: str, clock_seed: int) -> None:
        cost = _unlearned(system)
        served = _factory(policy, name)(cost)
        if watcher is not None:
            served = watched(served, watcher, name, cost)
        engine = _engine(system, served, name, cluster, ended, check=check)
        horizon_s = partial(cluster.horizon_s, name) if shortcut else lambda: -inf
        cluster.add(_instance(engine, system, cost, clock_seed, loop, horizon_s, watch))

    if elastic is not None:
        elastic.begin(loop, cluster, put)
    for number, name in enumerate(system.names if elastic is None else ()):
        put(name, seed * len(system.names) + number)
    cluster.run(requests)
    return SimulatedRun(loop.now_s, cluster.totals, records)


def _engine(
    system: System,
    policy: Policy,
    name: str,
    cluster: Cluster,
    ended: Callable[[Record], None],
    *,
    check: bool,
) -> SimulatedEngine:
    return SimulatedEngine(
        system.limits,
        policy,
        on_end=ended,
        on_first_token=cluster.started,
        name=name,
        store_blocks=system.store_blocks,
        waiting_elsewhere=None if system.pools is None else partial(cluster.waiting_elsewhere, name),
        check=check,
    )


def _instance(
    engine: SimulatedEngine,
    system: System,
    cost: LearnedCost,
    clock_seed: int,
    loop: EventLoop,
    horizon_s: Callable[[], float],
    watch: StepObserver | None,
) -> Instance:
    """Make an engine with a clock and copiers of its own; `cost` learns from what they do."""
    calibration = system.calibration
    return Instance(
        engine,
        Clock(system.step, calibration.residuals, clock_seed),
        loop,
        learn=StepClock(cost.steps if engine.policy.uses_costs else None),
        host_s=calibration.host_s,
        host_job_s=calibration.host_job_s,
        horizon_s=horizon_s,
        watch=watch,
        copiers=_copiers(system),
        learn_copies=_lessons(system, cost),
    )


def _unlearned(system: System) -> LearnedCost:
    """A policy's cost model before anything has run: for a tier's loads, the link to the host."""
    costs, limits = system.calibration, system.limits
    return LearnedCost(
        steps=StepTimeModel(costs.model, graphed_tokens=limits.graphed_tokens),
        kv_tokens=limits.num_blocks * limits.block_size,
        from_store=CopyTimeModel(costs.to_device, block_bytes=costs.kv_bytes_per_token),
    )


def _lessons(system: System, cost: LearnedCost) -> dict[Direction, LearnCopy]:
    """Which model learns from the copies of each direction; a store's copies teach none, since no policy asks about
    them.
    """
    if not system.store_blocks:
        return {Direction.TO_HOST: cost.to_host.observe, Direction.TO_DEVICE: cost.to_device.observe}
    block_size = system.limits.block_size
    return {
        Direction.TO_DEVICE: lambda blocks, seconds: cost.from_store.observe(blocks * block_size, seconds)
    }


def _factory(policy: Policies, name: str) -> PolicyFactory:
    """The policy factory of an engine, found by its pool. Raises ConfigError if its pool has none."""
    if not isinstance(policy, Mapping):
        return policy
    pool = pool_of(name)
    if pool not in policy:
        raise ConfigError(f"pool {pool!r} has no policy; accepted: {', '.join(policy)}")
    return policy[pool]


def _copiers(system: System) -> dict[Direction, CopyEngine]:
    """One engine's copy engines, one for each direction."""
    out, back = system.calibration.to_host, system.calibration.to_device
    if system.kv_tier is not None and system.store_blocks:
        out, back = system.kv_tier.link(out), system.kv_tier.link(back)
    return {
        Direction.TO_HOST: CopyEngine(out, system.block_bytes),
        Direction.TO_DEVICE: CopyEngine(back, system.block_bytes),
    }
