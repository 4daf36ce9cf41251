"""AdaptiveLLM's experiments from beginning to end: the runs and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.results.study import Study
from headway_reproduce.adaptivellm.cells import ALL, GROUPS, QUICK, SEEDS, SIMULATED, AdaptivePoint, facts
from headway_reproduce.adaptivellm.claims import NOTE, AdaptiveClaims
from headway_reproduce.adaptivellm.predictor_errors import errors_seconds, predictor_errors
from headway_reproduce.adaptivellm.worth import worth_part
from headway_reproduce.claims import claims_part
from headway_reproduce.study import RepeatedPaper, read_kept
from headway_reproduce.study_runs import RunResult


class AdaptiveLlm(RepeatedPaper[AdaptiveClaims]):
    """The twelve groups on a simulated A800, and predictor errors on this machine's engine."""

    name = "adaptivellm"
    title = "AdaptiveLLM, repeated"

    def findings(self, request: PaperRequest) -> AdaptiveClaims:
        """As `RepeatedPaper.findings`."""
        return AdaptiveClaims(read_kept(request.root, RunResult), QUICK if request.quick else ALL)

    def more_seconds(self, request: PaperRequest) -> float:
        """Seconds of the predictor measurements."""
        return errors_seconds(request)

    def study(self, findings: AdaptiveClaims, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        errors = predictor_errors(request, tell)
        claims = findings.claims(errors)
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds for throughput, 1 for the rest",
            seeds=len(findings.scope.seeds(AdaptivePoint(group=GROUPS[0]))),
            facts=facts(),
            claims=claims,
            parts=[
                claims_part(claims, f"{SIMULATED}; predictors and decisions timed on this machine", NOTE),
                findings.table_3(),
                findings.reasons(),
                findings.figure_3(),
                findings.figure_4(),
                worth_part(findings, findings.scope.worth_points()),
                errors.part(),
                findings.overhead_part(),
            ],
        )
