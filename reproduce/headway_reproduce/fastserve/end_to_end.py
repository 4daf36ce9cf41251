"""FastServe end to end: job completion times against rate, burstiness and skew, and why gains are not the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.lab.policy_choice import label
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.fastserve.setting import (
    AXES,
    CLUSTER,
    CV_AXIS,
    END_TO_END,
    FASTER_TRANSFORMER,
    FASTSERVE,
    LOAD,
    LOW_LOAD,
    ORACLE,
    ORCA,
    PAPER_FT_GAIN,
    PAPER_FT_RANGES,
    PAPER_MEAN_GAIN,
    PAPER_RANGES,
    PAPER_TAIL_GAIN,
    RATE_AXIS,
    SCARCE_MEMORY,
    SIMULATED,
    SYSTEMS,
    THETA_AXIS,
    TODAY,
    VARIATIONS,
    VARIED,
    CapacityPoint,
    FastServePoint,
    FastServeScope,
    FastServeVariation,
    PaperMachine,
)
from headway_reproduce.study import Range, chart, short, short_range, span
from headway_reproduce.study_runs import EngineFindings, Number, StudyRun, summary_key, throughput_rps

mean_jct_s = summary_key("mean_jct_s")
"""Mean job completion time."""
p50_jct_s = summary_key("p50_jct_s")
"""Its median."""
p99_jct_s = summary_key("p99_jct_s")
"""Its 99th percentile: the papers say "tail" and not which."""

AXIS_HEADINGS = {RATE_AXIS: "load (of orca's capacity)", CV_AXIS: "CV of arrivals", THETA_AXIS: "Zipf theta"}
_OVER = {ORCA: "over orca", FASTER_TRANSFORMER: "over fastertransformer", TODAY: "over vllm today"}


@dataclass(frozen=True)
class FastServeFindings(EngineFindings[FastServePoint]):
    """FastServe's runs."""

    measured_on = SIMULATED
    scope: FastServeScope

    def phases(self) -> Iterator[Sequence[StudyRun]]:
        """Capacity first, which the rates of all others are shares of."""
        yield self.scope.capacity_runs()
        yield self.scope.loaded_runs(self.capacity_rps)

    def capacity_rps(self, place: CapacityPoint) -> float:
        """What the baseline got through of a place's requests, all at once."""
        return self.mean(place.at_once(), ORCA, throughput_rps) or 0.0

    def gain(self, point: FastServePoint, over: str, number: Number = mean_jct_s) -> float | None:
        """How many times another policy's latency is fastserve's, mean over seeds: 2 is half the time."""
        return self.ratio(point, over, FASTSERVE, number)

    def gains(self, points: Iterable[FastServePoint], over: str, number: Number = mean_jct_s) -> Range | None:
        """The least and the largest gain."""
        return span(self.gain(point, over, number) for point in points)

    def jct_chart(
        self,
        name: str,
        machine: PaperMachine,
        points: Mapping[float, FastServePoint],
        policies: Mapping[str, str],
        x_label: str,
        *,
        doubling: bool,
    ) -> Chart:
        """Mean completion time against a setting; `policies` are curves by what they are called."""
        curves = {
            called: [(setting, self.mean(point, policy, mean_jct_s)) for setting, point in points.items()]
            for called, policy in policies.items()
        }
        title = f"Mean JCT, {machine.title}"
        return chart(name, title, curves, f"{x_label}, simulated", "seconds", doubling=doubling)


def largest(found: Range | None) -> float | None:
    """The most of a range, as scripts read it."""
    return None if found is None else short(found[1])


def sensitivity(values: Iterable[float | None]) -> float | None:
    """The most over the least: 1 where nothing changes."""
    found = span(values)
    return found[1] / found[0] if found and found[0] else None


def said(found: Range | None) -> str:
    """A range in a sentence."""
    return "not measured" if found is None else f"{found[0]:.2f} to {found[1]:.2f} times"


