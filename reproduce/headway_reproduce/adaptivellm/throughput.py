"""AdaptiveLLM's throughput: Table 3, Fig. 3, its two halves alone, and why gains differ from the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.adaptivellm.setting import (
    ABLATIONS,
    ADAPTIVE,
    BASELINE,
    EXACT,
    GROUPS,
    HOST_BLOCKS,
    LARGE_HOST_BLOCKS,
    MAIN,
    PAPER_TABLE_3,
    PLUS,
    SIMULATED,
    SWAP,
    SWAP_FALLBACK,
    TABLE_LIMIT,
    TODAY,
    VARIATIONS,
    AdaptivePoint,
    AdaptiveScope,
    AdaptiveVariation,
    ModelAndData,
)
from headway_reproduce.study import chart, mean, ratio, short
from headway_reproduce.study_runs import EngineFindings, StudyRun, summary_key, throughput_rps

GAINS = {
    "vs_recompute": (ADAPTIVE, BASELINE),
    "vs_swap": (ADAPTIVE, SWAP),
    "vs_swap_fallback": (ADAPTIVE, SWAP_FALLBACK),
    "plus_vs_recompute": (PLUS, BASELINE),
    "vs_vllm_today": (ADAPTIVE, TODAY),
    "plus_vs_vllm_today": (PLUS, TODAY),
}
"""Key of the JSON -> whose throughput, over whose."""
GAIN_HEADINGS = {
    "vs_recompute": "over vllm-v0",
    "vs_swap": "over vllm-s",
    "vs_swap_fallback": "over vllm-s-fallback",
    "plus_vs_recompute": "plus over vllm-v0",
    "vs_vllm_today": "over vllm today",
    "plus_vs_vllm_today": "plus over vllm today",
}
"""The same as tables call it."""
PAPER_KEYS = ("vs_recompute", "vs_swap")
"""Of GAINS, in the order of PAPER_TABLE_3's pairs."""

COUNTERS = ("swaps", "recomputes", "host_full")
"""Of `study_runs.Meter`."""


@dataclass(frozen=True)
class ThroughputFindings(EngineFindings[AdaptivePoint]):
    """AdaptiveLLM's runs."""

    measured_on = SIMULATED
    scope: AdaptiveScope

    def phases(self) -> Iterator[Sequence[StudyRun]]:
        """The loaded runs come last: their rates are shares of what the others got through."""
        yield self.scope.first_runs()
        yield self.scope.loaded_runs(self.capacity_rps())

    def gain(self, point: AdaptivePoint, key: str) -> float | None:
        """The mean throughput ratio of a key of GAINS."""
        return self.ratio(point, *GAINS[key], throughput_rps)

    def capacity_rps(self) -> dict[ModelAndData, float]:
        """What the baseline got through of each group's requests, all at once."""
        return {
            group: self.mean(AdaptivePoint(group=group), BASELINE, throughput_rps) or 0.0 for group in GROUPS
        }


def file_name(group: ModelAndData) -> str:
    """A group in the names of files."""
    return f"{group.model}-{group.data}".lower()


