"""Magnus's experiments from beginning to end: the runs, their order, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Size, Tell
from headway.results.study import Study
from headway_reproduce.claims import claims_part
from headway_reproduce.magnus.accuracy import accuracy, accuracy_seconds, prediction_part
from headway_reproduce.magnus.cells import SEEDS, MagnusScope, facts
from headway_reproduce.magnus.claims import MagnusClaims
from headway_reproduce.magnus.data import find_data
from headway_reproduce.magnus.findings import toy_part
from headway_reproduce.magnus.forest import lightgbm
from headway_reproduce.magnus.setting import SIMULATED
from headway_reproduce.magnus.simulation import MagnusResult
from headway_reproduce.study import RepeatedPaper, read_kept

FILE = "magnus-runs.jsonl"


class Magnus(RepeatedPaper[MagnusClaims]):
    """Eight tasks on eight simulated V100s, and the errors of predicted lengths."""

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
            facts=facts(scope.source, findings.capacity_rps()),
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
