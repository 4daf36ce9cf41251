"""A whole run: requests in, records out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf

from headway.core.cost import CostModel
from headway.core.host_copies import Direction
from headway.core.record import Record
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.predict.calibration import Calibration, StepSeconds
from headway.predict.learned_cost import LearnedCost
from headway.predict.step_clock import StepClock
from headway.predict.step_time import StepTimeModel
from headway.routing import build_router
from headway.routing.pools import PoolSizes, instance_names, pool_of
from headway.sim.clock import Clock
from headway.sim.cluster import Cluster
from headway.sim.copy_engine import CopyEngine
from headway.sim.engine import SimulatedEngine, Totals
from headway.sim.instance import Instance, StepObserver
from headway.sim.length_source import LengthSource
from headway.sim.limits import EngineLimits
from headway.sim.loop import EventLoop
from headway.traces import TraceRequest

PolicyFactory = Callable[[CostModel], Policy]
"""Makes one engine's policy, given the cost model that learns beside it."""

Policies = PolicyFactory | Mapping[str, PolicyFactory]
"""One for all engines, or one for each pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What serves: `instances` equal engines of the same limits and costs behind a router, or those of `pools`."""

    limits: EngineLimits
    calibration: Calibration
    instances: int = 1
    router: str = "round-robin"
    pools: PoolSizes | None = None

    @property
    def step(self) -> StepSeconds:
        """What steps take on one engine."""
        return self.calibration.step_with(self.limits.graphed_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """What the engines are called: by pool and number, or by number alone."""
        if self.pools is None:
            return tuple(map(str, range(self.instances)))
        return instance_names(self.pools)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did: where its clock stopped, and each instance's totals."""

    end_s: float
    totals: dict[str, Totals] = field(default_factory=dict)


def simulate(
    requests: Iterable[TraceRequest],
    policy: Policies,
    system: System,
    *,
    on_record: Callable[[Record], None],
    max_output_tokens: int,
    seed: int = 0,
    watch: StepObserver | None = None,
    shortcut: bool = True,
    check: bool = False,
    lengths: LengthSource | None = None,
) -> Result:
    """Serve `requests` (in order of arrival) to their end, handing on each record as its request ends or moves.

    With pools, `policy` has a factory for each; a request that an engine hands off arrives at another in the same
    instant (the way there takes no time), with what is left of its targets, as the router decides.
    `max_output_tokens` is the limit policies see where a request declares none. The clock is the
    calibration's law with its residuals drawn by `seed`; the policies' cost model starts from nothing and
    learns from finished steps and copies alone. The same arguments give the same records. `shortcut` steps over
    stretches in which nothing changes, with the same records; a `watch` of every step switches it off.
    `check` asserts the invariants at every step. `lengths` predicts answers as their requests arrive. Raises
    SimulationError if a policy leaves work lying, TraceError for a request longer than its limit, ConfigError for a
    pool without a policy.
    """
    loop = EventLoop()
    cluster = Cluster(
        loop, build_router(system.router), default_max_output_tokens=max_output_tokens, lengths=lengths
    )

    def ended(record: Record) -> None:
        cluster.ended(record)
        on_record(record)

    def horizon(name: str) -> Callable[[], float]:
        if not shortcut:
            return lambda: -inf
        # Without pools nobody takes what another gives up.
        return (lambda: cluster.next_arrival_s) if system.pools is None else partial(cluster.horizon_s, name)

    for number, name in enumerate(system.names):
        cost = LearnedCost(
            steps=StepTimeModel(system.calibration.model, graphed_tokens=system.limits.graphed_tokens),
            kv_tokens=system.limits.num_blocks * system.limits.block_size,
        )
        engine = SimulatedEngine(
            system.limits,
            _factory(policy, name)(cost),
            on_end=ended,
            on_first_token=cluster.started,
            name=name,
            check=check,
        )
        clock_seed = seed * len(system.names) + number
        cluster.add(_instance(engine, system, cost, clock_seed, loop, horizon(name), watch))
    cluster.run(requests)
    return Result(loop.now_s, cluster.totals)


def _instance(
    engine: SimulatedEngine,
    system: System,
    cost: LearnedCost,
    clock_seed: int,
    loop: EventLoop,
    horizon_s: Callable[[], float],
    watch: StepObserver | None,
) -> Instance:
    """The engine with a clock and copiers of its own; `cost` learns from what they do."""
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
        learn_copies={
            Direction.TO_HOST: cost.to_host.observe,
            Direction.TO_DEVICE: cost.to_device.observe,
        },
    )


def _factory(policy: Policies, name: str) -> PolicyFactory:
    """Makes the policy of an engine, which its pool has a name for; ConfigError if it has none."""
    if not isinstance(policy, Mapping):
        return policy
    pool = pool_of(name)
    if pool not in policy:
        raise ConfigError(f"pool {pool!r} has no policy; accepted: {', '.join(policy)}")
    return policy[pool]


def _copiers(system: System) -> dict[Direction, CopyEngine]:
    """One engine's copy engines, one for each direction."""
    costs = system.calibration
    block_bytes = system.limits.block_size * costs.kv_bytes_per_token
    return {
        Direction.TO_HOST: CopyEngine(costs.to_host, block_bytes),
        Direction.TO_DEVICE: CopyEngine(costs.to_device, block_bytes),
    }