class EndToEnd(FastServeFindings):
    """The three axes: completion times, gains, and what changes them."""

    def points(self, axis: str) -> dict[float, FastServePoint]:
        """Setting -> point."""
        return self.scope.end_to_end(axis, self.capacity_rps)

    def all_points(self) -> list[FastServePoint]:
        """Every point of the three axes, once."""
        return list(dict.fromkeys(point for axis in AXES for point in self.points(axis).values()))

    # ---- beside the paper --------------------------------------------------------------------------

    def headline(self) -> StudyPart:
        """The largest gains and their ranges, the paper's beside ours."""
        points = self.all_points()
        gains, tail = self.gains(points, ORCA), self.gains(points, ORCA, p99_jct_s)
        static = self.gains(points, FASTER_TRANSFORMER)
        rows = [
            _row("mean JCT, over orca", gains, (1.0, PAPER_MEAN_GAIN)),
            _row("p99 JCT, over orca", tail, (None, PAPER_TAIL_GAIN)),
            _row("mean JCT, over fastertransformer", static, (1.9, PAPER_FT_GAIN)),
            _row("mean JCT, over vllm today", self.gains(points, TODAY), (None, None)),
        ]
        for axis in AXES:
            found = self.points(axis).values()
            for over, paper in ((ORCA, PAPER_RANGES), (FASTER_TRANSFORMER, PAPER_FT_RANGES)):
                rows.append(_row(f"{axis}: mean JCT, over {over}", self.gains(found, over), paper[axis]))
        table = self.table(
            "headline",
            "How many times the other's job completion time is fastserve's",
            ["what", "least", "most", "paper: least", "paper: most"],
            rows,
            "1 is equal, 2 is half the time, less than 1 is longer. The paper does not say which percentile its tail "
            "is; ours is the 99th.",
        )
        differs = self._low_load_difference()
        equal = "not measured" if differs is None else f"within {differs:.1%}"
        text = [
            f"fastserve's mean job completion time over the grid: orca's is {said(gains)} as long, "
            f"in the paper up to {PAPER_MEAN_GAIN}; its 99th percentile {said(tail)}, in the paper up to "
            f"{PAPER_TAIL_GAIN}.",
            f"At loads up to {LOW_LOAD:g} the means of fastserve and orca are equal {equal}; in the paper they are "
            "equal.",
            self._said_of_static(),
            f"{label(ORACLE)}, which knows how long answers will be: fastserve's mean is "
            f"{said(self._gaps_to_oracle())} that one's.",
        ]
        return StudyPart(title="Beside the paper", text=text, tables=[table])

    def _said_of_static(self) -> str:
        """Why gains over static batches are what they are."""
        got_rps = self.mean(self.points(RATE_AXIS)[LOAD], FASTER_TRANSFORMER, throughput_rps) or 0.0
        share = got_rps / self.capacity_rps(END_TO_END)
        return (
            f"{FASTER_TRANSFORMER} runs each batch to the end of its longest answer, in one stage at a time, and gets "
            f"through {share:.0%} of orca's capacity: it is overloaded at every rate of the grid, and its job "
            "completion times grow with the length of the run."
        )

    def _low_load_difference(self) -> float | None:
        """The largest relative difference from orca in mean JCT at low load."""
        points = self.points(RATE_AXIS)
        gains = [self.gain(point, ORCA) for load, point in points.items() if load <= LOW_LOAD]
        found = span(abs(gain - 1) for gain in gains if gain is not None)
        return None if found is None else found[1]

    def _gaps_to_oracle(self) -> Range | None:
        """fastserve's mean JCT over the oracle's, least and most."""
        return span(self.ratio(point, FASTSERVE, ORACLE, mean_jct_s) for point in self.all_points())

    # ---- the three axes ----------------------------------------------------------------------------

    def axis_part(self, axis: str) -> StudyPart:
        """One axis: every policy's mean and tail, and fastserve's gains."""
        points = self.points(axis)
        low, high = PAPER_RANGES[axis]
        gains = self.gains(points.values(), ORCA)
        shown = {label(policy): policy for policy in SYSTEMS if policy != FASTER_TRANSFORMER}
        heading = AXIS_HEADINGS[axis]
        return StudyPart(
            title=f"Job completion time against {heading}",
            text=[
                f"Over orca {said(gains)}; in the paper {low} to {high}.",
                *self.unfinished(points.values(), SYSTEMS),
            ],
            tables=[self._gain_table(axis, points), self._latency_table(axis, points)],
            charts=[
                self.jct_chart(
                    f"end-to-end-{axis}", CLUSTER, points, shown, heading, doubling=axis == CV_AXIS
                )
            ],
        )

    def _gain_table(self, axis: str, points: dict[float, FastServePoint]) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, point in points.items():
            means = [self.mean(point, policy, mean_jct_s) for policy in SYSTEMS]
            gains = [self.gain(point, over) for over in _OVER]
            deviation = self.ratios(point, ORCA, FASTSERVE, mean_jct_s).deviation
            others = [self.gain(point, ORCA, number) for number in (p50_jct_s, p99_jct_s)]
            rows.append([f"{setting:g}", *means, *gains, deviation, *others])
        more = ("± over orca", "p50, over orca", "p99, over orca")
        return self.table(
            f"end-to-end-{axis}",
            f"Mean job completion time in seconds, and fastserve's gains ({CLUSTER.title})",
            [AXIS_HEADINGS[axis], *map(label, SYSTEMS), *_OVER.values(), *more],
            rows,
            "Gains are taken seed by seed; ± is their standard deviation, where there are several.",
        )

    def _latency_table(self, axis: str, points: dict[float, FastServePoint]) -> StudyTable:
        asked = (("p99 JCT s", p99_jct_s), ("req/s", throughput_rps))
        return self.table(
            f"end-to-end-{axis}-more",
            "Tail and throughput of every policy",
            [AXIS_HEADINGS[axis], "offered req/s", "value", *map(label, SYSTEMS)],
            [
                [
                    f"{setting:g}",
                    point.rate_rps,
                    unit,
                    *(self.mean(point, policy, number) for policy in SYSTEMS),
                ]
                for setting, point in points.items()
                for unit, number in asked
            ],
            keys=3,
            detail=True,
        )

    # ---- what falls short --------------------------------------------------------------------------

    def shortfall(self) -> StudyPart | None:
        """What the gains would be with one thing changed; None where that is not run."""
        points = self.scope.varied(self.capacity_rps)
        if not points:
            return None
        rows: list[list[Value]] = []
        for load, point in points.items():
            for what in (FastServeVariation("as it stands"), *VARIATIONS):
                changed = what.of(point)
                gains = [self.gain(changed, ORCA, number) for number in (mean_jct_s, p99_jct_s)]
                means = [self.mean(changed, policy, mean_jct_s) for policy in VARIED]
                rows.append([f"{load:g}", what.name, *gains, *means])
        table = self.table(
            "shortfall",
            f"fastserve's gain over orca with one thing changed ({CLUSTER.title})",
            [
                *("load", "changed", "mean JCT, over orca", "p99, over orca"),
                *(f"{policy}, mean s" for policy in VARIED),
            ],
            rows,
            "The load is of orca's capacity as it stands, whatever is changed.",
            keys=2,
        )
        return StudyPart(
            title="Where it differs from the paper, and why",
            text=[
                *(self._said_of_variations(load, point) for load, point in points.items()),
                self._said_of_tails(list(points.values())),
            ],
            tables=[table],
        )

    def _said_of_variations(self, load: float, point: FastServePoint) -> str:
        def gain(what: FastServeVariation) -> str:
            return f"{self.gain(what.of(point), ORCA) or 0.0:.2f}"

        single, reserving, scarce, longer, any_size = VARIATIONS
        return (
            f"At load {load:g} the gain over orca is {self.gain(point, ORCA) or 0.0:.2f}. It depends on what orca can "
            f"keep running: {gain(single)} if it shares one batch among both stages, {gain(reserving)} if it reserves "
            f"2,048 tokens for each, {gain(scarce)} with {SCARCE_MEMORY:g} of the KV blocks; and {gain(any_size)} "
            f"where batches may be of any size. A run {longer.times_jobs} times as long: {gain(longer)}."
        )

    def _said_of_tails(self, points: list[FastServePoint]) -> str:
        mine = self.gains(points, ORCA, p99_jct_s)
        ideal = span(self.ratio(point, ORCA, ORACLE, p99_jct_s) for point in points)
        return (
            "Whoever puts the short first makes the long wait: at these loads orca's p99 over all jobs is "
            f"{said(mine)} fastserve's, and {said(ideal)} that of the "
            "oracle, which knows who is short."
        )

    # ---- what scripts read -------------------------------------------------------------------------

    def data(self) -> dict[str, object]:
        """The keys that are about the grid."""
        points = self.all_points()
        return {
            "max_mean_jct_gain_vs_orca": largest(self.gains(points, ORCA)),
            "max_p99_jct_gain_vs_orca": largest(self.gains(points, ORCA, p99_jct_s)),
            "gain_range": self._ranges(ORCA),
            "vs_fastertransformer": self._ranges(FASTER_TRANSFORMER),
            "vs_vllm_today": self._ranges(TODAY),
            "equal_at_low_load": short(self._low_load_difference()),
            "gap_to_srpt": largest(self._gaps_to_oracle()),
        }

    def _ranges(self, over: str) -> dict[str, list[float | None] | None]:
        """Axis -> least and largest gain."""
        return {axis: short_range(self.gains(self.points(axis).values(), over)) for axis in AXES}

    def cells(self) -> list[dict[str, object]]:
        """Every point of every axis: what it is, and each policy's mean and tail."""
        return [
            {
                "axis": axis,
                "setting": setting,
                "rate_rps": short(point.rate_rps),
                "cv": point.cv,
                **{policy: self._latencies(point, policy) for policy in SYSTEMS},
                "gain_vs_orca": short(self.gain(point, ORCA)),
            }
            for axis in AXES
            for setting, point in self.points(axis).items()
        ]

    def _latencies(self, point: FastServePoint, policy: str) -> dict[str, float | None]:
        numbers = {"mean_jct_s": mean_jct_s, "p99_jct_s": p99_jct_s}
        return {key: short(self.mean(point, policy, number)) for key, number in numbers.items()}


def _row(what: str, ours: Range | None, paper: tuple[float | None, float | None]) -> list[Value]:
    return [what, *(ours or (None, None)), *paper]
