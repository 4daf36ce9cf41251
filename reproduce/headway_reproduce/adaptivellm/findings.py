"""AdaptiveLLM's throughput (Table 3, Fig. 3), also with one thing changed, its turnaround (Fig. 4), and the cost of its
decisions (section 4.6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway.statistics import mean_of_all
from headway_reproduce.adaptivellm.cells import (
    BASELINE,
    BY_PROMPT,
    CHANGES,
    GROUPS,
    LARGE_HOST_BLOCKS,
    LATENCY,
    MAIN,
    ORDERS,
    PAPER_CAPS,
    PLUS,
    PREDICT_ONLY,
    READINGS,
    ROOMY_HOST,
    SIMULATED,
    SWAP,
    SWAP_UNBOUND,
    TABLE_LIMIT,
    TODAY,
    AdaptivePoint,
    AdaptiveScope,
    AdaptiveVariation,
    ModelAndData,
    base_of,
)
from headway_reproduce.study import Range, chart, ratio
from headway_reproduce.study_runs import (
    EngineFindings,
    Number,
    RunResult,
    StudyRun,
    summary_key,
    throughput_rps,
)

turnaround = summary_key("weighted_turnaround")
"""Mean weighted turnaround."""

PAPER_TABLE_3 = {
    "OPT-13B/Chatbot": (1.38, 2.46),
    "OPT-13B/Alpaca": (1.36, 2.55),
    "OPT-13B/Summary": (1.15, 2.50),
    "OPT-30B/Chatbot": (1.27, 1.98),
    "OPT-30B/Alpaca": (1.22, 1.99),
    "OPT-30B/Summary": (1.11, 1.64),
    "Llama-13B/Chatbot": (1.28, 2.28),
    "Llama-13B/Alpaca": (1.40, 2.37),
    "Llama-13B/Summary": (1.17, 2.12),
    "Llama-32.5B/Chatbot": (1.28, 1.95),
    "Llama-32.5B/Alpaca": (1.23, 2.13),
    "Llama-32.5B/Summary": (1.09, 2.18),
}
"""Throughput relative to vLLM and to vLLM_s, longest output 64 (Table 3)."""
OTHERS = {"vllm": BASELINE, "vllm-s": SWAP}
"""Name of its table -> a baseline of the paper, in the order of PAPER_TABLE_3's pairs."""
BESIDE = (BASELINE, TODAY)
"""The systems that `adaptivellm-plus` is compared with."""
RULES = "All but vllm and adaptivellm-plus run on vLLM 0.2.5's rules."
PAPER_CUTS: dict[str, Range] = {BASELINE: (0.2, 0.4), SWAP: (0.2, 0.6)}
"""Over each of the paper's baselines: how much shorter its mean weighted turnaround is, least and most, at batch caps
64 and 128 (section 4.4).
"""
PAPER_OVERHEAD = (0.001, 0.01)
"""Time of predicting over run time, least and most (section 4.6)."""


def saturated(result: RunResult) -> float | None:
    """Requests a second over the part of a run in which the engine is full."""
    return result.saturated_rps


def width(result: RunResult) -> float | None:
    """Output tokens per step: how many requests ran at once, with prompt steps included."""
    output_tps = result.summary.output_tps
    return None if output_tps is None or not result.steps else output_tps * result.end_s / result.steps


