"""The contenders, runs and cells of `bench/gain/regret.py`. A run is determined by plain data alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from bench.figures import jcts_s
from bench.gain.on_time_oracle import on_time_policy
from bench.gain.regret_workloads import (
    CLASSES,
    DRAWN,
    DRAWN_COUNT,
    MACHINES,
    NONE,
    RULE,
    TARGETED,
    ServedWorkload,
    known_workloads,
    with_classes,
)
from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.kept_runs import Kept, release
from headway.lab.policy_choice import OWN_PARTS, Parts, code_digest, policy_factory, uses_predictions
from headway.lab.simulation import simulate_policy
from headway.policies.presets import POOLED, Preset, find_preset, known_presets
from headway.predict.lengths.choice import DEFAULT_PREDICTOR
from headway.predict.lengths.choice import NONE as NO_PREDICTOR
from headway.predict.steps.calibration import StepSeconds
from headway.results.metrics import ends, jct_s, met_targets, ttft_s
from headway.sim.killed_steps import KILLING_ROWS
from headway.sim.simulation import PolicyFactory
from headway.statistics import known, mean, quantile
from headway.traces import TraceRequest

# ---- contenders: presets and clairvoyants ------------------------------------------------------------

EXACT = "noisy-oracle:tau=1"
ON_TIME = "on-time-oracle"
SUBJECT = "headway"
STOCK = "vllm"

SHORTEST = Parts(
    order="predicted-remaining:tail=0",
    batching="top-jobs:reserve_confidence=0.5",
    eviction="proactive",
)
"""Shortest remaining work first when told the exact lengths, with room set aside.

Unlike `srpt-oracle`, which sorts all waiting jobs in every step, it keeps an index: these queues are too long to sort.
"""

ABLATIONS: dict[str, tuple[str, Parts]] = {
    "headway-no-triage": (SUBJECT, Parts(order="on-time:triage=false")),
    "headway-no-prefixes": (SUBJECT, Parts(order="on-time:prefixes=false")),
    "headway-no-pacing": (SUBJECT, Parts(batching="top-jobs")),
    "headway-long-steps": (SUBJECT, Parts(batching="paced:short_steps=false")),
    "headway-no-saving": (SUBJECT, Parts(batching="paced:saving=false")),
    "headway-no-targets": (SUBJECT, Parts(order="least-work", batching="top-jobs")),
    "headway-no-lengths": (SUBJECT, Parts(order="on-time:least_tau=1")),
    "headway-no-swap": (SUBJECT, Parts(eviction="recompute")),
}
"""Contenders that switch one idea of a preset off: the preset, and the parts that replace its own.

In turn: no job is given up; prefix-cached tokens count as work; steps have no limit of time; steps without a target use
the engine's whole token budget; no step is longer than a token may take; targets are ignored; predicted lengths are
ignored; KV is dropped, never swapped.
"""

BUDGETS = {
    f"{STOCK}-{tokens}": (STOCK, Parts(batching=f"decode-first:token_budget={tokens}"))
    for tokens in (1024, 2048, 4096)
}
"""Stock vLLM with other token budgets than its default. With these and `sarathi`'s 512, its best setting is among
the rivals.
"""

BLIND_ORDERS = {
    "arrival",
    "shortest-prompt",
    "longest-prompt",
    "waited-over-length",
    "skip-join-mlfq",
    "predicted-remaining",
    "hrrn",
    "boost",
    "governed",
}
BLIND_BATCHINGS = {
    "decode-first",
    "prefill-first",
    "iteration-level",
    "request-level",
    "swapped-or-waiting",
    "top-jobs",
    "elastic",
}
BLIND_EVICTIONS = {"recompute", "swap", "cheapest", "proactive"}
"""Evictions that look at no targets and no priority. Runs of presets with such parts alone are the same under any
targets, and are made once.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What serves a cell. `predictor` predicts the lengths of answers; `parts` replace the preset's own.

    An `oracle` is told the true lengths; runs of a `blind` one are the same whatever the targets.
    """

    name: str
    preset: str
    predictor: str
    parts: Parts = OWN_PARTS
    oracle: bool = False
    blind: bool

    def factory(self, requests: Sequence[TraceRequest]) -> PolicyFactory:
        """Makes the contender's policies; an oracle is told the lengths of `requests`."""
        if self.preset == ON_TIME:
            lengths = {request.id: request.output_tokens for request in requests}
            return partial(on_time_policy, ON_TIME, lengths)
        return policy_factory(self.preset, self.parts, requests)

    def said(self) -> str:
        """Everything that determines its decisions within one release: its row, and the code of its parts as it is
        now.
        """
        return _said(self)


