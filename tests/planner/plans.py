"""Small plans: an H100 and a workload of a few requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.core.slo import NO_TARGETS, Slo
from headway.lab.trace import Trace
from headway.planner.planner import Effort, PlannedDeployment, make_plan
from headway.planner.preparation import Prepared, prepare
from headway.planner.request import PlanRequest
from headway.planner.runs import KeptPlanRuns

TRACE = "gen:poisson:rate=40/input=zipf:theta=1.1,max=600/output=zipf:theta=1.1,max=60/count=120"
TARGETS = Slo(ttft_s=0.02, tbt_s=0.008)


def two_classes(folder: Path, first: str = ",0.05", others: str = "0.5,") -> str:
    """A trace whose first request has other targets (for the first token, and between tokens) than all behind it."""
    rows = "".join(f"{0.5 * number},200,20,{others if number else first}\n" for number in range(60))
    trace = folder / "two-classes.csv"
    trace.write_text(f"arrival_s,input_tokens,output_tokens,ttft_s,tbt_s\n{rows}")
    return str(trace)


def ask(*, trace: str = TRACE, slo: Slo = NO_TARGETS, **asked: Any) -> PlanRequest:
    """A plan with these values in place of usual ones."""
    values: dict[str, Any] = {
        "hardware": "h100",
        "model": "Qwen/Qwen3-8B",
        "gpus": 1,
        "policies": ("vllm", "edf"),
        "seeds": 2,
        **asked,
    }
    return PlanRequest(trace=Trace(trace, None, slo), **values)


def prepared(**asked: Any) -> Prepared:
    """The same, looked into."""
    return prepare(ask(**asked))


def planned(folder: Path, found: Prepared, budget: int = 6) -> PlannedDeployment:
    """The plan that a folder keeps, or that is made there."""
    return make_plan(
        found,
        Effort(budget=budget, jobs=1),
        KeptPlanRuns.open(folder, found.manifest()),
        lambda share, what: None,
    )
