"""What Ascendra's gains hang on: one thing changed for all that are compared."""

from __future__ import annotations

from headway.predict.steps.attention_kernels import attention_kernels
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.ablations import mean_tbt_s, share_at_hp
from headway_reproduce.ascendra.cells import CHUNKED, equal_tokens
from headway_reproduce.ascendra.findings import NAMES, AscendraFindings
from headway_reproduce.ascendra.run import AscendraResult
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    ATTENTION,
    BASELINES,
    BREAKDOWN_LOAD,
    CHANGED_LOADS,
    CHANGES,
    HEADWAY,
    LIGHT_LOAD,
    MAIN,
    MODELS,
    REGION_LOADS,
    SHARED_KERNEL,
    SYSTEMS,
    TBT_S,
    THRESHOLDS,
    TOKENS_TRIED,
    TRIED_LOADS,
    TRIED_SEED,
    VLLM_V0,
    AscendraChange,
    Service,
    with_threshold,
)
from headway_reproduce.study import ratio


class AscendraReasons(AscendraFindings):
    """What was tried, and where Ascendra's instances differ from the others': one thing changed for all."""

    def choice_part(self) -> StudyPart | None:
        """Tokens of an LP instance's step, and the hand-off's threshold; None where they are not swept."""
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
        """One budget of a step for all that compute prompts in chunks."""
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
        """Share within targets with so many tokens a step."""
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

    def part(self) -> StudyPart:
        """Where Ascendra's instances differ; and, but for the quick part, one thing changed for all."""
        return StudyPart(
            title="Where it differs from the paper, and why",
            text=[self._said_of_order(), self._said_of_tickets()],
            tables=[] if self.scope.quick else [self._changed_table()],
        )

    def _said_of_order(self) -> str:
        """Prompts first against decodes first, without pools."""
        tbt_s = self.mean(MAIN, BREAKDOWN_LOAD, VLLM_V0, mean_tbt_s)
        most_rps = self.scope.loads[-1] * self.reference_rps(MAIN)
        rates = {service.name: self.rate_at_good(MAIN, service) for service in SYSTEMS}
        said = ", ".join(
            f"{name} beyond {most_rps:.1f}" if rate is None else f"{name} {rate:.2f}"
            for name, rate in rates.items()
        )
        return (
            f"Requests a second at nine in ten in the main case: {said}. vllm-v0 puts prompts first, sarathi decodes "
            "first in chunks of as many tokens as Ascendra's LP instances, two of its three: what lies between those "
            f"two is the price of putting decodes first. At load {BREAKDOWN_LOAD:g} vllm-v0's mean time between "
            f"tokens is {tbt_s or 0.0:.3f} s, of {TBT_S:g} s allowed: so far away a target rewards no policy for "
            "sparing decodes."
        )

    def _said_of_tickets(self) -> str:
        """How much of the load one of three instances gets."""
        shares = {load: self.mean(MAIN, load, ASCENDRA, share_at_hp) for load in (LIGHT_LOAD, BREAKDOWN_LOAD)}
        said = " and ".join(
            f"{share or 0.0:.0%} of all requests at load {load:g}" for load, share in shares.items()
        )
        return (
            f"A ticket stands whenever no request waits at HP, however many run there: HP, one instance of three, "
            f"gets {said}. What it answers is slowed down by the prompts of the next."
        )

    def _changed_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for change in CHANGES:
            rates = [self.changed_rate(service, change, CHANGED_LOADS) for service in SYSTEMS]
            rows.append([change.name, *rates, *(self._gain(service, change) for service in BASELINES)])
        return self.table(
            "reasons",
            f"Requests a second at which nine in ten are within both targets, one thing changed ({MAIN})",
            ["changed", *NAMES, *(f"over {service.name}" for service in BASELINES)],
            rows,
            "A dash where the sweep begins or ends beyond it. One seed, fewer rates than above.",
        )

    def _gain(self, over: Service, change: AscendraChange) -> float | None:
        mine, theirs = (self.changed_rate(service, change, CHANGED_LOADS) for service in (ASCENDRA, over))
        return ratio(mine, theirs)
