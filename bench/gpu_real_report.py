"""What `bench/gpu_real.py` prints of what was measured, beside what the simulator says of the same streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean, quantiles
from typing import Any

import msgspec

from bench.gpu_answers import Stream, beyond_sheet
from bench.gpu_engine import StepTime
from bench.gpu_real_plan import Study
from bench.headway_real_engine import STOCK, Run, records
from bench.progress import say
from bench.regret_machines import Machine
from bench.regret_targets import NONE
from bench.versus import GOODPUT, MEAN_JCT, Runs, figures, gain
from headway.core.batch_shape import BatchShape
from headway.core.record import Record
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.predictor_choice import length_source
from headway.sim.simulation import simulate


def report(study: Study) -> dict[str, Any]:
    """All figures."""
    facts = study.facts
    cells: dict[str, dict[str, Any]] = {}
    for load in study.loads:
        for kind in study.kinds:
            say(f"simulating {kind!r} at load {load:g}")
            cells[f"{load:g} {kind}"] = cell(study, [run for run in study.runs() if run.load == load], kind)
    return {
        **{name: getattr(facts, name) for name in facts.__struct_fields__ if name != "steps"},
        "seeds": study.seeds,
        "steps": [against_sheet(study.machine, step) for step in facts.steps],
        "beyond_sheet": beyond_sheet(study.machine.system(), stock_streams(study)),
        "cells": cells,
    }


def stock_streams(study: Study) -> Iterator[Stream]:
    """Each stream that stock served, and what came of it."""
    for run in study.runs():
        if run.contender is STOCK:
            yield study.stream(run.load, run.seed, NONE), study.kept(run).served


def against_sheet(machine: Machine, step: StepTime) -> dict[str, float]:
    """A step's time, and what the sheet says over it."""
    shape = BatchShape()
    for _ in range(step.batch):
        shape.add(step.new_tokens, step.context_tokens)
    for _ in range(step.decodes):
        shape.add(1, step.decode_context_tokens)
    told_s = machine.system().step.step_s(shape)
    return {**msgspec.structs.asdict(step), "sheet_s": told_s, "sheet_over_real": told_s / step.seconds}


def cell(study: Study, runs: Sequence[Run], kind: str) -> dict[str, Any]:
    """Each system's figures, real and simulated, and the gains over stock's best."""
    systems: dict[str, list[Run]] = {}
    for run in runs:
        if run.contender is STOCK or run.kind == kind:
            systems.setdefault(f"{run.contender.name}-{run.seats}", []).append(run)
    real = {name: Runs([real_records(study, run, kind) for run in its]) for name, its in systems.items()}
    told = {name: Runs([told_records(study, run, kind) for run in its]) for name, its in systems.items()}
    own = next(name for name, (run, *_) in systems.items() if run.contender is not STOCK)
    return {
        "gain": {metric: best_gain(real, own, metric) for metric in (GOODPUT, MEAN_JCT)},
        "simulated_gain": {metric: best_gain(told, own, metric) for metric in (GOODPUT, MEAN_JCT)},
        "real": {name: figures(each, {}) for name, each in real.items()},
        "simulated": {name: figures(each, {}) for name, each in told.items()},
        "schedule_ms": {name: schedule_ms(study, its) for name, its in systems.items()},
        "pauses": sum(study.kept(run).counters["pauses"] for run in systems[own]),
    }


def best_gain(systems: dict[str, Runs], own: str, metric: str) -> float | None:
    """Over the best of the others; None where a value is missing."""

    def value(name: str) -> float | None:
        found = [getattr(summary, metric) for summary in systems[name].summaries()]
        return None if None in found else fmean(found)

    others = [found for name in systems if name != own and (found := value(name)) is not None]
    if not others:
        return None
    return gain(metric, value(own), max(others) if metric == GOODPUT else min(others))


def real_records(study: Study, run: Run, kind: str) -> list[Record]:
    """What became of the requests on the GPU, judged by the targets of a class."""
    return records(study.stream(run.load, run.seed, kind), study.kept(run).served)


def told_records(study: Study, run: Run, kind: str) -> list[Record]:
    """What the simulator says of the same stream, by the sheet."""
    requests, facts, system = study.stream(run.load, run.seed, kind), study.facts, study.machine.system()
    limits = replace(
        system.limits,
        num_blocks=facts.num_blocks,
        max_num_seqs=run.seats,
        max_num_batched_tokens=facts.tokens_a_step,
        max_cudagraph_capture_size=system.limits.graphed_tokens,  # one engine served all, whatever their seats
        asynchronous=facts.asynchronous,
        host_blocks=0,
    )
    found: list[Record] = []
    predictor = run.contender.predictor
    simulate(
        requests,
        policy_factory(run.contender.policy, OWN_PARTS, requests),
        replace(system, limits=limits),
        on_record=found.append,
        max_output_tokens=study.machine.longest_tokens,
        seed=run.seed,
        lengths=None if predictor is None else length_source(predictor, requests, run.seed),
    )
    return found


def schedule_ms(study: Study, runs: Sequence[Run]) -> dict[str, float]:
    """The scheduler's own time a step, of all these runs together."""
    times_s = [seconds for run in runs for seconds in study.kept(run).schedule_s]
    cuts = quantiles(times_s, n=100)
    return {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3, "steps": len(times_s)}
