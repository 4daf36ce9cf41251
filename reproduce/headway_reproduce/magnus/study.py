"""Magnus's experiments from beginning to end: the runs, their order, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Size, Tell
from headway.predict.steps.hardware import hardware
from headway.results.study import Study
from headway_reproduce.claims import claims_part
from headway_reproduce.magnus.accuracy import accuracy, accuracy_seconds, prediction_part
from headway_reproduce.magnus.cells import SEEDS, MagnusScope
from headway_reproduce.magnus.claims import MagnusClaims
from headway_reproduce.magnus.data import find_data, load_tasks, requests_a_task
from headway_reproduce.magnus.engine import toy
from headway_reproduce.magnus.findings import toy_part
from headway_reproduce.magnus.forest import lightgbm
from headway_reproduce.magnus.setting import (
    CAPACITY_TOKENS,
    HARDWARE,
    MODEL,
    SIMULATED,
    VS,
    VS_BATCH,
    VSQ_BATCH,
)
from headway_reproduce.magnus.simulation import MagnusResult
from headway_reproduce.study import RepeatedPaper, read_kept

FILE = "magnus-runs.jsonl"


class Magnus(RepeatedPaper[MagnusClaims]):
    """Eight tasks on eight simulated V100s, and a smaller run on this machine's engine."""

    name = "magnus"
    title = "Magnus, repeated"

    def findings(self, request: PaperRequest) -> MagnusClaims:
        """As `RepeatedPaper.findings`."""
        scope = MagnusScope(source=find_data(request.data), quick=request.quick)
        return MagnusClaims(read_kept(request.root, MagnusResult, FILE), scope)

    def more_seconds(self, request: PaperRequest) -> float:
        """Seconds of measuring the predictor's errors."""
        return accuracy_seconds(request)

    def size(self, request: PaperRequest) -> Size:
        """As `Paper.size`; also raises ConfigError without LightGBM, before anything runs."""
        size = super().size(request)
        if size.kept < size.runs:
            lightgbm()
        return size

    def study(self, findings: MagnusClaims, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        scope = findings.scope
        found = accuracy(request, scope.source, tell)
        claims = findings.claims(found)
        return self.told(
            scope,
            MagnusScope(source=scope.source),
            extent=f"all; {SEEDS} seeds",
            seeds=1 if scope.quick else SEEDS,
            facts=_facts(findings),
            claims=claims,
            parts=[
                claims_part(claims, f"{SIMULATED}, and measured"),
                findings.rates_part(),
                findings.ablation_part(),
                findings.phi_part(),
                toy_part(),
                findings.reasons_part(),
                findings.today_part(),
                prediction_part(found),
                findings.overhead_part(found),
            ],
        )


def _facts(findings: MagnusClaims) -> list[tuple[str, str]]:
    """The settings of the runs."""
    scope = findings.scope
    tasks = load_tasks(scope.source)
    training = sum(len(task.training) for task in tasks)
    workload = sum(len(task.workload) for task in tasks)
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
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
