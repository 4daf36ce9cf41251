"""Simulated runs; each cell is a pure function of its inputs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from importlib.metadata import version

from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.errors import ConfigError, HeadwayError
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.grid import GridCell, PolicyGrid
from headway.lab.policy_choice import (
    OWN_PARTS,
    Parts,
    check_policies,
    is_pooled,
    label,
    made_of,
    policies_of,
    said_without_targets,
    uses_host,
    uses_predictions,
)
from headway.lab.predictor_choice import check_predictor, length_source, predictor_label
from headway.lab.trace import Trace, TraceFacts, read_once, trace_facts
from headway.predict.lengths.choice import DEFAULT_PREDICTOR, NONE
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway.results import RunInfo, RunMeta, Summary, summarize
from headway.results.records import TIME_DECIMALS
from headway.routing import DEFAULT_ROUTER, POOL_ROUTER, ROUTERS, STAGE_ROUTER, build_router
from headway.routing.pools import PoolSizes
from headway.sim.instance import StepObserver
from headway.sim.lengths import LengthSource
from headway.sim.limits import KvTier
from headway.sim.simulation import Policies, SimulatedRun, System, simulate
from headway.sim.watcher import Watcher
from headway.traces import TraceRequest, at_once, check_rate, scale_rate

_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")
_DECODES, _CHUNK = (64, 1, 1000), (1, 512, 0)
_PROBES = (((1, 1, 0),), (_DECODES,), (_CHUNK,), ((4, 2048, 4096),), (_DECODES, _CHUNK))
"""Steps that identify a law by its predictions: jobs, with new tokens and context of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What all cells share: the deployment, the model, and the parts that replace the policies' own.

    `predictor` predicts answer lengths for policies that use them. A pooled policy is served by `pools` behind
    `pool_router`, every other one by `system`, with equally many instances.
    """

    system: System
    trace: Trace
    max_output_tokens: int
    parts: Parts = OWN_PARTS
    predictor: str = NONE
    pools: PoolSizes | None = None
    pool_router: str = POOL_ROUTER

    def system_of(self, policy: str) -> System:
        """The system that serves under a policy."""
        if not is_pooled(policy):
            return self.system
        return replace(self.system, pools=self.pools, router=self.pool_router)

    def predictor_of(self, policy: str) -> str:
        """The predictor for a policy; None if the policy does not use one."""
        return self.predictor if self.predictor != NONE and uses_predictions(policy, self.parts) else NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of one cell. Equal `finished_digest`s mean that two policies finished the same requests.

    `info` has what the records lack; the summary covers both. `predictor` names the length predictor, and whether it
    was made from the true lengths; empty without one.
    """

    cell: GridCell
    summary: Summary
    info: RunInfo
    finished_digest: str
    end_s: float
    steps: int
    tokens: int
    cached_tokens: int
    predictor: str = ""


def simulate_policy(
    requests: Sequence[TraceRequest],
    policy: str | Policies,
    system: System,
    *,
    max_output_tokens: int,
    parts: Parts = OWN_PARTS,
    seed: int = 0,
    lengths: str | LengthSource | None = None,
    named: object = "",
    on_record: Callable[[Record], None] | None = None,
    watch: StepObserver | None = None,
    watcher: Watcher | None = None,
    shortcut: bool = True,
) -> SimulatedRun:
    """Run `sim.simulate` with a policy and a length predictor given by name, or as objects.

    Raises what `simulate` raises, with `named` in front of the message of a deliberate error.
    """
    try:
        return simulate(
            requests,
            policies_of(policy, parts, requests) if isinstance(policy, str) else policy,
            system,
            on_record=on_record,
            max_output_tokens=max_output_tokens,
            seed=seed,
            watch=watch,
            watcher=watcher,
            shortcut=shortcut,
            lengths=length_source(lengths, requests, seed) if isinstance(lengths, str) else lengths,
        )
    except HeadwayError as error:
        if not (where := str(named)):
            raise
        raise type(error)(f"{where}: {error}") from error


