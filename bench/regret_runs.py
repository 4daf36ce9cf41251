"""One run of `bench/regret.py`: decided by plain data, what it came to by set of targets, and where it is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from bench.regret_contenders import STOCK, Contender
from bench.regret_machines import MACHINES
from bench.regret_targets import NONE, RULE, TARGETED, with_classes
from bench.regret_workloads import DRAWN, DRAWN_COUNT, Served
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import HeadwayError
from headway.lab.kept_runs import Kept, release
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.predictor_choice import length_source
from headway.results.metrics import ends, jct_s, met_targets
from headway.sim.simulation import simulate
from headway.traces import TraceRequest

FILE, CAPACITY_FILE = "regret-runs.jsonl", "regret-capacities.jsonl"
ANY = "any"
"""In place of a set of targets: the run is of a contender who looks at none, and counts for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A window: how long requests come, and how long the first of them are not measured."""

    window_s: float = 600.0
    warm_up_s: float = 60.0


USUAL_SPELL = Spell()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRun:
    """All that decides one run. `classes` is one of CLASSES or ANY; `data` is the folder of the shared traces.

    With `tenants` requests name theirs, where the trace has some.
    """

    workload: str
    machine: str
    load: float
    classes: str
    seed: int
    contender: Contender
    rate_rps: float
    data: Path
    spell: Spell = USUAL_SPELL
    tenants: bool = False

    @property
    def served(self) -> Served:
        """What comes, to where."""
        return Served(self.workload, MACHINES[self.machine], self.data)

    def digest(self) -> str:
        """As `Digested.digest`; where the data lies makes no difference."""
        said = (self.classes, RULE, self.tenants, self.seed, self.rate_rps, self.spell, self.contender.said())
        return _digest(self.machine, self.workload, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretResult:
    """What a run came to, over the requests that came after the warm-up.

    `goodput` is by set of targets, of those the run counts for; `mean_jct_s` is None where some did not finish.
    `cpu_s` is what it took to simulate.
    """

    goodput: dict[str, float]
    mean_jct_s: float | None
    requests: int
    preemptions: int
    end_s: float
    cpu_s: float

    def value(self, classes: str) -> float | None:
        """The metric under a set of targets: goodput, or mean JCT without targets."""
        return self.mean_jct_s if classes == NONE else self.goodput.get(classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRun:
    """The whole of a workload, all there at the start, under `vllm`."""

    workload: str
    machine: str
    data: Path

    def digest(self) -> str:
        """As `Digested.digest`."""
        return _digest(self.machine, self.workload, STOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests a second, and how many there were."""

    rps: float
    requests: int


def _digest(machine: str, workload: str, said: object) -> str:
    what = (release(), MACHINES[machine].fingerprint(), workload, DRAWN.get(workload), DRAWN_COUNT, said)
    return sha256(repr(what).encode()).hexdigest()


def measure_capacity(run: CapacityRun) -> Capacity:
    """Throughput of `vllm` with everything queued at 0 s."""
    served = Served(run.workload, MACHINES[run.machine], run.data)
    backlog = served.backlog()
    result = simulate(
        backlog,
        policy_factory(STOCK, OWN_PARTS, backlog),
        served.machine.system(),
        on_record=lambda record: None,
        max_output_tokens=served.machine.longest_tokens,
    )
    return Capacity(rps=len(backlog) / result.end_s, requests=len(backlog))


def measure(run: RegretRun) -> RegretResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    started_s = time.process_time()
    requests = run.served.window(run.rate_rps, run.spell.window_s, run.seed)
    asked = as_served(requests, run)
    records: list[Record] = []
    try:
        result = simulate(
            asked,
            run.contender.factory(asked),
            run.served.machine.system(),
            on_record=records.append,
            max_output_tokens=run.served.machine.longest_tokens,
            seed=run.seed,
            lengths=length_source(run.contender.predictor, asked, run.seed),
        )
    except HeadwayError as error:
        where = f"{run.contender.name}, {run.workload} on {run.machine}, load {run.load:g}, seed {run.seed}"
        raise type(error)(f"{where}: {error}") from error
    measured = [record for record in ends(records) if record.arrival_s >= run.spell.warm_up_s]
    return RegretResult(
        goodput={
            classes: goodput(measured, slos_of(run, requests, classes)) for classes in targeted(run.classes)
        },
        mean_jct_s=mean_jct_s(measured),
        requests=len(measured),
        preemptions=sum(record.preemptions for record in records),
        end_s=result.end_s,
        cpu_s=round(time.process_time() - started_s, 2),
    )


def as_served(requests: Sequence[TraceRequest], run: RegretRun) -> list[TraceRequest]:
    """A window's requests with the targets of a run, and with their tenants if it has any."""
    asked = with_classes(requests, run.served, NONE if run.classes == ANY else run.classes, run.seed)
    return asked if run.tenants else [replace(request, tenant="") for request in asked]


def targeted(classes: str) -> Sequence[str]:
    """The sets of targets that a run counts for."""
    return TARGETED if classes == ANY else tuple(each for each in TARGETED if each == classes)


def slos_of(run: RegretRun, requests: Sequence[TraceRequest], classes: str) -> dict[str, Slo]:
    """Every request's targets in a set of classes, by id."""
    return {request.id: request.slo for request in with_classes(requests, run.served, classes, run.seed)}


def goodput(measured: Sequence[Record], slos: Mapping[str, Slo]) -> float:
    """The share of the requests that met all of their targets; 0 if there are none."""
    met = sum(met_targets(replace(record, slo=slos[record.id])) for record in measured)
    return met / len(measured) if measured else 0.0


def mean_jct_s(measured: Sequence[Record]) -> float | None:
    """Mean job completion time; None if some request did not finish, or there are none."""
    if not measured or any(record.outcome is not Outcome.FINISHED for record in measured):
        return None
    return fmean(jct_s(record) or 0.0 for record in measured)


def kept_runs(root: Path) -> Kept[RegretRun, RegretResult]:
    """Runs that are done, in DIR/regret-runs.jsonl."""
    kept: Kept[RegretRun, RegretResult] = Kept(root, FILE)
    kept.load(RegretResult)
    return kept


def kept_capacities(root: Path) -> Kept[CapacityRun, Capacity]:
    """Capacities that are known, in DIR/regret-capacities.jsonl."""
    kept: Kept[CapacityRun, Capacity] = Kept(root, CAPACITY_FILE)
    kept.load(Capacity)
    return kept
