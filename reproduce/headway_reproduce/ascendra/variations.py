"""What Ascendra's gains depend on: one thing changed for all compared systems."""

from __future__ import annotations

from headway.predict.steps.attention_kernels import attention_kernels
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.cells import CHUNKED, equal_tokens
from headway_reproduce.ascendra.findings import NAMES, AscendraFindings
from headway_reproduce.ascendra.run import AscendraResult
from headway_reproduce.ascendra.setting import (
    ATTENTION,
    HEADWAY,
    MAIN,
    MODELS,
    REGION_LOADS,
    SHARED_KERNEL,
    SYSTEMS,
    THRESHOLDS,
    TOKENS_TRIED,
    TRIED_LOADS,
    TRIED_SEED,
    Service,
    with_threshold,
)


class AscendraReasons(AscendraFindings):
    """Variants, and how Ascendra's instances differ from the others': one thing changed for all."""

    def choice_part(self) -> StudyPart | None:
        """Token budgets of a low-priority instance, and the hand-off's threshold; None where they are not swept."""
        if self.scope.quick:
            return None
        thresholds = self._tried_table(
            "threshold",
            "Threshold of the hand-off, as a share of the target for the first token",
            {f"{threshold:g}": with_threshold(threshold) for threshold in THRESHOLDS},
        )
        text = (
            "The paper gives none. All other figures were made with the default, 0.05, whatever does best here, on a "
            "seed of its own."
        )
        return StudyPart(title="The hand-off's threshold", text=[text], tables=[thresholds])

    def budgets_part(self) -> StudyPart:
        """One token budget for all systems that compute prompts in chunks."""
        rows: list[list[Value]] = [
            [
                f"{tokens:,}",
                *(self.budget_goodput(tokens, service, load) for load in loads for service in CHUNKED),
            ]
            for loads in [self.scope.budget_loads]
            for tokens in TOKENS_TRIED
        ]
        headings = [
            f"{service.name} at load {load:g}" for load in self.scope.budget_loads for service in CHUNKED
        ]
        table = self.table(
            "budgets",
            f"Goodput with one budget for all ({MAIN}, seed {TRIED_SEED})",
            ["tokens a step", *headings],
            rows,
            "With one budget sarathi is today's vllm.",
            decimals=3,
        )
        budgets = ", ".join(f"{model.title} {equal_tokens(model.name):,}" for model in MODELS)
        text = (
            f"The paper gives no budget. All that compute prompts in chunks have the one that follows from the target "
            f"between tokens and the step law: {budgets}. Sarathi-Serve's own preset has 512."
        )
        return StudyPart(title="Tokens a step", text=[text], tables=[table])

    def budget_goodput(self, tokens: int, service: Service, load: float) -> float:
        """Share within targets with this token budget."""
        return self.result(self.scope.budget_run(tokens, service, load * self.reference_rps(MAIN))).goodput

    def region_part(self) -> StudyPart:
        """Goodput of two tiers beside the best of equal instances, over targets and loads."""
        rows: list[list[Value]] = []
        ahead: list[str] = []
        for change in self.scope.region:
            for load in REGION_LOADS:
                mine, *others, headway = (
                    self.changed_goodput(service, load, change) for service in (*SYSTEMS, HEADWAY)
                )
                rows.append([change.name, load, mine, *others, headway])
                if mine > max(others):
                    ahead.append(f"{change.name}, load {load:g} ({mine:.2f} over {max(others):.2f})")
        table = self.table(
            "region",
            f"Goodput with other targets ({MAIN})",
            ["targets", "load", *NAMES, "headway, equal instances"],
            rows,
            "Chunked steps have the budget that follows from the target between tokens. One seed.",
            decimals=3,
            keys=2,
        )
        said = "; ".join(ahead) if ahead else "nowhere in what was run"
        text = f"Ascendra has more within targets than each of the three baselines: {said}."
        return StudyPart(title="Where two tiers beat equal instances", text=[text], tables=[table])

    def layout_part(self) -> StudyPart:
        """Goodput with either kernel layout."""
        loads, pairs = (
            self.scope.busy_loads,
            [(load, each) for load in self.scope.busy_loads for each in SYSTEMS],
        )
        apart = [self.mean(MAIN, load, service) for load, service in pairs]
        shared = [self.changed_goodput(service, load, SHARED_KERNEL) for load, service in pairs]
        rows: list[list[Value]] = [
            ["a kernel each, as the paper's engines", *apart],
            ["one kernel, as today's vLLM on FlashAttention 2", *shared],
        ]
        table = self.table(
            "kernel-layout",
            f"Goodput by the kernels that decodes beside prompts have ({MAIN})",
            ["attention", *(f"{service.name} at load {load:g}" for load in loads for service in SYSTEMS)],
            rows,
            f"{attention_kernels(ATTENTION)}. {attention_kernels(SHARED_KERNEL.attention)}.",
            decimals=3,
        )
        return StudyPart(title="The kernel layout", tables=[table])

    def _tried(self, service: Service) -> list[AscendraResult]:
        return [self.at_load(load, service, TRIED_SEED) for load in TRIED_LOADS]

    def _tried_table(self, name: str, title: str, services: dict[str, Service]) -> StudyTable:
        rows: list[list[Value]] = []
        for what, service in services.items():
            found = self._tried(service)
            rows.append([what, *(each.goodput for each in found), *(each.moves for each in found)])
        shown = [f"{what} at load {load:g}" for what in ("goodput", "hand-offs") for load in TRIED_LOADS]
        return self.table(name, f"{title} ({MAIN}, seed {TRIED_SEED})", ["value", *shown], rows, decimals=3)