def run_cell(
    scenario: Scenario, cell: GridCell, on_record: Callable[[Record], None], watcher: Watcher | None = None
) -> CellResult:
    """Simulate one cell, and pass on each record when its request ends or moves, with times rounded as stored.

    Equal arguments give equal records and results, with or without a `watcher`. Deliberate errors name the cell. Holds
    the requests and the records in memory.
    """
    records: list[Record] = []

    def ended(record: Record) -> None:
        _round_times(record)
        records.append(record)
        on_record(record)

    requests = read_once(scenario.trace, cell.seed)
    predictor = scenario.predictor_of(cell.policy)
    result = simulate_policy(
        requests if cell.load == 1 else scale_rate(requests, cell.load),
        cell.policy,
        scenario.system_of(cell.policy),
        parts=scenario.parts,
        max_output_tokens=scenario.max_output_tokens,
        seed=cell.seed,
        lengths=predictor,
        named=cell,
        on_record=ended,
        watcher=watcher,
    )
    return _cell_result(cell, records, result, "" if predictor == NONE else predictor_label(predictor))


def _round_times(record: Record) -> None:
    """Round times as they are stored, so that a run's summary equals that of its file."""
    for name in _TIMES:
        time_s = getattr(record, name)
        if time_s is not None:
            setattr(record, name, round(time_s, TIME_DECIMALS))


def _cell_result(cell: GridCell, records: list[Record], result: SimulatedRun, predictor: str) -> CellResult:
    finished = sorted(record.id for record in records if record.outcome is Outcome.FINISHED)
    info = run_info(result)
    return CellResult(
        cell=cell,
        summary=summarize(records, run=info),
        info=info,
        finished_digest=sha256("\n".join(finished).encode()).hexdigest(),
        end_s=result.end_s,
        steps=result.total("steps"),
        tokens=result.total("tokens"),
        cached_tokens=result.total("cached_tokens"),
        predictor=predictor,
    )


def run_info(result: SimulatedRun) -> RunInfo:
    """What a run knows beyond its records: blocks copied each way (including moves and prefetches), and cached
    tokens.
    """
    return RunInfo(
        swapped_out_blocks=result.total("swapped_out_blocks"),
        swapped_in_blocks=result.total("swapped_in_blocks"),
        cached_tokens=result.total("cached_tokens"),
    )


