"""Ascendra's experiments from beginning to end: the runs, their order, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.results.study import Study
from headway_reproduce.ascendra.cells import ALL, QUICK, SEEDS, facts
from headway_reproduce.ascendra.claims import AscendraClaims
from headway_reproduce.ascendra.example import example_part
from headway_reproduce.ascendra.real_run import real_part, real_runs, real_seconds
from headway_reproduce.ascendra.run import AscendraResult
from headway_reproduce.claims import claims_part
from headway_reproduce.study import RepeatedPaper, read_kept

FILE = "ascendra-runs.jsonl"


class AscendraStudy(RepeatedPaper[AscendraClaims]):
    """Three models on three simulated A100s, and three small instances behind the gateway on this machine."""

    name = "ascendra"
    title = "Ascendra, repeated"

    def findings(self, request: PaperRequest) -> AscendraClaims:
        """As `RepeatedPaper.findings`."""
        return AscendraClaims(read_kept(request.root, AscendraResult, FILE), QUICK if request.quick else ALL)

    def more_seconds(self, request: PaperRequest) -> float:
        """Seconds of the real engine."""
        return real_seconds(request)

    def study(self, findings: AscendraClaims, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        claims, real = list(findings.claims()), real_runs(request, tell)
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds, 1 for sweeps of the configuration",
            seeds=len(findings.scope.seeds),
            facts=facts(findings.scope, findings.capacity_rps()),
            claims=claims,
            parts=[
                claims_part(claims, findings.measured_on),
                findings.layout_part(),
                findings.budgets_part(),
                findings.region_part(),
                findings.rates_part(),
                findings.overload_part(),
                findings.targets_part(),
                findings.breakdown_part(),
                findings.ablation_part(),
                findings.choice_part(),
                example_part(),
                findings.tails_part(),
                findings.model_part(),
                real_part(real),
            ],
        )
