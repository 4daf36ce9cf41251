"""From what a user names to what is simulated, and how both are written down."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version

from headway.errors import ConfigError
from headway.lab.engine_sizes import Sizes, engine_limits
from headway.lab.grid import Grid
from headway.lab.policy_choice import (
    OWN_PARTS,
    Parts,
    check_policies,
    is_pooled,
    label,
    said_without_targets,
    uses_host,
    uses_predictions,
)
from headway.lab.policy_source import made_of
from headway.lab.predictor_choice import check_predictor, predictor_label
from headway.lab.simulation import Scenario, fingerprint
from headway.lab.stream import Stream, StreamFacts, stream_facts
from headway.predict.lengths.choice import DEFAULT_PREDICTOR, NONE
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.results import RunMeta
from headway.routing import DEFAULT_ROUTER, POOL_ROUTER, ROUTERS, STAGE_ROUTER, build_router
from headway.routing.pools import PoolSizes
from headway.sim.limits import KvTier
from headway.sim.simulation import System
from headway.traces import check_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A simulation as it is asked for; None means what is usual. `kv_tier` is that of each GPU."""

    hardware: str
    model: str
    stream: Stream
    grid: Grid
    sizes: Sizes = Sizes()  # noqa: RUF009 - a frozen value
    instances: int | None = None
    pools: PoolSizes | None = None
    router: str = DEFAULT_ROUTER
    pool_router: str | None = None
    parts: Parts = OWN_PARTS
    max_output_tokens: int | None = None
    predictor: str | None = None
    kv_tier: KvTier | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated, with what was found out on the way."""

    wish: Wish
    scenario: Scenario
    facts: StreamFacts
    context_tokens: int

    @property
    def num_requests(self) -> int:
        """Requests of all cells together."""
        return self.facts.num_requests * len(self.wish.grid.cells())

    def manifest(self) -> dict[str, object]:
        """All that decides the results, as plain data: equal manifests give equal folders."""
        wish, system = self.wish, self.scenario.system
        return {
            "headway": version("headway"),
            "hardware": wish.hardware,
            "model": wish.model,
            "costs": fingerprint(system.calibration),
            "trace": wish.stream.source,
            "limit": wish.stream.limit,
            "default_targets": asdict(wish.stream.slo),
            "requests": self.facts.digest,
            "policies": list(wish.grid.policies),
            **self._policies(),
            "loads": list(wish.grid.loads),
            "seeds": wish.grid.num_seeds,
            "parts": asdict(wish.parts),
            "predictor": self.scenario.predictor,
            "instances": system.instances,
            "router": system.router,
            **self._pools(),
            "engine": asdict(system.limits),
            **({} if system.kv_tier is None else {"kv_tier": str(system.kv_tier)}),
            "max_output_tokens": self.scenario.max_output_tokens,
        }

    def _policies(self) -> dict[str, object]:
        """Of the manifest: what each row is made of, so that a policy that was changed is another simulation."""
        made = [made_of(policy, self.wish.parts) for policy in self.wish.grid.policies]
        return {f"policy {row}": each for rows in made for row, each in rows.items()}

    def _pools(self) -> dict[str, object]:
        """Of the manifest; nothing without pools."""
        if self.wish.pools is None:
            return {}
        return {"pools": dict(self.wish.pools), "pool_router": self.scenario.pool_router}

    def meta(self, command: str) -> RunMeta:
        """What the run folders say of themselves."""
        return RunMeta(
            policies=tuple(map(label, self.wish.grid.policies)),
            measured_on="simulated",
            model=self.wish.model,
            trace=self.wish.stream.source,
            command=command,
            hardware=self.hardware(),
            versions={"headway": version("headway"), "python": platform.python_version()},
        )

    def lengths(self) -> str | None:
        """Who predicts how long answers will be, where that makes a difference to some policy."""
        policies = [name for name in self.wish.grid.policies if uses_predictions(name, self.wish.parts)]
        if not policies:
            return None
        return f"{predictor_label(self.scenario.predictor)}, for {', '.join(policies)}"

    def without_host(self) -> list[str]:
        """The policies that would swap, where there is no host memory to swap to, nor a KV tier to come back from."""
        system = self.scenario.system
        if system.limits.host_blocks or system.store_blocks:
            return []
        return [name for name in self.wish.grid.policies if uses_host(name, self.wish.parts)]

    def without_targets(self) -> list[str]:
        """What is to be said of policies that go by targets, where no request has one."""
        return [] if self.facts.targets else said_without_targets(self.wish.grid.policies, self.wish.parts)

    def hardware(self) -> str:
        """What serves, and where its costs come from."""
        system = self.scenario.system
        costs = system.calibration
        known = "DERIVED, not measured: " if costs.derived else ""
        stages = "" if system.limits.pipeline_stages == 1 else f", {system.limits.pipeline_stages} stages"
        instances = "1 instance" if system.instances == 1 else f"{system.instances} instances"
        return f"{instances} of {costs.name}{stages}{self._said_of_pools()} ({known}{costs.provenance})"

    def _said_of_pools(self) -> str:
        pooled = list(filter(is_pooled, self.wish.grid.policies))
        if self.wish.pools is None or not pooled:
            return ""
        sizes = " and ".join(f"{count} {pool}" for pool, count in self.wish.pools.items())
        return f", {sizes} under {', '.join(pooled)}"


def set_up(wish: Wish) -> Setup:
    """Find out all that is needed, before anything runs.

    Raises ConfigError or TraceError for anything that is not accepted.
    """
    instances = _instances(wish)
    check_policies(wish.grid.policies, wish.parts, wish.pools)
    pool_router = _pool_router(wish)
    for router in (wish.router, pool_router):
        _check_router(router)
    model = model_shape(wish.model)
    costs = calibration(wish.hardware, model, wish.sizes.tp, wish.sizes.pp)
    system = System(
        limits=engine_limits(wish.sizes, wish.hardware, costs),
        calibration=costs,
        instances=instances,
        router=wish.router,
        kv_tier=None if wish.kv_tier is None else wish.kv_tier.of_engine(wish.sizes.tp * wish.sizes.pp),
    )
    predictor = wish.predictor
    if predictor is None:
        goes_by_it = any(uses_predictions(policy, wish.parts) for policy in wish.grid.policies)
        predictor = DEFAULT_PREDICTOR if goes_by_it else NONE
    check_predictor(predictor)
    facts = stream_facts(wish.stream, wish.grid.seeds)
    check_rate(facts.last_s, min(wish.grid.loads))
    scenario = Scenario(
        system=system,
        stream=wish.stream,
        max_output_tokens=facts.output_limit(wish.max_output_tokens),
        parts=wish.parts,
        predictor=predictor,
        pools=wish.pools,
        pool_router=pool_router,
    )
    return Setup(wish, scenario, facts, model.context_tokens)


def _check_router(name: str) -> None:
    build_router(name)
    if name == STAGE_ROUTER:
        accepted = ", ".join(each for each in ROUTERS if each != STAGE_ROUTER)
        raise ConfigError(
            f"router {name!r} parts prefill and decode, which the simulator cannot; accepted: {accepted}"
        )


def _pool_router(wish: Wish) -> str:
    """How pools share requests. Raises ConfigError where one is named and there are none."""
    if wish.pool_router is not None and wish.pools is None:
        raise ConfigError(f"pool_router is {wish.pool_router!r} without pools; accepted: with --pools")
    return POOL_ROUTER if wish.pool_router is None else wish.pool_router


def _instances(wish: Wish) -> int:
    """How many instances serve under every policy. Raises ConfigError for a number that is not accepted."""
    if wish.pools is None:
        instances = 1 if wish.instances is None else wish.instances
    elif wish.instances is None:
        instances = sum(wish.pools.values())
    else:
        raise ConfigError("instances and pools are given; accepted: one of the two")
    if instances < 1:
        raise ConfigError(f"instances is {instances}; accepted: 1 or more")
    return instances