def fingerprint(calibration: Calibration) -> str:
    """A digest of a calibration, with the step law by its predictions: equal ones give equal runs."""
    said: list[object] = [
        getattr(calibration, field.name) for field in fields(calibration) if field.name != "step"
    ]
    for jobs in _PROBES:
        shape = BatchShape()
        for num_jobs, new_tokens, context_tokens in jobs:
            for _ in range(num_jobs):
                shape.add(new_tokens, context_tokens)
        said.append(calibration.step.step_s(shape))
    return sha256(repr(said).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """A simulation request; None means the default. `kv_tier` is that of each GPU."""

    hardware: str
    model: str
    trace: Trace
    grid: PolicyGrid
    sizes: EngineSizes = EngineSizes()  # noqa: RUF009 - a frozen value
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
    """What is simulated, with what was derived on the way. `capacity_rps` is None unless loads are shares of it."""

    asked: SimulationRequest
    scenario: Scenario
    facts: TraceFacts
    context_tokens: int
    capacity_rps: float | None = None

    @property
    def num_requests(self) -> int:
        """Requests of all cells together."""
        return self.facts.num_requests * len(self.asked.grid.cells())

    def manifest(self) -> dict[str, object]:
        """Everything that determines the results, as plain data: equal manifests give equal folders."""
        asked, system = self.asked, self.scenario.system
        return {
            "headway": version("headway"),
            "hardware": asked.hardware,
            "model": asked.model,
            "costs": fingerprint(system.calibration),
            "trace": asked.trace.source,
            "limit": asked.trace.limit,
            "default_targets": asdict(asked.trace.slo),
            "requests": self.facts.digest,
            "policies": list(asked.grid.policies),
            **self._policies(),
            "loads": list(asked.grid.loads),
            "seeds": asked.grid.num_seeds,
            "parts": asdict(asked.parts),
            "predictor": self.scenario.predictor,
            "instances": system.instances,
            "router": system.router,
            **self._pools(),
            "engine": asdict(system.limits),
            **({} if system.kv_tier is None else {"kv_tier": str(system.kv_tier)}),
            "max_output_tokens": self.scenario.max_output_tokens,
        }

    def _policies(self) -> dict[str, object]:
        """Part of the manifest: what each preset consists of, so that a changed policy is another simulation."""
        made = [made_of(policy, self.asked.parts) for policy in self.asked.grid.policies]
        return {f"policy {row}": each for rows in made for row, each in rows.items()}

    def _pools(self) -> dict[str, object]:
        """Part of the manifest; empty without pools."""
        if self.asked.pools is None:
            return {}
        return {"pools": dict(self.asked.pools), "pool_router": self.scenario.pool_router}

    def meta(self, command: str) -> RunMeta:
        """What the run folders state about themselves."""
        return RunMeta(
            policies=tuple(map(label, self.asked.grid.policies)),
            measured_on="simulated",
            model=self.asked.model,
            trace=self.asked.trace.source,
            command=command,
            hardware=self.hardware(),
            versions={"headway": version("headway"), "python": platform.python_version()},
            load_name=self.asked.grid.load_name,
        )

    def lengths(self) -> str | None:
        """The length predictor, if some policy uses one."""
        policies = [name for name in self.asked.grid.policies if uses_predictions(name, self.asked.parts)]
        if not policies:
            return None
        return f"{predictor_label(self.scenario.predictor)}, for {', '.join(policies)}"

    def without_host(self) -> list[str]:
        """The policies that would swap, if there is neither host memory nor a KV tier."""
        system = self.scenario.system
        if system.limits.host_blocks or system.store_blocks:
            return []
        return [name for name in self.asked.grid.policies if uses_host(name, self.asked.parts)]

    def without_targets(self) -> list[str]:
        """Remarks on policies that use targets, if no request has one."""
        return [] if self.facts.targets else said_without_targets(self.asked.grid.policies, self.asked.parts)

    def hardware(self) -> str:
        """The hardware, and where its costs come from."""
        system = self.scenario.system
        costs = system.calibration
        known = "DERIVED, not measured: " if costs.derived else ""
        stages = "" if system.limits.pipeline_stages == 1 else f", {system.limits.pipeline_stages} stages"
        instances = "1 instance" if system.instances == 1 else f"{system.instances} instances"
        return f"{instances} of {costs.name}{stages}{self._said_of_pools()} ({known}{costs.provenance})"

    def _said_of_pools(self) -> str:
        pooled = list(filter(is_pooled, self.asked.grid.policies))
        if self.asked.pools is None or not pooled:
            return ""
        sizes = " and ".join(f"{count} {pool}" for pool, count in self.asked.pools.items())
        return f", {sizes} under {', '.join(pooled)}"


def set_up(asked: SimulationRequest) -> Setup:
    """Derive everything that is needed, before anything runs.

    Raises ConfigError or TraceError for anything that is not accepted.
    """
    instances = _instances(asked)
    check_policies(asked.grid.policies, asked.parts, asked.pools)
    pool_router = _pool_router(asked)
    for router in (asked.router, pool_router):
        _check_router(router)
    model = model_shape(asked.model)
    sizes = asked.sizes
    costs = calibration(asked.hardware, model, sizes.tp, sizes.pp, attention=sizes.attention)
    system = System(
        limits=engine_limits(asked.sizes, asked.hardware, costs),
        calibration=costs,
        instances=instances,
        router=asked.router,
        kv_tier=None if asked.kv_tier is None else asked.kv_tier.of_engine(asked.sizes.tp * asked.sizes.pp),
    )
    predictor = asked.predictor
    if predictor is None:
        goes_by_it = any(uses_predictions(policy, asked.parts) for policy in asked.grid.policies)
        predictor = DEFAULT_PREDICTOR if goes_by_it else NONE
    check_predictor(predictor)
    facts = trace_facts(asked.trace, asked.grid.seeds)
    scenario = Scenario(
        system=system,
        trace=asked.trace,
        max_output_tokens=facts.output_limit(asked.max_output_tokens),
        parts=asked.parts,
        predictor=predictor,
        pools=asked.pools,
        pool_router=pool_router,
    )
    capacity = None
    if asked.grid.of_capacity:
        capacity, trace = _at_capacity(scenario, facts)
        asked, scenario = replace(asked, trace=trace), replace(scenario, trace=trace)
        facts = trace_facts(trace, asked.grid.seeds)
    check_rate(facts.last_s, min(asked.grid.loads))
    return Setup(asked, scenario, facts, model.context_tokens, capacity)


CAPACITY_REQUESTS = 1_000
"""Most requests in the measurement of capacity; of longer traces every so manieth is taken."""
CAPACITY_SHARE = 0.9
"""Share of these requests until which capacity is measured: the last tenth may be a few very long answers."""


def _at_capacity(scenario: Scenario, facts: TraceFacts) -> tuple[float, Trace]:
    """Requests a second that `vllm` serves with the first seed's requests queued, and the trace at that rate.

    Raises ConfigError if all requests arrive at 0 s, which is no rate.
    """
    if facts.last_s <= 0:
        raise ConfigError(
            "all requests arrive at 0 s, so no share of capacity is a rate; accepted: rate_scale"
        )
    requests = read_once(scenario.trace, 0)
    step = -(-len(requests) // CAPACITY_REQUESTS)
    records: list[Record] = []
    simulate_policy(
        at_once(requests[::step]),
        "vllm",
        scenario.system,
        max_output_tokens=scenario.max_output_tokens,
        named="capacity",
        on_record=records.append,
    )
    finished = [record for record in records if record.outcome is Outcome.FINISHED]
    if not finished:
        raise ConfigError("no request of the trace is served here, so there is no capacity")
    ends_s = sorted(record.finished_s or 0.0 for record in finished)
    counted = max(1, int(CAPACITY_SHARE * len(ends_s)))
    capacity = counted / ends_s[counted - 1]
    rate = len(requests) / requests[-1].arrival_s
    return capacity, replace(scenario.trace, rate_scale=scenario.trace.rate_scale * capacity / rate)


def _check_router(name: str) -> None:
    build_router(name)
    if name == STAGE_ROUTER:
        accepted = ", ".join(each for each in ROUTERS if each != STAGE_ROUTER)
        raise ConfigError(
            f"router {name!r} parts prefill and decode, which the simulator cannot; accepted: {accepted}"
        )


def _pool_router(asked: SimulationRequest) -> str:
    """How pools share requests. Raises ConfigError if a router is named and there are no pools."""
    if asked.pool_router is not None and asked.pools is None:
        raise ConfigError.of("pool_router", f"{asked.pool_router!r} without pools", "with --pools")
    return POOL_ROUTER if asked.pool_router is None else asked.pool_router


def _instances(asked: SimulationRequest) -> int:
    """How many instances serve under every policy. Raises ConfigError for a number that is not accepted."""
    if asked.pools is None:
        instances = 1 if asked.instances is None else asked.instances
    elif asked.instances is None:
        instances = sum(asked.pools.values())
    else:
        raise ConfigError("instances and pools are given; accepted: one of the two")
    if instances < 1:
        raise ConfigError.of("instances", instances, "1 or more")
    return instances
