"""FastServe end to end (Fig. 9): sustainable rates, gains as rate, CV and theta vary, and the reasons for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from headway.lab.policy_choice import label
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.claims import Claim, as_gain, as_trend, as_value, judged, reason_of
from headway_reproduce.fastserve.cells import (
    AS_IT_STANDS,
    AXES,
    CV_AXIS,
    END_TO_END,
    EQUAL_LOAD_AXIS,
    FASTER_TRANSFORMER,
    FASTSERVE,
    HALF_LOAD,
    LOAD,
    LONGER_LENGTHS,
    LONGER_RUN,
    LOW_CV_AXIS,
    LOW_LOAD,
    NARROW_STATIC,
    ORACLE,
    ORCA,
    ORCA_AS_SHORT,
    OVERLOAD,
    RATE_AXIS,
    SLOTS_FOR_ALL,
    SYSTEMS,
    THETA_AXIS,
    TODAY,
    VARIED,
    FastServePoint,
    FastServeVariation,
    loaded,
)
from headway_reproduce.fastserve.findings import (
    AXIS_HEADINGS,
    KNEE,
    FastServeFindings,
    held,
    largest,
    mean_jct_s,
    p50_jct_s,
    p99_jct_s,
    said,
    times,
)
from headway_reproduce.fastserve.fixed_points import PAPER_KNEE_RPS, PAPER_STATIC
from headway_reproduce.fastserve.machine import CLUSTER
from headway_reproduce.study import ratio, span
from headway_reproduce.study_runs import Number, throughput_rps

PAPER_MEAN_GAIN, PAPER_TAIL_GAIN = 5.1, 6.4
"""Largest gains over Orca in mean and tail job completion time (abstract)."""
PAPER_RANGES = {"rate": (1.0, 4.3), "cv": (2.3, 5.1), "theta": (1.9, 3.9)}
"""Axis -> least and largest gain over Orca (section 6.2)."""
PAPER_FT_RANGES = {"rate": (1.9, 11.4), "cv": (7.4, 12.2), "theta": (3.6, 10.6)}
"""The same ranges over FasterTransformer."""
PAPER_ABOVE_KNEE, PAPER_FT_ABOVE_KNEE = 3.0, 5.0
"""Smallest gains over Orca and FasterTransformer above the knee."""
TARGETS = (KNEE, 5.0)
"""Latency targets as multiples of Orca's latency at the lowest load. Ours: the paper has none."""

_OVER = {ORCA: "over orca", FASTER_TRANSFORMER: "over fastertransformer", TODAY: "over vllm today"}
_ASKED: tuple[tuple[str, Number, float], ...] = (
    ("mean", mean_jct_s, PAPER_MEAN_GAIN),
    ("p99", p99_jct_s, PAPER_TAIL_GAIN),
)


