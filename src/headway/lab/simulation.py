"""Simulated runs: one cell is a pure function of what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from hashlib import sha256

from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.errors import HeadwayError
from headway.lab.grid import Cell
from headway.lab.policy_choice import (
    OWN_PARTS,
    Parts,
    is_pooled,
    policies_of,
    uses_predictions,
)
from headway.lab.predictor_choice import length_source, predictor_label
from headway.lab.stream import Stream
from headway.predict.lengths.choice import NONE
from headway.predict.steps.calibration import Calibration
from headway.results import RunInfo, Summary, summarize
from headway.results.records import TIME_DECIMALS
from headway.routing import POOL_ROUTER
from headway.routing.pools import PoolSizes
from headway.sim.simulation import SimulatedRun, System, simulate
from headway.sim.watcher import Watcher
from headway.traces import TraceRequest, scale_rate

_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")
_PROBES = ((1, 1, 0), (64, 1, 1000), (1, 512, 0), (4, 2048, 4096))
"""Steps a law is asked about to tell it from another: jobs, new tokens and context of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that cells share: who serves what, with which parts in place of the policies' own.

    `predictor` says how long answers will be, to the policies that go by it. A policy for each pool is served by
    `pools` behind `pool_router`, every other one by `system`, which has as many instances.
    """

    system: System
    stream: Stream
    max_output_tokens: int
    parts: Parts = OWN_PARTS
    predictor: str = NONE
    pools: PoolSizes | None = None
    pool_router: str = POOL_ROUTER

    def system_of(self, policy: str) -> System:
        """What serves under a policy."""
        if not is_pooled(policy):
            return self.system
        return replace(self.system, pools=self.pools, router=self.pool_router)

    def predictor_of(self, policy: str) -> str:
        """Who predicts for a policy; nobody where it makes no difference."""
        return self.predictor if self.predictor != NONE and uses_predictions(policy, self.parts) else NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one cell came to. `finished_digest` tells whether two policies finished the same requests.

    `info` is what its records do not hold; the summary is of both. `predictor` says who predicted lengths, and whether
    it was made from the true ones; empty if nobody did.
    """

    cell: Cell
    summary: Summary
    info: RunInfo
    finished_digest: str
    end_s: float
    steps: int
    tokens: int
    cached_tokens: int
    predictor: str = ""


def run_cell(
    scenario: Scenario, cell: Cell, on_record: Callable[[Record], None], watcher: Watcher | None = None
) -> CellResult:
    """Simulate one cell, handing on each record as its request ends or moves, its times rounded as they are stored.

    The same arguments give the same records and result, with or without a `watcher`. Errors raised on purpose
    name the cell. Holds the requests and the records in memory.
    """
    records: list[Record] = []

    def ended(record: Record) -> None:
        _round_times(record)
        records.append(record)
        on_record(record)

    try:
        result = _simulate(scenario, cell, ended, watcher)
    except HeadwayError as error:
        raise type(error)(f"{cell}: {error}") from error
    predictor = scenario.predictor_of(cell.policy)
    return _cell_result(cell, records, result, "" if predictor == NONE else predictor_label(predictor))


@lru_cache(maxsize=1)
def _requests(stream: Stream, seed: int) -> list[TraceRequest]:
    """The requests of one seed, read or drawn once for the cells that a process runs one after another."""
    return stream.requests(seed)


def _simulate(
    scenario: Scenario, cell: Cell, on_record: Callable[[Record], None], watcher: Watcher | None
) -> SimulatedRun:
    requests = _requests(scenario.stream, cell.seed)
    if cell.load != 1:
        requests = scale_rate(requests, cell.load)
    build = policies_of(cell.policy, scenario.parts, requests)
    system = scenario.system_of(cell.policy)
    predictor = scenario.predictor_of(cell.policy)
    return simulate(
        requests,
        build,
        system,
        on_record=on_record,
        max_output_tokens=scenario.max_output_tokens,
        seed=cell.seed,
        watcher=watcher,
        lengths=length_source(predictor, requests, cell.seed),
    )


def _round_times(record: Record) -> None:
    """Round to what is stored, so that a summary of a run is the summary of its file."""
    for name in _TIMES:
        time_s = getattr(record, name)
        if time_s is not None:
            setattr(record, name, round(time_s, TIME_DECIMALS))


def _cell_result(cell: Cell, records: list[Record], result: SimulatedRun, predictor: str) -> CellResult:
    finished = sorted(record.id for record in records if record.outcome is Outcome.FINISHED)
    totals = result.totals.values()
    info = run_info(result)
    return CellResult(
        cell=cell,
        summary=summarize(records, run=info),
        info=info,
        finished_digest=sha256("\n".join(finished).encode()).hexdigest(),
        end_s=result.end_s,
        steps=sum(total.steps for total in totals),
        tokens=sum(total.tokens for total in totals),
        cached_tokens=sum(total.cached_tokens for total in totals),
        predictor=predictor,
    )


def run_info(result: SimulatedRun) -> RunInfo:
    """What a run knows beyond its records: blocks copied each way, of jobs that moved and ahead of need too."""
    totals = result.totals.values()
    return RunInfo(
        swapped_out_blocks=sum(total.swapped_out_blocks for total in totals),
        swapped_in_blocks=sum(total.swapped_in_blocks for total in totals),
    )


def fingerprint(calibration: Calibration) -> str:
    """A digest of what a calibration says, its step law by what it answers: equal ones give equal runs."""
    said: list[object] = [
        getattr(calibration, field.name) for field in fields(calibration) if field.name != "step"
    ]
    for num_jobs, new_tokens, context_tokens in _PROBES:
        shape = BatchShape()
        for _ in range(num_jobs):
            shape.add(new_tokens, context_tokens)
        said.append(calibration.step.step_s(shape))
    return sha256(repr(said).encode()).hexdigest()
