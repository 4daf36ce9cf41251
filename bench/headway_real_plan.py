"""What `headway_real` runs: which streams under whom, at how many seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from pathlib import Path

import msgspec

from bench.broken_ways import REFERENCES, ways
from bench.client_classes import NONE, TWO, Targets, asked_by, targets_from
from bench.headway_real_engine import CONTROL, PRIORITY, STOCK, Contender, Memory, Run, kept, records, taught
from bench.taught_lengths import TAUGHT, untaught_stream
from bench.versus import GOODPUT, MEAN_JCT, METRICS
from headway.errors import ConfigError
from headway.results import Summary, summarize
from headway.traces import TraceRequest

SEATS = (4, 8, 16, 32, 64)
SWEEP_LOAD, SWEEP_SEED = 1.0, 96
"""A stream that nothing is compared on: a run counts beside those alone that it served side by side with."""
CAPACITY_REQUESTS = 400
"""So many that what the last long answers take alone hardly counts, and few enough to serve before every stream."""
CAPACITY_SEED = 99
OWN = "policy"
"""How `--system` calls the policy of `--policy`."""
SYSTEMS = (STOCK.name, PRIORITY.name, OWN)

Grid = dict[tuple[str, float], dict[str, list[Run]]]
"""By kind of clients and load: every system's runs, one for each seed."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before anything was compared, and for what kind of runs."""

    seconds: float
    memory: Memory
    capacity_rps: float
    capacity_seats: int
    light: Summary
    asynchronous: bool
    tokens_a_step: int
    num_blocks: int


@dataclass(frozen=True)
class Plan:
    """All that decides what is run; what was measured so far is in `out`."""

    out: Path
    seconds: float
    seeds: int
    loads: Sequence[float]
    kinds: Sequence[str]
    systems: Sequence[str]
    policy: str
    memory: Memory

    @property
    def preparation(self) -> Path:
        """Where what is measured beforehand is kept."""
        return self.out / "prepared.json"

    @cached_property
    def prepared(self) -> Prepared:
        """As it was kept. Raises ConfigError if it is of runs of another kind."""
        found = msgspec.json.decode(self.preparation.read_bytes(), type=Prepared)
        if (found.seconds, found.memory) != (self.seconds, self.memory):
            raise ConfigError(
                f"{self.out} holds runs of {found.seconds:g} s with --kv-blocks {found.memory.kv_blocks} --host-gib "
                f"{found.memory.host_gib:g}; accepted: the same, or another folder"
            )
        return found

    @cached_property
    def targets(self) -> Targets:
        """Of the clients of every run."""
        return targets_from(self.prepared.light)

    def stream(self, kind: str, load: float, seed: int) -> list[TraceRequest]:
        """The requests of a kind of clients: the same for every system, and but for who asks for every kind."""
        drawn = untaught_stream(load * self.prepared.capacity_rps, self.seconds, seed)
        return asked_by(drawn, kind, self.targets, seed)

    # ---- stock alone -----------------------------------------------------------------------------------

    def sweep(self) -> list[Run]:
        """Stock at every number of seats."""
        return [Run(STOCK, "", seats, SWEEP_LOAD, SWEEP_SEED) for seats in SEATS]

    @cached_property
    def swept(self) -> dict[str, dict[int, Summary]]:
        """What the sweep came to for each kind of clients, by seats."""
        served = {run.seats: kept(run, self.out).served for run in self.sweep()}
        return {
            kind: {
                seats: summarize(records(self.stream(kind, SWEEP_LOAD, SWEEP_SEED), each))
                for seats, each in served.items()
            }
            for kind in self.kinds
        }

    def best(self, kind: str) -> dict[str, int]:
        """Stock's best number of seats for each metric that clients of a kind have; the first is what counts most."""
        metrics = (MEAN_JCT,) if kind == NONE else METRICS
        return {metric: best_seats(self.swept[kind], metric) for metric in metrics}

    def width(self, kind: str) -> int:
        """The batch of all others: as stock's best for what counts most."""
        return next(iter(self.best(kind).values()))

    # ---- what is compared ------------------------------------------------------------------------------

    def grid(self) -> Grid:
        """Every cell."""
        return {(kind, load): self._cell(kind, load) for kind, load in product(self.kinds, self.loads)}

    def _cell(self, kind: str, load: float) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        if STOCK.name in self.systems:
            for seats in sorted(set(self.best(kind).values())):
                found[stock_name(seats)] = self._runs(STOCK, "", seats, load)
            found[CONTROL.name] = self._runs(CONTROL, "", self.best(kind)[MEAN_JCT], load)
        if PRIORITY.name in self.systems and kind == TWO:
            found[PRIORITY.name] = self._runs(PRIORITY, kind, self.width(kind), load)
        if OWN in self.systems:
            found[self.policy] = self._runs(taught(self.policy), kind, self.width(kind), load)
        return found

    def broken_grid(self) -> Grid:
        """The same for the contenders of `--broken`; who goes by neither targets nor predictions serves all kinds."""
        return {
            (kind, load): {
                each.name: self._runs(each, kind if each.predictor else "", self.width(kind), load)
                for each in broken_contenders(self.policy)
            }
            for kind, load in product(self.kinds, self.loads)
        }

    def _runs(self, contender: Contender, kind: str, seats: int, load: float) -> list[Run]:
        return [Run(contender, kind, seats, load, seed) for seed in range(self.seeds)]


def capacity_burst() -> list[TraceRequest]:
    """Requests that are all there at once: what an engine gets through of them is its capacity."""
    drawn = untaught_stream(50.0, CAPACITY_REQUESTS / 50, CAPACITY_SEED)
    return [replace(request, arrival_s=0.0) for request in drawn]


def best_seats(swept: dict[int, Summary], metric: str) -> int:
    """The best of a sweep, none being the worst; of equals the one with the least mean JCT, then the fewest seats."""
    sign = -1 if metric == GOODPUT else 1

    def rank(seats: int) -> tuple[float, float, int]:
        summary = swept[seats]
        value = getattr(summary, metric)
        return (inf if value is None else sign * value, summary.mean_jct_s or inf, seats)

    return min(swept, key=rank)


def broken_contenders(policy: str) -> list[Contender]:
    """Who needs no predictions, and the policy with honest ones and with every kind of broken ones."""
    return [Contender(name, name) for name in REFERENCES] + [
        Contender(
            policy if way.predictor == TAUGHT and way.steps == 1 else f"{policy}, {way.name}",
            policy,
            predictor=way.predictor,
            steps=way.steps,
        )
        for way in ways(TAUGHT)
    ]


def stock_name(seats: int) -> str:
    """What stock is called in a cell."""
    return f"{STOCK.name}, {seats} seats"