@cache
def _said(each: Contender) -> str:
    policy = each.factory(())(UnknownCost())
    code = code_digest((policy.order, policy.batching, policy.eviction, *policy.leaving))
    row = "" if each.preset == ON_TIME else str(find_preset(each.preset, **each.parts.given()))
    return f"{row} {sorted(asdict(each).items())} {code}"


def contender(name: str) -> Contender:
    """A preset or an ablation, with the predictor that a server without prompts has; ConfigError for an unknown name.

    `NAME:tail=X` is the preset with its dial at X.
    """
    preset, _, dial = name.partition(":tail=")
    if dial:
        return replace(contender(preset), name=name, parts=Parts(tail=float(dial)))
    if name in POOLED or name in KILLING_ROWS:
        raise ConfigError(f"{name!r} {left_out()[name]}; accepted: presets that serve one engine")
    preset, parts = (ABLATIONS | BUDGETS).get(name, (name, OWN_PARTS))
    predictor = DEFAULT_PREDICTOR if uses_predictions(preset, parts) else NO_PREDICTOR
    blind = is_blind(find_preset(preset, **parts.given()))
    return Contender(name=name, preset=preset, predictor=predictor, parts=parts, blind=blind)


def rivals(subject: str) -> tuple[str, ...]:
    """Every preset that runs on one engine, except the subject, `headway`, and duplicates; and stock with other
    budgets.
    """
    out = {*left_out(), subject, SUBJECT}
    return (*(name for name in known_presets() if name not in out), *BUDGETS)


def ablations(subject: str) -> tuple[str, ...]:
    """The ablations of the subject."""
    return tuple(name for name, (preset, _) in ABLATIONS.items() if preset == subject)


def left_out() -> dict[str, str]:
    """Presets that are no rivals, and why."""
    found = dict.fromkeys(POOLED, "needs pools of several instances")
    found |= dict.fromkeys(KILLING_ROWS, "kills steps, which needs an engine unlike the others'")
    first: dict[tuple[str, ...], str] = {}
    for name, row in known_presets().items():
        parts = (row.order, row.batching, row.eviction, *row.leaving)
        if parts in first:
            found[name] = f"has the parts of {first[parts]}"
        first.setdefault(parts, name)
    return found


def clairvoyants(subject: str) -> list[Contender]:
    """References that know every length: strong heuristics, and no proven bounds (adr/0012)."""
    found = [
        Contender(
            name="shortest-oracle",
            preset="predicted",
            predictor=EXACT,
            parts=SHORTEST,
            oracle=True,
            blind=True,
        ),
        Contender(name=ON_TIME, preset=ON_TIME, predictor=NO_PREDICTOR, oracle=True, blind=False),
    ]
    mine = contender(subject)
    if mine.predictor != NO_PREDICTOR:
        found.append(
            Contender(
                name=f"{subject} (exact lengths)",
                preset=subject,
                predictor=EXACT,
                oracle=True,
                blind=mine.blind,
            )
        )
    return found


def is_blind(row: Preset) -> bool:
    """Whether a preset is known to look at no targets; False if any part is unknown."""
    order, batching, eviction = (part.partition(":")[0] for part in (row.order, row.batching, row.eviction))
    known = order in BLIND_ORDERS and batching in BLIND_BATCHINGS and eviction in BLIND_EVICTIONS
    return known and not row.leaving


FILE, CAPACITY_FILE = "regret-runs.jsonl", "regret-capacities.jsonl"
ANY = "any"
"""Stands for all sets of targets: the run of a blind contender counts for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A window: how long requests come, and how long the first of them are not measured."""

    window_s: float = 600.0
    warm_up_s: float = 60.0


