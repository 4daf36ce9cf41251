"""FastServe's experiments from beginning to end: the runs, their order, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.results.study import Study
from headway_reproduce.claims import claims_part
from headway_reproduce.fastserve.ablations import MemoryFindings, Scheduler
from headway_reproduce.fastserve.cells import ALL, AXES, FURTHER_AXES, QUICK, SEEDS, facts
from headway_reproduce.fastserve.end_to_end import EndToEnd
from headway_reproduce.fastserve.findings import FastServeFindings
from headway_reproduce.fastserve.fixed_points import FixedPoints
from headway_reproduce.fastserve.further import FastServeFurther
from headway_reproduce.fastserve.machine import SIMULATED
from headway_reproduce.study import RepeatedPaper, read_kept
from headway_reproduce.study_runs import RunResult


class FastServe(RepeatedPaper[FastServeFindings]):
    """GPT-175B on sixteen simulated A100s, and its ablations on one."""

    name = "fastserve"
    title = "FastServe, repeated"

    def findings(self, request: PaperRequest) -> FastServeFindings:
        """As `RepeatedPaper.findings`."""
        return FastServeFindings(read_kept(request.root, RunResult), QUICK if request.quick else ALL)

    def study(self, findings: FastServeFindings, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        made = findings.kept, findings.scope
        ends, scheduler, memory = EndToEnd(*made), Scheduler(*made), MemoryFindings(*made)
        further, fixed = FastServeFurther(*made), FixedPoints(*made)
        claims = [*ends.claims(), *scheduler.claims(), *memory.claims(), *further.claims()]
        axes = AXES if findings.scope.quick else (*AXES, *FURTHER_AXES)
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds end to end, fewer for the rest",
            seeds=1 if findings.scope.quick else SEEDS,
            facts=facts(findings.capacity_rps),
            claims=claims,
            parts=[
                ends.headline(),
                claims_part(claims, SIMULATED),
                ends.reasons(),
                fixed.part(),
                *map(ends.axis_part, axes),
                *scheduler.parts(),
                memory.part(),
                further.scale_part(),
                further.per_token_part(),
            ],
        )
