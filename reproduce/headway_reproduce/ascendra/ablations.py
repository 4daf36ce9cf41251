"""What each part of Ascendra is for, what its gains depend on, its step-time model, and the paper's second figure."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.batch_shape import StepKind
from headway.predict.steps.attention_kernels import attention_kernels
from headway.results.study import StudyPart, Value
from headway.statistics import known, mean_of_all
from headway_reproduce.ascendra.cells import (
    ATTENTION,
    BREAKDOWN_LOAD,
    BUSY_LOADS,
    CHUNKED,
    FIGURE_2_INSTANCES,
    FIGURE_2_LOAD,
    LIGHT_LOAD,
    MAIN,
    MODELS,
    REGION_LOADS,
    SHARED_KERNEL,
    SPLIT_LOAD,
    THRESHOLDS,
    TOKENS_TRIED,
    TRIED_LOADS,
    TRIED_SEED,
    equal_tokens,
    with_budget,
)
from headway_reproduce.ascendra.findings import NAMES, AscendraFindings, Number, goodput
from headway_reproduce.ascendra.run import QUANTILES, AscendraResult
from headway_reproduce.ascendra.services import (
    ASCENDRA,
    FIRST_COME,
    FIXED,
    HEADWAY,
    NO_HAND_OFF,
    NO_TICKET,
    PURE_EDF,
    SHORTEST,
    SJF,
    SPLITS,
    SYSTEMS,
    Service,
    with_order,
    with_threshold,
)
from headway_reproduce.study import chart

LP, HP = "lp", "hp"


def _delay_s(pool: str) -> Number:
    return lambda result: result.pools[pool].delay_s if pool in result.pools else None


def _busy(pool: str) -> Number:
    return lambda result: result.pools[pool].busy_share


def mean_tbt_s(result: AscendraResult) -> float | None:
    """The mean over answers of their mean time between tokens."""
    return result.mean_tbt_s


def share_at_hp(result: AscendraResult) -> float | None:
    """Share of the requests that started at high-priority instances; None without such a pool."""
    started = sum(pool.first_tokens for pool in result.pools.values())
    return result.pools[HP].first_tokens / started if HP in result.pools and started else None


_BREAKDOWN: Mapping[str, Number] = {
    "goodput": goodput,
    "TTFT mean s": lambda result: result.mean_ttft_s,
    "TTFT p99 s": lambda result: result.p99_ttft_s,
    "TBT mean s": mean_tbt_s,
    "TBT p99 s": lambda result: result.p99_tbt_s,
    "tokens/s": lambda result: result.total_tps,
    "LP delay s": _delay_s(LP),
    "HP delay s": _delay_s(HP),
    "hand-offs": lambda result: float(result.moves),
    "share started at HP": share_at_hp,
}
_TICKETS: Mapping[str, Number] = {
    "HP busy": _busy(HP),
    "LP busy": _busy(LP),
    "TTFT mean s": lambda result: result.mean_ttft_s,
    "TBT mean s": mean_tbt_s,
    "first tokens at HP": lambda result: float(result.pools[HP].first_tokens),
}
ABLATIONS: Mapping[str, Service] = {
    "least slack (as it is)": ASCENDRA,
    "deadline alone": PURE_EDF,
    "shortest prompt": SJF,
    "fixed batch of 128 at HP": FIXED,
    "no hand-off": NO_HAND_OFF,
    "no tickets": NO_TICKET,
}
_SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
"""Quantiles in the table of Figure 2."""
_DRAWN = range(50, QUANTILES + 1, 5)
_ERROR_LOAD = BUSY_LOADS[0]


class Ablation(AscendraFindings):
    """One thing changed in Ascendra, or in all compared systems; all but `region_part` in the main case."""

    # ---- one part of Ascendra in another's place ---------------------------------------------------

    def breakdown_part(self) -> StudyPart:
        """Latencies, throughput and waits of every system at one rate."""
        table = self.table(
            "breakdown",
            f"Load {BREAKDOWN_LOAD:g} ({MAIN})",
            ["system", *_BREAKDOWN, "gap p99 s"],
            [
                [
                    service.name,
                    *(self.mean(MAIN, BREAKDOWN_LOAD, service, number) for number in _BREAKDOWN.values()),
                    self.gap_s(service),
                ]
                for service in SYSTEMS
            ],
            "A delay is from coming to an instance to the first step there; a request that was handed off has one at "
            "HP. TBT is a request's mean; the gap is between any two tokens of an answer, seed 0.",
            decimals=3,
        )
        return StudyPart(title="Breakdown", tables=[table])

    def gap_s(self, service: Service) -> float | None:
        """The 99th percentile of all times between two tokens."""
        rate_rps = BREAKDOWN_LOAD * self.reference_rps(MAIN)
        return self.result(self.scope.run(MAIN, service, rate_rps, gaps=True)).p99_gap_s

    def delays(self) -> dict[str, float | None]:
        """Mean wait at each pool."""
        return {pool: self.mean(MAIN, BREAKDOWN_LOAD, ASCENDRA, _delay_s(pool)) for pool in (LP, HP)}

    def ablation_part(self) -> StudyPart:
        """Goodput with one part in another's place, by rate; tickets at light load; splits."""
        loads = self.scope.busy_loads
        table = self.table(
            "ablation",
            f"Goodput with one part changed ({MAIN})",
            ["what", *(f"load {load:g}" for load in loads)],
            [
                [what, *(self.mean(MAIN, load, service) for load in loads)]
                for what, service in ABLATIONS.items()
            ],
            "With one target for all, the paper's deadline order is arrival order; what it describes is least slack.",
            decimals=3,
        )
        tickets = self.table(
            "tickets",
            f"With and without tickets, load {LIGHT_LOAD:g} ({MAIN})",
            ["tickets", *_TICKETS],
            [
                [what, *(self.mean(MAIN, LIGHT_LOAD, service, number) for number in _TICKETS.values())]
                for what, service in (("with", ASCENDRA), ("without", NO_TICKET))
            ],
            "Busy is the share of the run in which the instances computed.",
            decimals=3,
        )
        split_table = self.table(
            "splits",
            f"Splits at load {SPLIT_LOAD:g}, the same rate for each instance ({MAIN})",
            ["split", "goodput"],
            self.split_goodputs().items(),
            decimals=3,
        )
        return StudyPart(title="What each part is for", tables=[table, tickets, split_table])

    def ticket_use(self) -> dict[str, float | None]:
        """How busy the high-priority instance is at light load."""
        found = {"with": ASCENDRA, "without": NO_TICKET}
        return {key: self.mean(MAIN, LIGHT_LOAD, service, _busy(HP)) for key, service in found.items()}

    def split_goodputs(self) -> dict[str, float | None]:
        """Goodput at the same rate for each instance."""
        return {
            name: self.mean(MAIN, SPLIT_LOAD * service.instances / ASCENDRA.instances, service)
            for name, service in SPLITS.items()
        }

    # ---- one thing changed for all -----------------------------------------------------------------

    def choice_part(self) -> StudyPart | None:
        """The hand-off's threshold; None where it is not swept."""
        if self.scope.quick:
            return None
        rows: list[list[Value]] = []
        for threshold in THRESHOLDS:
            found = [self.at_load(load, with_threshold(threshold), TRIED_SEED) for load in TRIED_LOADS]
            rows.append(
                [f"{threshold:g}", *(each.goodput for each in found), *(each.moves for each in found)]
            )
        table = self.table(
            "threshold",
            f"Threshold of the hand-off, as a share of the target for the first token ({MAIN}, seed {TRIED_SEED})",
            [
                "value",
                *(f"{what} at load {load:g}" for what in ("goodput", "hand-offs") for load in TRIED_LOADS),
            ],
            rows,
            decimals=3,
        )
        text = (
            "The paper gives none. All other figures were made with the default, 0.05, whatever does best here, on a "
            "seed of its own."
        )
        return StudyPart(title="The hand-off's threshold", text=[text], tables=[table])

    def budgets_part(self) -> StudyPart:
        """One token budget for all systems that compute prompts in chunks."""
        pairs = [(load, service) for load in self.scope.budget_loads for service in CHUNKED]
        table = self.table(
            "budgets",
            f"Goodput with one budget for all ({MAIN}, seed {TRIED_SEED})",
            ["tokens a step", *(f"{service.name} at load {load:g}" for load, service in pairs)],
            [
                [f"{tokens:,}", *(self._budget_goodput(tokens, service, load) for load, service in pairs)]
                for tokens in TOKENS_TRIED
            ],
            "With one budget sarathi is today's vllm.",
            decimals=3,
        )
        budgets = ", ".join(f"{model.title} {equal_tokens(model.name):,}" for model in MODELS)
        text = (
            f"The paper gives no budget. All that compute prompts in chunks have the one that follows from the target "
            f"between tokens and the step law: {budgets}. Sarathi-Serve's own preset has 512."
        )
        return StudyPart(title="Tokens a step", text=[text], tables=[table])

    def _budget_goodput(self, tokens: int, service: Service, load: float) -> float:
        rate_rps, change = load * self.reference_rps(MAIN), with_budget(tokens)
        return self.result(self.scope.run(MAIN, service, rate_rps, TRIED_SEED, change=change)).goodput

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
        pairs = [(load, service) for load in self.scope.busy_loads for service in SYSTEMS]
        table = self.table(
            "kernel-layout",
            f"Goodput by the kernels that decodes beside prompts have ({MAIN})",
            ["attention", *(f"{service.name} at load {load:g}" for load, service in pairs)],
            [
                ["a kernel each, as the paper's engines", *(self.mean(MAIN, *pair) for pair in pairs)],
                [
                    "one kernel, as today's vLLM on FlashAttention 2",
                    *(self.changed_goodput(service, load, SHARED_KERNEL) for load, service in pairs),
                ],
            ],
            f"{attention_kernels(ATTENTION)}. {attention_kernels(SHARED_KERNEL.attention)}.",
            decimals=3,
        )
        return StudyPart(title="The kernel layout", tables=[table])

    # ---- the paper's second figure, and the step-time model while it learns ------------------------

    def tails_part(self) -> StudyPart | None:
        """Quantiles by order (first come, or shortest first) and number of instances; None where they are not run."""
        if self.scope.quick:
            return None
        rows: list[list[Value]] = []
        curves: dict[str, list[tuple[float, float | None]]] = {}
        for name in (FIRST_COME, SHORTEST):
            for instances in FIGURE_2_INSTANCES:
                times_s = self.at_load(FIGURE_2_LOAD, with_order(name, instances)).ttft_s
                rows.append([name, instances, *(times_s[round(share * QUANTILES)] for share in _SHARES)])
                if instances in FIGURE_2_INSTANCES[:2]:
                    curves[f"{name}, {instances}"] = [(at / QUANTILES, times_s[at]) for at in _DRAWN]
        rate_rps = FIGURE_2_LOAD * self.reference_rps(MAIN)
        table = self.table(
            "figure-2",
            f"Seconds to the first token, {rate_rps:.2f} req/s on any number of instances ({MAIN})",
            ["order", "instances", *(f"p{100 * share:g}" for share in _SHARES)],
            rows,
            measured_on="simulated, 1 to 4 x A100 80 GB",
            decimals=3,
            keys=2,
        )
        drawn = chart(
            "figure-2",
            "TTFT by share of requests",
            curves,
            "share of requests, simulated",
            "seconds at most",
            doubling=False,
        )
        title = "Times to first token, first come and shortest first (Figure 2)"
        return StudyPart(title=title, tables=[table], charts=[drawn])

    def step_error(self, kind: StepKind) -> float | None:
        """Mean relative error of predicted step times over all minutes."""
        return mean_of_all(known(self._step_errors().get(kind, ())))

    def _step_errors(self) -> dict[str, tuple[float | None, ...]]:
        """Kind of step -> mean relative error of each minute."""
        rate_rps = _ERROR_LOAD * self.reference_rps(MAIN)
        return self.result(self.scope.error_run(rate_rps)).step_errors

    def model_part(self) -> StudyPart:
        """Errors of the step-time model minute by minute, by kind of step."""
        found = self._step_errors()
        minutes = max(map(len, found.values()), default=0)
        table = self.table(
            "model-error",
            f"Mean relative error of predicted step times, Ascendra at load {_ERROR_LOAD:g} ({MAIN})",
            ["minute", *found],
            [
                [at + 1, *(errors[at] if at < len(errors) else None for errors in found.values())]
                for at in range(minutes)
            ],
            "Each prediction is made when its step is scheduled, from what that instance has seen. Mixed steps have "
            "prompts beside decodes, prefill steps prompts alone. The simulated clock has the noise of measured steps.",
            decimals=3,
        )
        return StudyPart(title="The step-time model while serving", tables=[table])
