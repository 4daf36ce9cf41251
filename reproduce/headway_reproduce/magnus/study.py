"""Magnus's experiments from beginning to end: what is run, in which order, and what is made of it."""

from __future__ import annotations

from headway.lab.kept_runs import run_kept
from headway.lab.papers import Request, Size, Tell, Tick
from headway.predict.hardware import hardware
from headway.predict.length_forest import lightgbm
from headway.results.study import Study, StudyPart
from headway_reproduce.magnus.accuracy import Accuracy, accuracy, accuracy_seconds
from headway_reproduce.magnus.data import find_data, load_tasks
from headway_reproduce.magnus.engine import toy
from headway_reproduce.magnus.findings import Findings
from headway_reproduce.magnus.prediction import (
    overhead_data,
    overhead_part,
    prediction_data,
    prediction_part,
)
from headway_reproduce.magnus.rates import gains_data, headline, rates_data, rates_part
from headway_reproduce.magnus.real import REAL_SHOWN, magnus_real_runs, magnus_real_seconds
from headway_reproduce.magnus.reasons import phi_data, phi_part, reasons_part, toy_data, toy_part
from headway_reproduce.magnus.run import KeptMagnusRuns
from headway_reproduce.magnus.scope import Scope
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    MODEL,
    SEEDS,
    VS,
    VS_BATCH,
    VSQ_BATCH,
)
from headway_reproduce.magnus.simulation import simulate_magnus
from headway_reproduce.magnus.steps import ablation_data, ablation_part, today_data, today_part
from headway_reproduce.magnus.stream import requests_a_task
from headway_reproduce.real_study import RealRuns, real_data, real_part
from headway_reproduce.study_findings import short

NAME = "magnus"
TITLE = "Magnus, repeated"


class Magnus:
    """Eight tasks on eight simulated V100s, and a smaller run on this machine's engine."""

    def size(self, request: Request) -> Size:
        """As `Paper.size`; ConfigError too without LightGBM."""
        scope, kept = _scope(request), KeptMagnusRuns.read(request.root)
        runs, first = scope.num_runs(), scope.capacity_runs()
        done = sum(kept.result(run) is not None for run in first)
        if done == len(first):
            capacity_rps = Findings(kept, scope).capacity_rps
            done += sum(kept.result(run) is not None for run in scope.loaded_runs(capacity_rps))
        if done < runs:
            lightgbm()  # a missing one is refused before anything runs
        seconds = (runs - done) * scope.seconds_a_run() / request.jobs
        seconds += accuracy_seconds(request) + magnus_real_seconds(request)
        return Size(runs=runs, kept=done, seconds=seconds)

    def reproduce(self, request: Request, tick: Tick, tell: Tell) -> Study:
        """As `Paper.reproduce`."""
        scope, kept = _scope(request), KeptMagnusRuns.read(request.root)
        findings = Findings(kept, scope)
        run_kept(scope.capacity_runs(), kept, simulate_magnus, jobs=request.jobs, tick=tick)
        run_kept(
            scope.loaded_runs(findings.capacity_rps), kept, simulate_magnus, jobs=request.jobs, tick=tick
        )
        found = accuracy(request, scope.source, tell)
        return _study(findings, found, magnus_real_runs(request, tell))


def _scope(request: Request) -> Scope:
    return Scope(source=find_data(request.data), quick=request.quick)


def _study(findings: Findings, found: Accuracy, real: RealRuns | None) -> Study:
    parts: list[StudyPart | None] = [
        headline(findings),
        rates_part(findings),
        ablation_part(findings),
        phi_part(findings),
        toy_part(),
        reasons_part(findings),
        today_part(findings),
        prediction_part(found),
        overhead_part(findings, found),
        real_part(real, REAL_SHOWN),
    ]
    return Study(
        name=NAME,
        title=TITLE,
        facts=_facts(findings),
        parts=[part for part in parts if part is not None],
        data={**_data(findings, found), "real_engine": real_data(real, REAL_SHOWN)},
    )


def _facts(findings: Findings) -> list[tuple[str, str]]:
    """What was run on what."""
    scope = findings.scope
    tasks = load_tasks(scope.source)
    part = "the quick part, 1 seed" if scope.quick else f"all; {SEEDS} seeds"
    training = sum(len(task.training) for task in tasks)
    workload = sum(len(task.workload) for task in tasks)
    return [
        (
            "scope",
            f"{scope.num_runs():,} of {Scope(source=scope.source).num_runs():,} simulated runs: {part}",
        ),
        ("hardware", f"simulated; {hardware('v100-32g').provenance()}"),
        (
            "engine",
            f"{MODEL}, padded batches that return together; KV for {CAPACITY_TOKENS:,} tokens, which is {VS_BATCH} of "
            f"the longest; vsq has room for {VSQ_BATCH}; {1e3 * toy().fitted_overhead_s:.1f} ms a step fitted to "
            "the toy",
        ),
        (
            "data",
            f"{scope.source.name}: {len(tasks)} tasks, {training:,} rows to train on and {workload:,} to serve, no "
            f"input on both sides; {scope.source.counted}",
        ),
        (
            "workload",
            f"{requests_a_task(scope.source):,} requests of each task a run, in random order, Poisson",
        ),
        (
            "load",
            f"1 is what {VS} gets through of the same requests, all at once, mean of {SEEDS} seeds: "
            f"{findings.capacity_rps():.2f} req/s",
        ),
    ]


def _data(findings: Findings, found: Accuracy) -> dict[str, object]:
    """What scripts read, in a stable order."""
    scope = findings.scope
    return {
        "quick": scope.quick,
        "cells_run": scope.num_runs(),
        "cells_total": Scope(source=scope.source).num_runs(),
        "seeds": 1 if scope.quick else SEEDS,
        "data": scope.source.name,
        "vs_capacity_rps": short(findings.capacity_rps()),
        "rates": rates_data(findings),
        **gains_data(findings),
        "ablation": ablation_data(findings),
        "phi_sweep": phi_data(findings),
        "vs_vllm_today": today_data(findings),
        "toy": toy_data(),
        **prediction_data(found),
        "overhead": overhead_data(findings, found),
    }
