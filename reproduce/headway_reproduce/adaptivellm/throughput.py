"""AdaptiveLLM's throughput: Table 3, Fig. 3, and Table 3 with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway.statistics import mean_of_all
from headway_reproduce.adaptivellm.setting import (
    BASELINE,
    BY_PROMPT,
    CHANGES,
    GROUPS,
    LARGE_HOST_BLOCKS,
    MAIN,
    PAPER_TABLE_3,
    PLUS,
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
from headway_reproduce.study import chart, ratio
from headway_reproduce.study_runs import (
    EngineFindings,
    Number,
    RunResult,
    StudyRun,
    summary_key,
    throughput_rps,
)

OTHERS = {"vllm": BASELINE, "vllm-s": SWAP}
"""Name of its table -> a baseline of the paper, in the order of PAPER_TABLE_3's pairs."""
BESIDE = (BASELINE, TODAY)
"""The systems that `adaptivellm-plus` is compared with."""
RULES = "All but vllm and adaptivellm-plus run on vLLM 0.2.5's rules."


def saturated(result: RunResult) -> float | None:
    """Requests a second over the part of a run in which the engine is full."""
    return result.saturated_rps


def width(result: RunResult) -> float | None:
    """Output tokens per step: how many requests ran at once, with prompt steps included."""
    output_tps = result.summary.output_tps
    return None if output_tps is None or not result.steps else output_tps * result.end_s / result.steps


@dataclass(frozen=True)
class ThroughputFindings(EngineFindings[AdaptivePoint]):
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


def file_name(group: ModelAndData) -> str:
    """A group's name in file names."""
    return f"{group.model}-{group.data}".lower()


class Throughput(ThroughputFindings):
    """AdaptiveLLM's throughput relative to the others'."""

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
            tables=[*(self._gains_of_table_3(*pair) for pair in enumerate(OTHERS)), self._fates()],
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

    def _fates(self) -> StudyTable:
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
