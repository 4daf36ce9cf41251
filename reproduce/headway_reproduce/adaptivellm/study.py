"""AdaptiveLLM's experiments from beginning to end: what is run, in which order, and what is made of it."""

from __future__ import annotations

from headway.lab.papers import Request, Size, Tell, Tick
from headway.predict.hardware import hardware
from headway.results.study import Study, StudyPart
from headway.traces import NAMED_LAWS
from headway_reproduce.adaptivellm.errors import PredictorErrors, errors_seconds, predictor_errors
from headway_reproduce.adaptivellm.findings import Findings
from headway_reproduce.adaptivellm.latency import figure_4, figure_4_data, loaded
from headway_reproduce.adaptivellm.overhead import Overhead, overhead_part, overheads
from headway_reproduce.adaptivellm.real import REAL_PLAN
from headway_reproduce.adaptivellm.scope import Scope
from headway_reproduce.adaptivellm.setting import (
    BLOCK_TOKENS,
    GPU_BLOCKS,
    GROUPS,
    HARDWARE,
    HOST_BLOCKS,
    REQUESTS,
    SEATS,
    SEEDS,
    TOKENS_A_STEP,
    WATERMARK_BLOCKS,
    Point,
)
from headway_reproduce.adaptivellm.throughput import (
    ablations,
    figure_3,
    figure_3_data,
    shortfall,
    table_3,
    table_3_data,
)
from headway_reproduce.real_study import RealRuns, real_data, real_part, real_runs, real_seconds
from headway_reproduce.study_findings import short
from headway_reproduce.study_runs import KeptRuns, run_study

NAME = "adaptivellm"
TITLE = "AdaptiveLLM, repeated"


class AdaptiveLlm:
    """The twelve groups on a simulated A800, and predictor errors and a smaller run on this machine's engine."""

    def size(self, request: Request) -> Size:
        """As `Paper.size`."""
        scope, kept = Scope(quick=request.quick), KeptRuns.read(request.root)
        runs, first = scope.num_runs(), scope.first_runs()
        done = sum(kept.result(run) is not None for run in first)
        if done == len(first):
            capacity_rps = Findings(kept, scope).capacity_rps()
            done += sum(kept.result(run) is not None for run in scope.loaded_runs(capacity_rps))
        seconds = (runs - done) * scope.seconds_a_run() / request.jobs + errors_seconds(request)
        if not request.quick:
            seconds += real_seconds(request.root, REAL_PLAN)
        return Size(runs=runs, kept=done, seconds=seconds)

    def reproduce(self, request: Request, tick: Tick, tell: Tell) -> Study:
        """As `Paper.reproduce`."""
        scope, kept = Scope(quick=request.quick), KeptRuns.read(request.root)
        findings = Findings(kept, scope)
        run_study(scope.first_runs(), kept, jobs=request.jobs, tick=tick)
        if not scope.quick:
            run_study(scope.loaded_runs(findings.capacity_rps()), kept, jobs=request.jobs, tick=tick)
        real = None if scope.quick else real_runs(request.root, REAL_PLAN, tell)
        return _study(findings, predictor_errors(request, tell), real)


def _study(findings: Findings, errors: PredictorErrors, real: RealRuns | None) -> Study:
    costs = overheads(findings)
    parts: list[StudyPart | None] = [
        table_3(findings),
        shortfall(findings),
        figure_3(findings),
        figure_4(findings),
        ablations(findings),
        loaded(findings),
        errors.part(),
        overhead_part(costs),
        real_part(real, REAL_PLAN),
    ]
    return Study(
        name=NAME,
        title=TITLE,
        facts=_facts(findings.scope),
        parts=[part for part in parts if part is not None],
        data={**_data(findings, costs), **errors.data(), "real_engine": real_data(real, REAL_PLAN)},
    )


def _facts(scope: Scope) -> list[tuple[str, str]]:
    """What was run on what."""
    laws = {group.data: NAMED_LAWS[Point(group=group).law()] for group in GROUPS[:3]}
    lengths = "; ".join(
        f"{name} {law.input.expected_tokens():.2f} in, {law.output.expected_tokens():.1f} out"
        for name, law in laws.items()
    )
    part = "the quick part, 1 seed" if scope.quick else f"all; {SEEDS} seeds for throughput, 1 for the rest"
    return [
        ("scope", f"{scope.num_runs():,} of {Scope().num_runs():,} simulated runs: {part}"),
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{GPU_BLOCKS} KV blocks of {BLOCK_TOKENS} tokens on the device, {HOST_BLOCKS} on the host, {SEATS} seats, "
            f"{TOKENS_A_STEP:,} tokens a step, watermark {WATERMARK_BLOCKS} block, no prefix caching, synchronous",
        ),
        ("workload", f"{REQUESTS:,} requests a group, all at 0 s; mean tokens before the limit: {lengths}"),
    ]


def _data(findings: Findings, costs: list[Overhead]) -> dict[str, object]:
    scope = findings.scope
    return {
        "quick": scope.quick,
        "cells_run": scope.num_runs(),
        "cells_total": Scope().num_runs(),
        "seeds": len(scope.seeds(Point(group=GROUPS[0]))),
        "table3": table_3_data(findings),
        "fig3": figure_3_data(findings),
        "weighted_turnaround_cut": figure_4_data(findings),
        "decision_overhead": short(max(each.share for each in costs)),
    }