class EndToEnd(FastServeFindings):
    """The three axes: completion times, gains, and the reasons for them."""

    def points(self, axis: str) -> dict[float, FastServePoint]:
        """Setting -> point."""
        return self.scope.end_to_end(axis, self.capacity_rps)

    def all_points(self) -> list[FastServePoint]:
        """Every point of the three axes, once."""
        return list(dict.fromkeys(point for axis in AXES for point in self.points(axis).values()))

    # ---- sustainable rates -------------------------------------------------------------------------

    def sustained_rps(self, policy: str, number: Number, factor: float) -> float | None:
        """The rate up to which a policy's latency is at most `factor` times Orca's at the lowest load."""
        points = self.points(RATE_AXIS)
        lowest = self.curve(points, ORCA, number)[0][1]
        found = None if lowest is None else held(self.curve(points, policy, number), factor * lowest)
        return None if found is None else found.setting * self.capacity_rps(END_TO_END)

    def headline(self) -> StudyPart:
        """The rates that keep a target, with the paper's ratios and ours."""
        points = self.all_points()
        lowest = next(iter(self.points(RATE_AXIS).values()))
        rows: list[list[Value]] = []
        for what, number, paper in _ASKED:
            unloaded = self.mean(lowest, ORCA, number)
            gain = self.gains(points, ORCA, number)
            for factor in TARGETS:
                target_s = None if unloaded is None else factor * unloaded
                rates = [self.sustained_rps(policy, number, factor) for policy in SYSTEMS]
                over = self.sustained_gain(number, factor), gain[1] if gain else None
                rows.append([f"{what}, {factor:g} x", target_s, *rates, *over, paper])
        table = self.table(
            "headline",
            f"The rate up to which a target for job completion time is held, in req/s ({CLUSTER.title})",
            [
                "target",
                "s",
                *map(label, SYSTEMS),
                "fastserve over orca",
                "largest latency ratio",
                "the paper's",
            ],
            rows,
            f"A target is so many times orca's latency at load {next(iter(self.points(RATE_AXIS))):g}. Rates are read "
            "on straight lines between the loads of the grid. Latency ratios above capacity grow with the length of a "
            "run, rates do not. The paper does not say which percentile its tail is.",
        )
        return StudyPart(title="Beside the paper", text=[self._said_of_oracle()], tables=[table])

    def sustained_gain(self, number: Number, factor: float) -> float | None:
        """fastserve's sustainable rate relative to Orca's."""
        return ratio(*(self.sustained_rps(policy, number, factor) for policy in (FASTSERVE, ORCA)))

    def _said_of_oracle(self) -> str:
        gaps = span(self.ratio(point, FASTSERVE, ORACLE, mean_jct_s) for point in self.all_points())
        return f"fastserve's mean is {said(gaps)} times that of {label(ORACLE)}, which knows all lengths."

    # ---- the axes ----------------------------------------------------------------------------------

    def axis_part(self, axis: str) -> StudyPart:
        """One axis: every policy's mean and tail, and fastserve's gains."""
        points = self.points(axis)
        shown = {label(policy): policy for policy in SYSTEMS if policy != FASTER_TRANSFORMER}
        heading = AXIS_HEADINGS[axis]
        name = f"end-to-end-{axis.replace(' ', '-')}"
        return StudyPart(
            title=f"Fig. 9: job completion time against {heading}",
            text=self.unfinished(points.values(), SYSTEMS),
            tables=[self._gain_table(name, heading, points), self._latency_table(name, heading, points)],
            charts=[self.jct_chart(name, CLUSTER, points, shown, heading, doubling=axis == CV_AXIS)],
        )

    def _gain_table(self, name: str, heading: str, points: dict[float, FastServePoint]) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, point in points.items():
            means = [self.mean(point, policy, mean_jct_s) for policy in SYSTEMS]
            gains = [self.gain(point, over) for over in _OVER]
            deviation = self.ratios(point, ORCA, FASTSERVE, mean_jct_s).deviation
            others = [self.gain(point, ORCA, number) for number in (p50_jct_s, p99_jct_s)]
            rows.append([f"{setting:g}", *means, *gains, deviation, *others])
        more = ("± over orca", "p50, over orca", "p99, over orca")
        return self.table(
            name,
            f"Mean job completion time in seconds, and fastserve's gains ({CLUSTER.title})",
            [heading, *map(label, SYSTEMS), *_OVER.values(), *more],
            rows,
            "Gains are taken seed by seed; ± is their standard deviation, where there are several.",
        )

    def _latency_table(self, name: str, heading: str, points: dict[float, FastServePoint]) -> StudyTable:
        asked = (("p99 JCT s", p99_jct_s), ("req/s", throughput_rps))
        return self.table(
            f"{name}-more",
            "Tail and throughput of every policy",
            [heading, "offered req/s", "value", *map(label, SYSTEMS)],
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

    # ---- reasons -----------------------------------------------------------------------------------

    def reasons(self) -> StudyPart:
        """The gains with one thing changed."""
        rows: list[list[Value]] = []
        for load, point in self.scope.varied(self.capacity_rps).items():
            for what in (AS_IT_STANDS, *self.scope.variations):
                changed = what.of(point)
                gains = [self.gain(changed, ORCA, number) for _, number, _ in _ASKED]
                static = self.gain(changed, FASTER_TRANSFORMER)
                means = [self.mean(changed, policy, mean_jct_s) for policy in VARIED]
                rows.append([f"{load:g}", what.name, *gains, static, *means])
        table = self.table(
            "reasons",
            f"fastserve's gains with one thing changed ({CLUSTER.title})",
            [
                *("load", "changed", "mean, over orca", "p99, over orca", "mean, over fastertransformer"),
                *(f"{policy}, mean s" for policy in VARIED),
            ],
            rows,
            "The load is of orca's capacity as it stands, whatever is changed.",
            keys=2,
        )
        return StudyPart(title="Reasons, each with a run without it", tables=[table])

    def _varied(
        self,
        over: str,
        paper: float,
        *changes: FastServeVariation,
        number: Number = mean_jct_s,
        load: float = OVERLOAD,
    ) -> str:
        """The gain above capacity, unchanged and with one thing changed at a time."""
        point = self.scope.varied(self.capacity_rps)[load]
        tried = {
            what.name: self.gain(what.of(point), over, number)
            for what in changes
            if what in self.scope.variations
        }
        return f"at load {load:g}: {reason_of(self.gain(point, over, number), tried, paper)}"

    def claims(self) -> list[Claim]:
        """Statements of the abstract and section 6.2."""
        return [*self._headline_claims(), *self._rate_claims(), *self._cv_claims(), *self._theta_claims()]

    def _headline_claims(self) -> Iterable[Claim]:
        for what, number, paper in _ASKED:
            found = largest(self.gains(self.all_points(), ORCA, number))
            yield Claim(
                where="abstract",
                says=f"{what} JCT over orca, largest",
                paper=f"{paper:g}",
                ours=f"{times(found)} (rate: {times(self.sustained_gain(number, KNEE))})",
                verdict=judged(as_gain(found, paper)),
                reason=self._varied(ORCA, paper, ORCA_AS_SHORT, SLOTS_FOR_ALL, LONGER_RUN, number=number),
            )

    def _range_claims(self, axis: str, figure: str) -> Iterable[Claim]:
        points = self.points(axis).values()
        changed = {ORCA: (ORCA_AS_SHORT, LONGER_RUN), FASTER_TRANSFORMER: (NARROW_STATIC, LONGER_RUN)}
        for over, paper in ((ORCA, PAPER_RANGES[axis]), (FASTER_TRANSFORMER, PAPER_FT_RANGES[axis])):
            found = self.gains(points, over)
            yield Claim(
                where=figure,
                says=f"mean JCT over {over}, least to largest",
                paper=f"{paper[0]:g} to {paper[1]:g}",
                ours=said(found),
                verdict=judged(*map(as_gain, found or (None, None), paper)),
                reason=self._varied(over, paper[1], *changed[over]),
            )

    def _rate_claims(self) -> Iterable[Claim]:
        points = self.points(RATE_AXIS)
        knee = self.knee(points, ORCA)
        above = {load: point for load, point in points.items() if load > 1}
        low = {load: point for load, point in points.items() if load <= HALF_LOAD}
        yield from self._range_claims(RATE_AXIS, "Fig. 9(a)")
        knee_rps = None if knee is None else knee.setting * self.capacity_rps(END_TO_END)
        yield Claim(
            where="Fig. 9(a)",
            says="orca's knee, req/s",
            paper=f"{PAPER_KNEE_RPS:g} or slightly more",
            ours=times(knee_rps),
            verdict=judged(as_value(knee_rps, PAPER_KNEE_RPS)),
            reason="orca's capacity: "
            + reason_of(
                self.capacity_rps(END_TO_END),
                {
                    "all lengths up to the longest alike": self.capacity_rps(
                        END_TO_END.with_theta(LONGER_LENGTHS)
                    )
                },
                PAPER_KNEE_RPS,
            )
            + f"; a step takes {1e3 * CLUSTER.decode_step_s():.0f} ms, the paper does not say how long there",
        )
        equals = [self.gain(point, ORCA) for point in low.values()]
        yield Claim(
            where="Fig. 9(a)",
            says=f"at low rates equal to orca (its knee is at load {knee})",
            paper="1",
            ours=f"{said(span(equals))} up to {HALF_LOAD:g}",
            verdict=judged(*(as_gain(each, 1) for each in equals)),
        )
        static = [self.gain(point, FASTER_TRANSFORMER) for point in low.values()]
        yield Claim(
            where="Fig. 9(a)",
            says="at low rates half of fastertransformer",
            paper=f"{PAPER_STATIC:g}",
            ours=said(span(static)),
            verdict=judged(*(as_gain(each, PAPER_STATIC) for each in static)),
            reason=f"at load {HALF_LOAD:g}: "
            + reason_of(
                self.gain(low[HALF_LOAD], FASTER_TRANSFORMER),
                {NARROW_STATIC.name: self._narrow_static()},
                PAPER_STATIC,
            ),
        )
        for over, least in ((ORCA, PAPER_ABOVE_KNEE), (FASTER_TRANSFORMER, PAPER_FT_ABOVE_KNEE)):
            gains = [self.gain(point, over) for point in above.values()]
            yield Claim(
                where="Fig. 9(a)",
                says=f"above the knee at least, over {over}",
                paper=f"{least:g}",
                ours=said(span(gains)),
                verdict=judged(*(as_gain(each, least, inf) for each in gains)),
                reason=self._varied(over, least, LONGER_RUN),
            )

    def _narrow_static(self) -> float | None:
        """FasterTransformer's mean in narrow batches relative to fastserve's, at a low rate."""
        narrow = self.scope.narrow_static(self.capacity_rps)
        mine = self.mean(loaded(END_TO_END, HALF_LOAD, self.capacity_rps), FASTSERVE, mean_jct_s)
        return ratio(self.mean(narrow, FASTER_TRANSFORMER, mean_jct_s), mine)

    def _cv_claims(self) -> Iterable[Claim]:
        yield from self._range_claims(CV_AXIS, "Fig. 9(b)")
        gains = [self.gain(point, ORCA) for point in self.points(CV_AXIS).values()]
        yield Claim(
            where="Fig. 9(b)",
            says="the burstier the arrivals, the larger the gain over orca",
            paper="rising",
            ours=" ".join(map(times, gains)),
            verdict=judged(as_trend(gains, rising=True)),
            reason=self._said_of_rise(CV_AXIS, {f"at load {LOW_LOAD:g}, below the knee": LOW_CV_AXIS}),
        )

    def _theta_claims(self) -> Iterable[Claim]:
        yield from self._range_claims(THETA_AXIS, "Fig. 9(c)")
        points = self.points(THETA_AXIS).values()
        gains = [self.gain(point, ORCA) for point in points]
        means = [self.mean(point, FASTSERVE, mean_jct_s) for point in points]
        yield Claim(
            where="Fig. 9(c)",
            says="the more skewed the lengths, the larger the gain over orca",
            paper="rising",
            ours=" ".join(map(times, gains)),
            verdict=judged(as_trend(gains, rising=True)),
            reason=self._said_of_rise(THETA_AXIS, {f"at load {LOAD:g} of each": EQUAL_LOAD_AXIS}),
        )
        yield Claim(
            where="Fig. 9(c)",
            says="mean JCT rises as theta falls",
            paper="falling in theta",
            ours=" ".join(f"{times(mean)} s" for mean in means),
            verdict=judged(as_trend(means, rising=False)),
        )

    def _said_of_rise(self, axis: str, others: Mapping[str, str]) -> str:
        """The last gain over orca along an axis relative to the first, and along other axes."""
        tried = {name: self._rise(other) for name, other in others.items()}
        return f"last over first: {reason_of(self._rise(axis), tried, inf)}"

    def _rise(self, axis: str) -> float | None:
        gains = [self.gain(point, ORCA) for point in self.points(axis).values()]
        return ratio(gains[-1], gains[0])
