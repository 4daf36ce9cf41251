"""Ascendra's experiments from beginning to end: the runs, their order, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.predict.steps.attention_kernels import attention_kernels
from headway.predict.steps.hardware import hardware
from headway.results.study import Study
from headway_reproduce.ascendra.cells import (
    ALL,
    ATTENTION,
    BLOCK_TOKENS,
    COUNT,
    HARDWARE,
    INSTANCES,
    MAIN,
    MODELS,
    QUICK,
    SEATS,
    SEEDS,
    TOKENS_A_STEP,
    AscendraCase,
    equal_tokens,
)
from headway_reproduce.ascendra.claims import Claims
from headway_reproduce.ascendra.example import example_part
from headway_reproduce.ascendra.real_run import real_part, real_runs, real_seconds
from headway_reproduce.ascendra.run import AscendraResult
from headway_reproduce.claims import claims_part
from headway_reproduce.study import RepeatedPaper, read_kept

FILE = "ascendra-runs.jsonl"


class AscendraStudy(RepeatedPaper[Claims]):
    """Three models on three simulated A100s, and three small instances behind the gateway on this machine."""

    name = "ascendra"
    title = "Ascendra, repeated"

    def findings(self, request: PaperRequest) -> Claims:
        """As `RepeatedPaper.findings`."""
        return Claims(read_kept(request.root, AscendraResult, FILE), QUICK if request.quick else ALL)

    def more_seconds(self, request: PaperRequest) -> float:
        """Seconds of the real engine."""
        return real_seconds(request)

    def study(self, findings: Claims, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        claims, real = list(findings.rows()), real_runs(request, tell)
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds, 1 for sweeps of the configuration",
            seeds=len(findings.scope.seeds),
            facts=_facts(findings),
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


def _facts(findings: Claims) -> list[tuple[str, str]]:
    """The settings of the runs."""
    budgets = ", ".join(f"{equal_tokens(model.name):,} ({model.title})" for model in MODELS)
    blocks = ", ".join(f"{model.title} {model.kv_blocks:,}" for model in MODELS)
    return [
        ("hardware", f"simulated; {INSTANCES} instances; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{SEATS} seats, {TOKENS_A_STEP:,} tokens a step where prompts are whole, in chunks {budgets}; one step at "
            f"a time, no prefix caching; {attention_kernels(ATTENTION)}; KV blocks of {BLOCK_TOKENS} tokens: {blocks}",
        ),
        (
            "workload",
            f"{COUNT:,} requests a run, Poisson, to the last finish; lengths by laws of this package",
        ),
        ("targets", ", ".join(map(_targets, findings.scope.cases))),
        (
            "late requests",
            "are served, under every system; in overload they are dropped when their first token is due",
        ),
        ("capacity", f"Ascendra's in the main case ({MAIN}): {findings.capacity_rps():.2f} req/s"),
    ]


def _targets(case: AscendraCase) -> str:
    return f"{case}: first token {case.slo.ttft_s:g} s, between tokens {case.slo.tbt_s:g} s"
