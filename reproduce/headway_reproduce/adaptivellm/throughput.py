"""AdaptiveLLM's throughput: Table 3, Fig. 3, its two halves alone, and Table 3 with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway.statistics import mean_of_all
from headway_reproduce.adaptivellm.setting import (
    ABLATIONS,
    BASELINE,
    EXACT,
    GROUPS,
    LARGE_HOST_BLOCKS,
    MAIN,
    PAPER_TABLE_3,
    PLUS,
    READINGS,
    SIMULATED,
    SWAP,
    TABLE_LIMIT,
    TODAY,
    VARIATIONS,
    AdaptivePoint,
    AdaptiveScope,
    AdaptiveVariation,
    ModelAndData,
)
from headway_reproduce.study import chart, ratio, short
from headway_reproduce.study_runs import EngineFindings, RunResult, StudyRun, summary_key, throughput_rps

OTHERS = {"vllm": BASELINE, "vllm_s": SWAP}
"""Key of the JSON -> what the paper compares with, in the order of PAPER_TABLE_3's pairs."""
BESIDE = {"vs_vllm": BASELINE, "vs_vllm_today": TODAY}
"""What `adaptivellm-plus` is compared with."""
RULES = "All but vllm and adaptivellm-plus run on vLLM 0.2.5's rules."


def saturated(result: RunResult) -> float | None:
    """Requests a second over the part of a run in which the engine is full."""
    return result.saturated_rps


def width(result: RunResult) -> float | None:
    """Answers' tokens a step: how many requests ran at once, steps of prompts counted too."""
    output_tps = result.summary.output_tps
    return None if output_tps is None or not result.steps else output_tps * result.end_s / result.steps


@dataclass(frozen=True)
class ThroughputFindings(EngineFindings[AdaptivePoint]):
    """AdaptiveLLM's runs."""

    measured_on = SIMULATED
    scope: AdaptiveScope

    def phases(self) -> Iterator[Sequence[StudyRun]]:
        """The loaded runs come last: their rates are shares of what the others got through."""
        yield self.scope.first_runs()
        yield self.scope.loaded_runs(self.capacity_rps())

    def gain(self, point: AdaptivePoint, policy: str, over: str) -> float | None:
        """The mean throughput ratio."""
        return self.ratio(point, policy, over, throughput_rps)

    def gains(self, policy: str, over: str) -> dict[ModelAndData, float]:
        """Table 3's, by group; without those of which a run has no throughput."""
        found = {group: self.gain(AdaptivePoint(group=group), policy, over) for group in GROUPS}
        return {group: gain for group, gain in found.items() if gain is not None}

    def varied_gain(self, group: ModelAndData, what: AdaptiveVariation) -> float | None:
        """Over the baseline with the same requests, over the seeds both have: a variation may have fewer."""
        pairs = zip(
            self.results(what.of(group), what.policy),
            self.results(what.base_of(group), BASELINE),
            strict=False,
        )
        return mean_of_all(ratio(throughput_rps(mine), throughput_rps(theirs)) for mine, theirs in pairs)

    def capacity_rps(self) -> dict[ModelAndData, float]:
        """What the baseline got through of each group's requests, all at once."""
        return {
            group: self.mean(AdaptivePoint(group=group), BASELINE, throughput_rps) or 0.0 for group in GROUPS
        }

    def num_schedules(self, policy: str) -> int:
        """How many of the twelve groups' schedules differ, by their steps and what became of victims."""
        found = (self.results(AdaptivePoint(group=group), policy)[0] for group in GROUPS)
        return len({(run.steps, run.meter.swaps, run.meter.recomputes) for run in found})


def file_name(group: ModelAndData) -> str:
    """A group in the names of files."""
    return f"{group.model}-{group.data}".lower()