def file_name(group: ModelAndData) -> str:
    """A group's name in file names."""
    return f"{group.model}-{group.data}".lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost of one group's decisions: CPU seconds of every plan, over the simulated seconds of the same run.

    `prediction_share` is the additional cost of predicting and then always recomputing, over the same steps without
    predictions.
    """

    group: ModelAndData
    plan_s: float
    step_s: float
    share: float
    prediction_share: float


@dataclass(frozen=True)
class AdaptiveFindings(EngineFindings[AdaptivePoint]):
    """AdaptiveLLM's runs."""

    measured_on = SIMULATED
    scope: AdaptiveScope

    def phases(self) -> Iterator[Sequence[StudyRun]]:
        """A single phase, since no run depends on another."""
        yield self.scope.runs()

    def gain(self, point: AdaptivePoint, policy: str, over: str) -> float | None:
        """The mean throughput ratio."""
        return self.ratio(point, policy, over, throughput_rps)

    def gains(self, policy: str, over: str) -> dict[ModelAndData, float]:
        """Table 3's gains by group, without groups of which a run has no throughput."""
        found = {group: self.gain(AdaptivePoint(group=group), policy, over) for group in GROUPS}
        return {group: gain for group, gain in found.items() if gain is not None}

    def varied(
        self,
        point: AdaptivePoint,
        what: AdaptiveVariation,
        policy: str = BY_PROMPT,
        over: str = BASELINE,
        number: Number = throughput_rps,
    ) -> float | None:
        """A policy's number relative to another's with one thing changed, over the seeds that both have."""
        changed = what.of(point)
        base = base_of(changed) if over == BASELINE else changed
        pairs = zip(self.results(changed, policy), self.results(base, over), strict=False)
        return mean_of_all(ratio(number(mine), number(theirs)) for mine, theirs in pairs)

    def num_schedules(self, policy: str) -> int:
        """How many of the twelve groups' schedules differ, by their steps and the fates of victims."""
        found = (self.results(AdaptivePoint(group=group), policy)[0] for group in GROUPS)
        return len({(run.steps, run.meter.swaps, run.meter.recomputes) for run in found})

    # ---- Table 3 -----------------------------------------------------------------------------------

    def table_3(self) -> StudyPart:
        """Throughput at the longest output of 64, the paper's and ours by every reading."""
        policies = (BASELINE, *READINGS.values())
        schedules = ", ".join(f"{self.num_schedules(policy)} under {policy}" for policy in policies)
        return StudyPart(
            title="Throughput (Table 3)",
            text=[
                f"Of the {len(GROUPS)} groups so many schedules differ: {schedules}.",
                *self.unfinished(self.scope.table_points(), MAIN),
            ],
            tables=[*(self._gains_of_table_3(*pair) for pair in enumerate(OTHERS)), self._fates_table()],
        )

    def _gains_of_table_3(self, place: int, key: str) -> StudyTable:
        over = OTHERS[key]
        rows: list[list[Value]] = []
        for group in GROUPS:
            point = AdaptivePoint(group=group)
            whole = [self.gain(point, policy, over) for policy in READINGS.values()]
            full = [self.ratio(point, policy, over, saturated) for policy in READINGS.values()]
            beside = [self.gain(point, PLUS, other) for other in BESIDE] if place == 0 else []
            rows.append([str(group), PAPER_TABLE_3[str(group)][place], *whole, *full, *beside])
        names = [*READINGS, *(f"{name}, saturated part" for name in READINGS)]
        names += ["plus over it", "plus over vllm today"] if place == 0 else []
        return self.table(
            f"table3-{key}",
            f"Throughput of adaptivellm over {over} (Table 3: longest output {TABLE_LIMIT})",
            ["group", "paper", *names],
            rows,
            f"By the sequence length of its priority; memory alone: in order of arrival. Saturated part: from the "
            f"first 10 to the first 80 % of the requests that finish. {RULES}",
        )

    def _fates_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for group in GROUPS:
            point = AdaptivePoint(group=group)
            counts = [
                round(self.count(point, policy, name))
                for policy in READINGS.values()
                for name in ("swaps", "recomputes", "host_full")
            ]
            widths = [self.mean(point, policy, width) for policy in (BASELINE, SWAP)]
            rows.append([str(group), *counts, *widths, round(self.count(point, SWAP, "swaps"))])
        headings = [f"{name}: {what}" for name in READINGS for what in ("swaps", "recomputes", "host full")]
        return self.table(
            "fates",
            f"What became of victims (section 4.3; longest output {TABLE_LIMIT})",
            ["group", *headings, f"{BASELINE}: width", f"{SWAP}: width", f"{SWAP}: swaps"],
            rows,
            "Host full: recomputes of victims for which the host had no room. Width: answers' tokens a step.",
        )

    # ---- Figure 3 ----------------------------------------------------------------------------------

    def figure_3(self) -> StudyPart:
        """Throughput against the longest output."""
        return StudyPart(
            title="Throughput against the longest output (Fig. 3)",
            tables=[self._gains_table(), self._throughput_table()],
            charts=[self._gain_chart(group) for group in self.scope.groups],
        )

    def _gains_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for point in self.scope.sweep_points():
            gains = [
                self.gain(point, policy, over) for over in OTHERS.values() for policy in READINGS.values()
            ]
            beside = [self.gain(point, PLUS, over) for over in BESIDE]
            rows.append([str(point.group), point.limit, *gains, *beside])
        return self.table(
            "fig3",
            "Throughput of adaptivellm over others",
            [
                *("group", "longest output"),
                *(f"{name} over {over}" for over in OTHERS.values() for name in READINGS),
                *(f"plus over {over}" for over in BESIDE),
            ],
            rows,
            RULES,
            keys=2,
            detail=True,
        )

    def _throughput_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for point in dict.fromkeys([*self.scope.table_points(), *self.scope.sweep_points()]):
            for unit, key in (("req/s", "throughput_rps"), ("output tok/s", "output_tps")):
                values = [self.mean(point, policy, summary_key(key)) for policy in MAIN]
                rows.append([str(point.group), point.limit, unit, *values])
        return self.table(
            "throughput",
            "Throughput of every policy",
            ["group", "longest output", "unit", *MAIN],
            rows,
            keys=3,
            detail=True,
        )

    def _gain_chart(self, group: ModelAndData) -> Chart:
        points = [AdaptivePoint(group=group, limit=limit) for limit in self.scope.limits]
        curves = {
            f"{name} over {over}": [(float(point.limit), self.gain(point, policy, over)) for point in points]
            for over in OTHERS.values()
            for name, policy in READINGS.items()
        }
        return chart(
            f"fig3-{file_name(group)}",
            f"{group}: throughput of adaptivellm",
            curves,
            "longest output (tokens), simulated",
            "times the other's",
            level=1.0,
        )

    # ---- reasons taken away ------------------------------------------------------------------------

    def reasons(self) -> StudyPart:
        """Table 3's gains with one thing changed."""
        rows: list[list[Value]] = []
        for group in self.scope.groups:
            point = AdaptivePoint(group=group)
            plain = [self.gain(point, policy, BASELINE) for policy in READINGS.values()]
            changed = [self.varied(point, what) for what in CHANGES]
            roomy = [self.varied(point, ROOMY_HOST, policy) for policy in READINGS.values()]
            strict = [self.gain(point, policy, BASELINE) for policy in (SWAP, SWAP_UNBOUND)]
            ours, theirs = PAPER_TABLE_3[str(group)]
            rows.append([str(group), *plain, *changed, *roomy, *strict, ours / theirs])
        table = self.table(
            "reasons",
            f"Throughput over {BASELINE} as in Table 3, one thing changed; longest output {TABLE_LIMIT}",
            [
                *("group", *READINGS, *(what.name for what in CHANGES)),
                *(f"{ROOMY_HOST.name}, {reading}" for reading in READINGS),
                *(SWAP, f"{SWAP} without its limit", f"paper: {SWAP}"),
            ],
            rows,
            f"By the prompt where no reading is named. Never full: {LARGE_HOST_BLOCKS:,} host blocks.",
        )
        return StudyPart(title="One thing changed", tables=[table])

    # ---- Figure 4 ----------------------------------------------------------------------------------

    def cut(self, point: AdaptivePoint, policy: str, over: str) -> float | None:
        """How much shorter a policy's mean weighted turnaround is than another's: 0.2 is by a fifth."""
        found = self.ratio(point, policy, over, turnaround)
        return None if found is None else 1 - found

    def cuts(self, policy: str, over: str) -> dict[AdaptivePoint, float]:
        """The cuts at the batch caps that the paper names."""
        points = [point for point in self.scope.latency_points() if point.cap in PAPER_CAPS]
        found = {point: self.cut(point, policy, over) for point in points}
        return {point: cut for point, cut in found.items() if cut is not None}

    def figure_4(self) -> StudyPart:
        """Mean weighted turnaround against the batch cap."""
        points = self.scope.latency_points()
        rows: list[list[Value]] = []
        for point in points:
            means = [self.mean(point, policy, turnaround) for policy in LATENCY]
            cuts = [self.cut(point, policy, over) for over in PAPER_CUTS for policy in ORDERS.values()]
            rows.append([str(point.group), point.cap, *means, *cuts])
        table = self.table(
            "fig4",
            f"Mean weighted turnaround (Fig. 4; longest output {TABLE_LIMIT}, ours)",
            [
                *("group", "batch cap", *LATENCY),
                *(f"cut vs {over}, {name}" for over in PAPER_CUTS for name in ORDERS),
            ],
            rows,
            f"(finish - send) / (finish - first scheduled); 1 is no waiting. A cut of 0.2 is a fifth less. {RULES}",
            keys=2,
        )
        return StudyPart(
            title="Weighted turnaround (Fig. 4)",
            text=self.unfinished(points, LATENCY),
            tables=[table],
            charts=[self._turnaround_chart(group) for group in self.scope.groups],
        )

    def _turnaround_chart(self, group: ModelAndData) -> Chart:
        points = [point for point in self.scope.latency_points() if point.group == group]
        curves = {
            policy: [(float(point.cap), self.mean(point, policy, turnaround)) for point in points]
            for policy in LATENCY
        }
        title = f"{group}: mean weighted turnaround"
        return chart(f"fig4-{file_name(group)}", title, curves, "batch cap, simulated", "1 is no waiting")

    # ---- what decisions cost -----------------------------------------------------------------------

    def overheads(self) -> list[Overhead]:
        """One overhead for each group. Raises SimulationError for a run that was not made."""
        return [self._overhead(point) for point in self.scope.overhead_points()]

    def _overhead(self, point: AdaptivePoint) -> Overhead:
        mine, predicting, plain = (
            self._planned(point, policy) for policy in (BY_PROMPT, PREDICT_ONLY, BASELINE)
        )
        return Overhead(
            group=point.group,
            plan_s=mine.meter.plan_s / mine.meter.plans,
            step_s=mine.end_s / mine.steps,
            share=_share(mine),
            prediction_share=_share(predicting) - _share(plain),
        )

    def _planned(self, point: AdaptivePoint, policy: str) -> RunResult:
        return self.made(point.run(policy, 0, every_step=True), policy, f"{point}, step by step")

    def overhead_part(self) -> StudyPart:
        """The overheads as a table."""
        rows: list[list[Value]] = [
            [
                str(each.group),
                1e6 * each.plan_s,
                1e3 * each.step_s,
                100 * each.share,
                100 * each.prediction_share,
            ]
            for each in self.overheads()
        ]
        table = self.table(
            "overhead",
            "CPU time of plan() over the time of the same run",
            ["group", "µs a plan", "ms a step", "% of the run", "% predicting"],
            rows,
            f"Of {BY_PROMPT}; predicting: {BASELINE} that predicts both costs, less {BASELINE}. The paper: predicting "
            f"{PAPER_OVERHEAD[0]:.1%} to {PAPER_OVERHEAD[1]:.0%} of the run time; its scheduler 0.2 ms "
            "a call, 0.5 to 1 %.",
            measured_on=f"plan() timed on this machine, steps {SIMULATED}",
            decimals=3,
        )
        return StudyPart(title="Overhead (section 4.6)", tables=[table])


def _share(result: RunResult) -> float:
    return result.meter.plan_s / result.end_s