USUAL_SPELL = Spell()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretRun:
    """All that determines one run. `classes` is one of CLASSES or ANY; `data` is the folder of the shared traces.

    With `tenants` requests carry their tenant's name, where the trace has tenants.
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
    def served(self) -> ServedWorkload:
        """The workload on its machine."""
        return ServedWorkload(self.workload, MACHINES[self.machine], self.data)

    def digest(self) -> str:
        """As `Digested.digest`; the path of the data makes no difference."""
        said = (self.classes, RULE, self.tenants, self.seed, self.rate_rps, self.spell, self.contender.said())
        return _digest(self.machine, self.workload, said)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretResult:
    """Results of a run over the requests that came after the warm-up.

    `goodput` is by set of targets that the run counts for; `mean_jct_s` is None where some did not finish. The 99th
    percentiles are over requests that finished, and got a first token. `worst_slowdown` is the largest JCT divided by
    `alone_s`. `cpu_s` is the CPU time of the simulation.
    """

    goodput: dict[str, float]
    mean_jct_s: float | None
    p99_jct_s: float | None
    p99_ttft_s: float | None
    worst_slowdown: float | None
    requests: int
    preemptions: int
    end_s: float
    cpu_s: float

    def value(self, classes: str) -> float | None:
        """The metric under a set of targets: goodput, or mean JCT without targets."""
        return self.mean_jct_s if classes == NONE else self.goodput.get(classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRun:
    """The whole of a workload, queued at the start, under `vllm`."""

    workload: str
    machine: str
    data: Path

    def digest(self) -> str:
        """As `Digested.digest`."""
        return _digest(self.machine, self.workload, STOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests a second, and their number."""

    rps: float
    requests: int


def _digest(machine: str, workload: str, said: object) -> str:
    what = (release(), MACHINES[machine].fingerprint(), workload, DRAWN.get(workload), DRAWN_COUNT, said)
    return sha256(repr(what).encode()).hexdigest()


def measure_capacity(run: CapacityRun) -> Capacity:
    """Throughput of `vllm` with everything queued at 0 s."""
    served = ServedWorkload(run.workload, MACHINES[run.machine], run.data)
    backlog = served.backlog()
    result = simulate_policy(
        backlog, STOCK, served.machine.system(), max_output_tokens=served.machine.longest_tokens
    )
    return Capacity(rps=len(backlog) / result.end_s, requests=len(backlog))