class Throughput(ThroughputFindings):
    """How many times the others' throughput adaptivellm's is."""

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
            beside = [self.gain(point, PLUS, other) for other in BESIDE.values()] if place == 0 else []
            rows.append([str(group), PAPER_TABLE_3[str(group)][place], *whole, *full, *beside])
        names = [*READINGS, *(f"{name}, saturated part" for name in READINGS)]
        names += ["plus over it", "plus over vllm today"] if place == 0 else []
        return self.table(
            f"table3-{key.replace('_', '-')}",
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
            tables=[*map(self._gains_table, self.scope.kinds), self._throughput_table()],
            charts=[self._gain_chart(group) for group in self.scope.groups],
        )

    def _gains_table(self, kind: str) -> StudyTable:
        rows: list[list[Value]] = []
        for point in self.scope.sweep_points():
            if point.lengths == kind:
                gains = [
                    self.gain(point, policy, over) for over in OTHERS.values() for policy in READINGS.values()
                ]
                beside = [self.gain(point, PLUS, over) for over in BESIDE.values()]
                rows.append([str(point.group), point.limit, *gains, *beside])
        lengths = "exactly the longest (control)" if kind == EXACT else "of their natural length"
        return self.table(
            f"fig3-{kind}",
            f"Throughput of adaptivellm over others, outputs {lengths}",
            [
                *("group", "longest output"),
                *(f"{name} over {over}" for over in OTHERS.values() for name in READINGS),
                *(f"plus over {over}" for over in BESIDE.values()),
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
                rows.append([str(point.group), point.limit, point.lengths, unit, *values])
        return self.table(
            "throughput",
            "Throughput of every policy",
            ["group", "longest output", "lengths", "unit", *MAIN],
            rows,
            keys=4,
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

    # ---- each half alone, and reasons taken away ---------------------------------------------------

    def ablations(self) -> StudyPart | None:
        """What each half of the system brings alone; None where that is not run."""
        points = self.scope.ablation_points()
        if not points:
            return None
        policies = (*ABLATIONS, *READINGS.values(), PLUS)
        rows: list[list[Value]] = []
        for point in points:
            gains = [self.gain(point, policy, BASELINE) for policy in policies]
            rows.append([str(point.group), *gains])
        table = self.table(
            "ablations",
            f"Throughput over {BASELINE}, longest output {TABLE_LIMIT}",
            ["group", *policies],
            rows,
            "fairness: its start scheduling by prompt and output, recompute always; memory: its choice of swap or "
            "recompute, in order of arrival; predict-only: predicts, then always recomputes.",
        )
        return StudyPart(title="Ablations", tables=[table])

    def reasons(self) -> StudyPart:
        """What Table 3's gains would be with one thing changed."""
        rows: list[list[Value]] = []
        for group in self.scope.groups:
            plain = [self.gain(AdaptivePoint(group=group), policy, BASELINE) for policy in READINGS.values()]
            changed = [self.varied_gain(group, what) for what in VARIATIONS]
            ours, theirs = PAPER_TABLE_3[str(group)]
            strict = self.gain(AdaptivePoint(group=group), SWAP, BASELINE)
            rows.append([str(group), *plain, *changed, strict, ours / theirs])
        table = self.table(
            "reasons",
            f"Throughput over {BASELINE} as in Table 3, one thing changed; longest output {TABLE_LIMIT}",
            ["group", *READINGS, *(what.name for what in VARIATIONS), SWAP, f"paper: {SWAP}"],
            rows,
            f"Of {READINGS['prompt']} where no reading is named. Never full: {LARGE_HOST_BLOCKS:,} host blocks.",
        )
        return StudyPart(title="One thing changed", tables=[table])

    # ---- what scripts read -------------------------------------------------------------------------

    def data(self) -> dict[str, object]:
        """Table 3: group -> reading -> gains, with the paper's two; Fig. 3: the gains by longest output."""
        sweep: dict[str, dict[str, dict[str, object]]] = {}
        for point in self.scope.sweep_points():
            by_kind = sweep.setdefault(str(point.group), {}).setdefault(point.lengths, {})
            by_kind[str(point.limit)] = self._gains_data(point)
        table = {
            str(point.group): {**self._gains_data(point), "paper": PAPER_TABLE_3[str(point.group)]}
            for point in self.scope.table_points()
        }
        return {"table3": table, "fig3": sweep}

    def _gains_data(self, point: AdaptivePoint) -> dict[str, object]:
        return {
            name: {f"vs_{key}": short(self.gain(point, policy, over)) for key, over in OTHERS.items()}
            for name, policy in READINGS.items()
        }
