"""What each part of Ascendra is for, its step-time model, and the paper's second figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headway.core.batch_shape import StepKind
from headway.results.study import StudyPart, Value
from headway.statistics import mean_of_all
from headway_reproduce.ascendra.findings import AscendraFindings, Number, goodput
from headway_reproduce.ascendra.run import QUANTILES, AscendraResult
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BREAKDOWN_LOAD,
    BUSY_LOADS,
    FIGURE_2_INSTANCES,
    FIGURE_2_LOAD,
    FIRST_COME,
    FIXED,
    LIGHT_LOAD,
    MAIN,
    NO_HAND_OFF,
    NO_TICKET,
    PURE_EDF,
    SHORTEST,
    SJF,
    SPLIT_LOAD,
    SPLITS,
    SYSTEMS,
    Service,
    with_order,
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


class Ablation(AscendraFindings):
    """A request's value, elastic batch, hand-off, tickets and split of the instances, in the main case."""

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
        return self.result(self.scope.gaps_run(service, BREAKDOWN_LOAD * self.reference_rps(MAIN))).p99_gap_s

    def delays(self) -> dict[str, float | None]:
        """Mean wait at each pool."""
        return {pool: self.mean(MAIN, BREAKDOWN_LOAD, ASCENDRA, _delay_s(pool)) for pool in (LP, HP)}

    def part(self) -> StudyPart:
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


# ---- the paper's second figure, and the step-time model while it learns --------------------------------

_SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)
"""Quantiles of the table."""
_DRAWN = range(50, QUANTILES + 1, 5)
_ERROR_LOAD = BUSY_LOADS[0]
KINDS = (StepKind.PREFILL, StepKind.MIXED)


class AscendraFurther(AscendraFindings):
    """Times to first token on more and more GPUs, and errors of predicted step times."""

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
        return _known_mean(self._step_errors().get(kind, ()))

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


def _known_mean(errors: Sequence[float | None]) -> float | None:
    return mean_of_all(error for error in errors if error is not None)