class Throughput(ThroughputFindings):
    """How many times the others' throughput adaptivellm's is."""

    # ---- Table 3 -----------------------------------------------------------------------------------

    def table_3(self) -> StudyPart:
        """Throughput at the longest output of 64, the paper's and ours."""
        headings = ["group"]
        for key in GAINS:
            headings += [GAIN_HEADINGS[key], "paper"] if key in PAPER_KEYS else [GAIN_HEADINGS[key]]
        table = self.table(
            "table3",
            f"Throughput of adaptivellm over others (Table 3: longest output {TABLE_LIMIT})",
            [*headings, *(name.replace("_", " ") for name in COUNTERS)],
            map(self._table_3_row, GROUPS),
            "All policies serve the same requests, so ratios are the same in requests and in tokens a second. "
            "Counts are of adaptivellm; host full: recomputes of victims for which the host had no room.",
        )
        said = [self._said_of_gains(place) for place in range(len(PAPER_KEYS))]
        missing = self.unfinished(self.scope.table_points(), MAIN)
        return StudyPart(title="Throughput (Table 3)", text=[*said, *missing], tables=[table])

    def _table_3_row(self, group: ModelAndData) -> list[Value]:
        point, row = AdaptivePoint(group=group), list[Value]()
        for key in GAINS:
            row.append(self.gain(point, key))
            if key in PAPER_KEYS:
                row.append(PAPER_TABLE_3[str(group)][PAPER_KEYS.index(key)])
        return [str(group), *row, *(round(self.count(point, ADAPTIVE, name)) for name in COUNTERS)]

    def _said_of_gains(self, place: int) -> str:
        key = PAPER_KEYS[place]
        gains = {group: self.gain(AdaptivePoint(group=group), key) or 0.0 for group in GROUPS}
        paper = {group: PAPER_TABLE_3[str(group)][place] for group in GROUPS}
        reached = sum(gains[group] >= paper[group] for group in GROUPS)
        return (
            f"adaptivellm {GAIN_HEADINGS[key]}: {_range(gains.values())} times; in the "
            f"paper {_range(paper.values())}. {reached} of {len(GROUPS)} groups gain as "
            "much as there."
        )

    # ---- Figure 3 ----------------------------------------------------------------------------------

    def figure_3(self) -> StudyPart:
        """Throughput against the longest output."""
        kinds = self.scope.kinds
        return StudyPart(
            title="Throughput against the longest output (Fig. 3)",
            text=[self._said_of_shape(kind) for kind in kinds],
            tables=[*map(self._gains_table, kinds), self._throughput_table()],
            charts=[self._gain_chart(group) for group in self.scope.groups],
        )

    def _gains_table(self, kind: str) -> StudyTable:
        rows: list[list[Value]] = []
        for point in self.scope.sweep_points():
            if point.lengths == kind:
                deviation = self.ratios(point, *GAINS["vs_recompute"], throughput_rps).deviation
                gains = [self.gain(point, key) for key in GAINS]
                rows.append([str(point.group), point.limit, *gains, deviation])
        lengths = "exactly the longest (control)" if kind == EXACT else "of their natural length"
        return self.table(
            f"fig3-{kind}",
            f"Throughput of adaptivellm over others, outputs {lengths}",
            ["group", "longest output", *GAIN_HEADINGS.values(), "± over vllm-v0"],
            rows,
            "± is the standard deviation over seeds, where there are several.",
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
        paper = zip(PAPER_KEYS, PAPER_TABLE_3[str(group)], strict=True)
        return chart(
            f"fig3-{file_name(group)}",
            f"{group}: throughput of adaptivellm",
            {
                heading: [(float(point.limit), self.gain(point, key)) for point in points]
                for key, heading in GAIN_HEADINGS.items()
            },
            "longest output (tokens), simulated",
            "times the other's",
            published={GAIN_HEADINGS[key]: (float(TABLE_LIMIT), gain) for key, gain in paper},
            level=1.0,
        )

    def _said_of_shape(self, kind: str) -> str:
        peaks: Counter[int] = Counter()
        groups = self.scope.groups
        for group in groups:
            points = [AdaptivePoint(group=group, limit=limit, lengths=kind) for limit in self.scope.limits]
            peaks[max(points, key=lambda point: self.gain(point, "vs_recompute") or 0.0).limit] += 1
        where = ", ".join(f"at {limit} in {peaks[limit]}" for limit in sorted(peaks))
        return (
            f"Outputs of {kind} length: the gain over vllm-v0 is largest {where} of {len(groups)} groups; in the paper "
            "it is little at short outputs, largest in the middle and less at long ones."
        )

    # ---- each half alone, and what falls short -----------------------------------------------------

    def ablations(self) -> StudyPart | None:
        """What each half of the system brings alone; None where that is not run."""
        points = self.scope.ablation_points()
        if not points:
            return None
        policies = (*ABLATIONS, ADAPTIVE, PLUS)
        rows: list[list[Value]] = []
        for point in points:
            gains = [self.ratio(point, policy, BASELINE, throughput_rps) for policy in policies]
            rows.append([str(point.group), *gains])
        table = self.table(
            "ablations",
            f"Throughput over vllm-v0, longest output {TABLE_LIMIT}",
            ["group", *policies],
            rows,
            "fairness: its start scheduling, recompute always; memory: its choice of swap or recompute, in order of "
            "arrival; predict-only: predicts, then always recomputes.",
        )
        return StudyPart(title="Ablations", tables=[table])

    def shortfall(self) -> StudyPart:
        """What Table 3's gains would be with one thing changed."""
        rows: list[list[Value]] = []
        for group in self.scope.groups:
            ours, theirs = PAPER_TABLE_3[str(group)]
            gains = [self.varied_gain(group, what) for what in VARIATIONS]
            rows.append(
                [str(group), self.gain(AdaptivePoint(group=group), "vs_recompute"), *gains, ours / theirs]
            )
        table = self.table(
            "shortfall",
            f"Throughput over that of vllm-v0 as in Table 3, one thing changed; longest output {TABLE_LIMIT}",
            ["group", "adaptivellm", *(what.name for what in VARIATIONS), "paper: vllm-s over vllm"],
            rows,
            "Memory only: the choice of swap or recompute, in order of arrival. Never full: "
            f"{LARGE_HOST_BLOCKS:,} host blocks. Half the device's blocks: {HOST_BLOCKS}, as many as the host has.",
        )
        return StudyPart(
            title="Where it falls short, and why", text=self._said_of_shortfall(), tables=[table]
        )

    def varied_gain(self, group: ModelAndData, what: AdaptiveVariation) -> float | None:
        """Over the baseline with the same requests, over the seeds both have: a variation may have fewer."""
        pairs = zip(
            self.results(what.of(group), what.policy),
            self.results(AdaptivePoint(group=group), BASELINE),
            strict=False,
        )
        return mean(ratio(throughput_rps(mine), throughput_rps(theirs)) for mine, theirs in pairs)

    def _said_of_shortfall(self) -> list[str]:
        """The reasons, each with the numbers it is read from."""
        groups = self.scope.groups
        recomputes, full = (
            sum(self.count(AdaptivePoint(group=group), ADAPTIVE, name) for group in groups)
            for name in ("recomputes", "host_full")
        )
        paper = [PAPER_TABLE_3[str(group)] for group in groups]
        memory, *_, halved = (
            [self.varied_gain(group, what) or 0.0 for group in groups] for what in VARIATIONS
        )
        return [
            "With all requests at 0 s the priority, time waited over length, ranks by length alone: the longest are "
            "preempted first and come back last, so they fill the host and stay there. "
            f"{full / max(1.0, recomputes):.0%} of adaptivellm's recomputes found the host full.",
            f"Its choice of swap or recompute alone, in order of arrival (memory only), comes to {_range(memory)} "
            "times vllm-v0; its order of starts costs throughput and gains turnaround.",
            f"The paper's vllm-s runs at {_range([a / b for a, b in paper])} of its vllm. Ours, which admits as long "
            "as victims find room on the host, runs faster than vllm-v0; with half the device's blocks, as if all who "
            f"run had to find room there at once, at {_range(halved)} of it.",
        ]

    # ---- what scripts read -------------------------------------------------------------------------

    def data(self) -> dict[str, object]:
        """Table 3: group -> gains, the paper's two, and counts; Fig. 3: group -> lengths -> longest output -> gains."""
        sweep: dict[str, dict[str, dict[str, object]]] = {}
        for point in self.scope.sweep_points():
            by_kind = sweep.setdefault(str(point.group), {}).setdefault(point.lengths, {})
            by_kind[str(point.limit)] = self._gains_data(point)
        table = {
            str(point.group): {
                **self._gains_data(point),
                "paper": PAPER_TABLE_3[str(point.group)],
                **{name: short(self.count(point, ADAPTIVE, name)) for name in COUNTERS},
            }
            for point in self.scope.table_points()
        }
        return {"table3": table, "fig3": sweep}

    def _gains_data(self, point: AdaptivePoint) -> dict[str, float | None]:
        return {key: short(self.gain(point, key)) for key in GAINS}


def _range(values: Iterable[float]) -> str:
    found = list(values)
    return f"{min(found):.2f} to {max(found):.2f}"