def measure(run: RegretRun) -> RegretResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    started_s = time.process_time()
    requests = run.served.window(run.rate_rps, run.spell.window_s, run.seed)
    asked = as_served(requests, run)
    result = simulate_policy(
        asked,
        run.contender.factory(asked),
        run.served.machine.system(),
        max_output_tokens=run.served.machine.longest_tokens,
        seed=run.seed,
        lengths=run.contender.predictor,
        named=f"{run.contender.name}, {run.workload} on {run.machine}, load {run.load:g}, seed {run.seed}",
    )
    measured = [record for record in ends(result.records) if record.arrival_s >= run.spell.warm_up_s]
    return RegretResult(
        goodput={
            classes: goodput(measured, slos_of(run, requests, classes)) for classes in targeted(run.classes)
        },
        mean_jct_s=mean_jct_s(measured),
        p99_jct_s=_p99(map(jct_s, measured)),
        p99_ttft_s=_p99(map(ttft_s, measured)),
        worst_slowdown=worst_slowdown(measured, run.served.machine.system().calibration.step),
        requests=len(measured),
        preemptions=sum(record.preemptions for record in result.records),
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
    return mean(jcts_s(measured))


def worst_slowdown(measured: Sequence[Record], steps: StepSeconds) -> float | None:
    """The largest completion time of a request divided by its time alone; None where none finished."""
    return max(
        (took_s / alone_s(record, steps) for record in measured if (took_s := jct_s(record)) is not None),
        default=None,
    )


def alone_s(record: Record, steps: StepSeconds) -> float:
    """Time of a request in an idle engine: its prompt in one step, and a step for each further token."""
    prompt, decode = BatchShape(), BatchShape()
    prompt.add(record.prompt_tokens, 0)
    decode.add(1, record.prompt_tokens + record.output_tokens // 2)
    return steps.step_s(prompt) + max(0, record.output_tokens - 1) * steps.step_s(decode)


def _p99(times_s: Iterable[float | None]) -> float | None:
    """The 99th percentile of the values that are not None; None where there are none."""
    found = known(times_s)
    return quantile(found, 0.99) if found else None


def kept_runs(root: Path) -> Kept[RegretRun, RegretResult]:
    """The runs kept in DIR/regret-runs.jsonl."""
    kept: Kept[RegretRun, RegretResult] = Kept(root, FILE)
    kept.load(RegretResult)
    return kept


def kept_capacities(root: Path) -> Kept[CapacityRun, Capacity]:
    """The capacities kept in DIR/regret-capacities.jsonl."""
    kept: Kept[CapacityRun, Capacity] = Kept(root, CAPACITY_FILE)
    kept.load(Capacity)
    return kept


# ---- cells, selected by name, and their runs ---------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.2, 1.5)


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A workload on a machine at a share of its capacity, with a set of targets."""

    workload: str
    machine: str
    load: float
    classes: str

    @property
    def name(self) -> str:
        """The name that `--cells` selects it by."""
        return f"{self.workload}/{self.machine}/{self.load:g}/{self.classes}"

    @property
    def place(self) -> tuple[str, str]:
        """Workload and machine, which have a capacity."""
        return (self.workload, self.machine)


def all_cells(data: Path) -> list[Cell]:
    """Every cell whose workload is available, workload by workload."""
    return [
        Cell(workload, machine, load, classes)
        for workload in known_workloads(data)
        for machine in MACHINES
        for load in LOADS
        for classes in CLASSES
    ]


def that_fit(cells: Sequence[Cell], data: Path) -> list[Cell]:
    """The cells whose machine can hold enough of their workload; ConfigError if there are none. Reads the traces."""
    places = {cell.place for cell in cells}
    fit = {
        (workload, machine)
        for workload, machine in places
        if ServedWorkload(workload, MACHINES[machine], data).facts().served
    }
    if not fit:
        raise ConfigError(
            f"hardly anything of {cells[0].workload} fits {cells[0].machine}; accepted: other cells"
        )
    return [cell for cell in cells if cell.place in fit]


def select(cells: Sequence[Cell], patterns: str) -> list[Cell]:
    """The cells whose name a pattern of `A,B,...` matches, in their order; ConfigError for a pattern that matches
    none.
    """
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    if not wanted:
        raise ConfigError(f"cells is {patterns!r}; accepted: names or patterns, comma-separated")
    for pattern in wanted:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            raise ConfigError(
                f"no cell is called {pattern!r}; accepted: WORKLOAD/MACHINE/LOAD/CLASSES, "
                f"as {cells[0].name}, with * for any part"
            )
    return [cell for cell in cells if any(fnmatchcase(cell.name, pattern) for pattern in wanted)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: cells, contenders and number of seeds."""

    cells: Sequence[Cell]
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    capacity_rps: Mapping[tuple[str, str], float]
    data: Path
    spell: Spell = USUAL_SPELL
    tenants: bool = False

    def run(self, cell: Cell, contender: Contender, seed: int) -> RegretRun:
        """The run that gives a contender's value in a cell."""
        return RegretRun(
            workload=cell.workload,
            machine=cell.machine,
            load=cell.load,
            classes=ANY if contender.blind else cell.classes,
            seed=seed,
            contender=contender,
            rate_rps=float(f"{cell.load * self.capacity_rps[cell.place]:.6g}"),
            data=self.data,
            spell=self.spell,
            tenants=self.tenants,
        )

    def runs(self, seeds: Iterable[int]) -> Iterator[RegretRun]:
        """The runs of these seeds, each once, seed by seed: the first is over everywhere before the second begins."""
        seen: set[str] = set()
        for seed in seeds:
            for cell in self.cells:
                for contender in self.contenders:
                    run = self.run(cell, contender, seed)
                    digest = run.digest()
                    if digest not in seen:
                        seen.add(digest)
                        yield run
