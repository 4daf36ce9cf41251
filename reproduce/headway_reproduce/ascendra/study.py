"""Ascendra's experiments from beginning to end: what is run, in which order, and what is made of it."""

from __future__ import annotations

from headway.lab.kept_runs import run_kept
from headway.lab.papers import Request, Size, Tell, Tick
from headway.policies.batching.within_budgets import TOKEN_BUDGET
from headway.predict.hardware import hardware
from headway.results.study import Study, StudyPart
from headway_reproduce.ascendra.ablation import ablation_data, ablation_part, breakdown_part
from headway_reproduce.ascendra.example import example_part
from headway_reproduce.ascendra.findings import Findings
from headway_reproduce.ascendra.model import model_data, model_part
from headway_reproduce.ascendra.overload import overload_data, overload_part
from headway_reproduce.ascendra.rates import gains_data, headline, rates_part, sweep_data
from headway_reproduce.ascendra.real import AscendraReal, real_data, real_part, real_runs, real_seconds
from headway_reproduce.ascendra.reasons import choice_data, choice_part, reasons_data, reasons_part
from headway_reproduce.ascendra.run import KeptAscendraRuns, simulate_ascendra
from headway_reproduce.ascendra.scope import Scope
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BLOCK_TOKENS,
    COUNT,
    HARDWARE,
    INSTANCES,
    MAIN,
    MODELS,
    PAPER_DELAY_RATIO,
    PAPER_TICKET_GAIN,
    PAPER_TIGHTER,
    SEATS,
    SEEDS,
    TODAY,
    TODAY_TOKENS_A_STEP,
    TOKENS_A_STEP,
    Case,
)
from headway_reproduce.ascendra.tails import tails_part
from headway_reproduce.ascendra.targets import targets_data, targets_part

NAME = "ascendra"
TITLE = "Ascendra, repeated"


class Ascendra:
    """Three models on three simulated A100s, and three small instances behind the gateway on this machine."""

    def size(self, request: Request) -> Size:
        """As `Paper.size`."""
        scope, kept = Scope(quick=request.quick), KeptAscendraRuns.read(request.root)
        runs, done = scope.num_runs(), _num_done(Findings(kept, scope))
        seconds = (runs - done) * scope.seconds_a_run() / request.jobs + real_seconds(request)
        return Size(runs=runs, kept=done, seconds=seconds)

    def reproduce(self, request: Request, tick: Tick, tell: Tell) -> Study:
        """As `Paper.reproduce`."""
        scope, kept = Scope(quick=request.quick), KeptAscendraRuns.read(request.root)
        findings = Findings(kept, scope)
        run_kept(scope.reference_runs(), kept, simulate_ascendra, jobs=request.jobs, tick=tick)
        sweep = scope.sweep_runs(findings.reference_rps)
        run_kept(sweep, kept, simulate_ascendra, jobs=request.jobs, tick=tick)
        further = scope.further_runs(findings.reference_rps, findings.capacity_rps())
        run_kept(further, kept, simulate_ascendra, jobs=request.jobs, tick=tick)
        return _study(findings, real_runs(request, tell))


def _num_done(findings: Findings) -> int:
    """How many of all runs are kept; which they are is known phase by phase."""
    scope, kept = findings.scope, findings.kept
    first = scope.reference_runs()
    done = {run for run in first if kept.result(run) is not None}
    if len(done) < len(first):
        return len(done)
    sweep = scope.sweep_runs(findings.reference_rps)
    swept = {run for run in sweep if kept.result(run) is not None}
    if len(swept) < len(sweep):
        return len(done | swept)
    further = scope.further_runs(findings.reference_rps, findings.capacity_rps())
    return len(done | swept | {run for run in further if kept.result(run) is not None})


def _study(findings: Findings, real: AscendraReal | None) -> Study:
    parts: list[StudyPart | None] = [
        headline(findings),
        reasons_part(findings),
        rates_part(findings),
        overload_part(findings),
        targets_part(findings),
        breakdown_part(findings),
        ablation_part(findings),
        choice_part(findings),
        example_part(),
        tails_part(findings),
        model_part(findings),
        real_part(real),
    ]
    return Study(
        name=NAME,
        title=TITLE,
        facts=_facts(findings),
        parts=[part for part in parts if part is not None],
        data={**_data(findings), "real_engine": real_data(real)},
    )


def _facts(findings: Findings) -> list[tuple[str, str]]:
    """What was run on what."""
    scope = findings.scope
    part = (
        "the quick part, 1 seed" if scope.quick else f"all; {SEEDS} seeds, 1 for sweeps of the configuration"
    )
    blocks = ", ".join(f"{model.title} {model.kv_blocks:,}" for model in MODELS)
    return [
        ("scope", f"{scope.num_runs():,} of {Scope().num_runs():,} simulated runs: {part}"),
        ("hardware", f"simulated; {INSTANCES} instances; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{SEATS} seats, {TOKENS_A_STEP:,} tokens a step ({TODAY.name}: {TODAY_TOKENS_A_STEP:,}; LP instances of "
            f"{ASCENDRA.name}: {TOKEN_BUDGET:,}; sarathi: 512), one step at a time, no prefix caching; KV blocks of "
            f"{BLOCK_TOKENS} tokens: {blocks}",
        ),
        (
            "workload",
            f"{COUNT:,} requests a run, Poisson, to the last finish; lengths by laws of this package",
        ),
        ("targets", ", ".join(map(_targets, scope.cases))),
        (
            "late requests",
            "are served, under every system; in overload they are dropped when their first token is due",
        ),
        ("capacity", f"Ascendra's in the main case ({MAIN}): {findings.capacity_rps():.2f} req/s"),
    ]


def _targets(case: Case) -> str:
    return f"{case}: first token {case.slo.ttft_s:g} s, between tokens {case.slo.tbt_s:g} s"


def _data(findings: Findings) -> dict[str, object]:
    """What scripts read, in a stable order."""
    scope = findings.scope
    return {
        "quick": scope.quick,
        "cells_run": scope.num_runs(),
        "cells_total": Scope().num_runs(),
        "seeds": len(scope.seeds),
        **gains_data(findings),
        "capacity_rps": findings.capacity_rps(),
        "overload": overload_data(findings),
        "slo_scale_at_90": targets_data(findings),
        **ablation_data(findings),
        "model_error": model_data(findings),
        "changed_gain": reasons_data(findings),
        "swept": choice_data(findings),
        "paper": {
            "tighter_targets": PAPER_TIGHTER,
            "ticket_hp_utilisation_gain": PAPER_TICKET_GAIN,
            "lp_delay_over_hp": PAPER_DELAY_RATIO,
        },
        "sweep": sweep_data(findings),
    }
