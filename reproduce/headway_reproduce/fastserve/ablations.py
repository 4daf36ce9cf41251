"""The ablations on one GPU: FastServe's queues apart from its memory (Fig. 10), and its memory apart from its queues
(Fig. 11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from headway.lab.policy_choice import label
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.claims import Claim, as_above_one, as_gain, as_trend, as_value, judged, reason_of
from headway_reproduce.fastserve.cells import (
    ABLATED,
    AXES,
    CV_AXIS,
    DEFER,
    FASTSERVE,
    FCFS,
    FIXED_PRIORITY,
    LOAD,
    NO_PREEMPT,
    OVERLOAD,
    PREEMPT,
    RATE_AXIS,
    REACTIVE,
    RECOMPUTE,
    SCHEDULERS,
    THETA_AXIS,
    FastServePoint,
)
from headway_reproduce.fastserve.findings import (
    ABLATED_HEADINGS,
    LATENCIES,
    FastServeFindings,
    largest,
    mean_jct_s,
    said,
    sensitivity,
    times,
)
from headway_reproduce.fastserve.fixed_points import PAPER_FULL_RPS
from headway_reproduce.fastserve.machine import SINGLE, SMALL
from headway_reproduce.study import chart, ratio, span

PAPER_FIXED_GAIN = 13.9
"""Gain over fixed priority, in the later version."""
PAPER_DEFER = {RATE_AXIS: 2.3, CV_AXIS: 3.5}
"""Axis -> largest gain over deferring (section 6.3)."""
PAPER_REACTIVE_GAIN = 1.4
"""Gain over swapping only when memory is full, as CV varies."""
PAPER_V3 = {RECOMPUTE: 2.7, REACTIVE: 1.7}
"""The same gains in the later version."""
PAPER_PEAK_KV = 7.0
"""Peak KV relative to first come, first served."""
SLOTS_AXIS = "slots"
"""Fig. 11(d): the size of the device's KV memory."""
_SHOWN = (*SCHEDULERS, FCFS)
_SETTINGS = {"quantum": "first quantum, in decode steps", "ratio": "quantum ratio"}
_HEADINGS = {**ABLATED_HEADINGS, SLOTS_AXIS: "share of the KV blocks"}
_SLOT_NAMES = {"idle_jobs": "K, slots kept free", "burst_levels": "K', levels that foretell a burst"}


class Ablations(FastServeFindings):
    """The axes of the ablations, and other values of one setting above capacity."""

    def points(self, axis: str) -> Mapping[float, FastServePoint]:
        """Setting -> point."""
        if axis == SLOTS_AXIS:
            return self.scope.with_memory(self.capacity_rps)
        return self.scope.ablated(axis, self.capacity_rps)

    def _chart(self, figure: str, axis: str, policies: Mapping[str, str]) -> Chart:
        return self.jct_chart(
            f"{figure}-{axis}", SINGLE, self.points(axis), policies, _HEADINGS[axis], doubling=axis == CV_AXIS
        )


# ---- the queues ----------------------------------------------------------------------------------------


class Scheduler(Ablations):
    """FastServe's queues compared with other orders, and with other quanta."""

    def parts(self) -> list[StudyPart]:
        """The variants over rate, CV and theta; their quanta; other orders of the same engine."""
        settings = [self._settings_table()]
        if self.scope.starve_s:
            settings.append(self._starvation_table())
        return [
            StudyPart(
                title="Fig. 10(a) to (c): the scheduler alone",
                tables=[self._axis_table(axis) for axis in AXES],
                charts=[self._chart("fig10", axis, {label(each): each for each in _SHOWN}) for axis in AXES],
            ),
            StudyPart(
                title="Fig. 10(d): quanta, and other orders",
                tables=[*settings, self._orders_table()],
                charts=[self._ratio_chart()],
            ),
        ]

    # ---- over rate, CV and theta -------------------------------------------------------------------

    def _axis_table(self, axis: str) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, point in self.points(axis).items():
            means = [self.mean(point, policy, mean_jct_s) for policy in _SHOWN]
            gains = [self.gain(point, policy) for policy in _SHOWN[1:]]
            rows.append([f"{setting:g}", point.rate_rps, *means, *gains])
        return self.table(
            f"fig10-{axis}",
            f"Mean job completion time in seconds, and over fastserve's ({SINGLE.title})",
            [
                *(_HEADINGS[axis], "req/s"),
                *map(label, _SHOWN),
                *(f"{policy} over fastserve" for policy in _SHOWN[1:]),
            ],
            rows,
        )

    # ---- quanta ------------------------------------------------------------------------------------

    def swept(self, policy: str, setting: str) -> dict[float, float | None]:
        """Value of a setting of the queues -> mean JCT."""
        points = self.scope.quantum_points(policy, self.capacity_rps)
        return {
            value: self.mean(point, policy, mean_jct_s)
            for (name, value), point in points.items()
            if name == setting
        }

    def _settings_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, said_as in _SETTINGS.items():
            found = {policy: self.swept(policy, setting) for policy in SCHEDULERS}
            for value in found[FASTSERVE]:
                rows.append([said_as, f"{value:g}", *(found[policy][value] for policy in SCHEDULERS)])
            rows.append(
                [said_as, "most / least", *(sensitivity(found[policy].values()) for policy in SCHEDULERS)]
            )
        return self.table(
            "fig10-quanta",
            f"Mean job completion time in seconds at load {OVERLOAD:g} against the quanta ({SINGLE.title})",
            ["setting", "value", *map(label, SCHEDULERS)],
            rows,
            f"A decode step of one job takes {1e3 * SINGLE.decode_step_s():.1f} ms, a quantum is twice the one above.",
            keys=2,
        )

    def _ratio_chart(self) -> Chart:
        curves = {label(policy): [*self.swept(policy, "ratio").items()] for policy in SCHEDULERS}
        return chart(
            "fig10-ratio",
            f"Mean JCT at load {OVERLOAD:g}, {SINGLE.title}",
            curves,
            "quantum ratio, simulated",
            "seconds",
        )

    def _starvation_table(self) -> StudyTable:
        rows: list[list[Value]] = [
            [f"{starve_s:g}", *(self.mean(point, FASTSERVE, number) for number in LATENCIES)]
            for starve_s, point in self.scope.starved(self.capacity_rps).items()
        ]
        return self.table(
            "starvation",
            f"How long a job waits before it is promoted, at load {OVERLOAD:g} ({SINGLE.title})",
            ["seconds", "mean JCT s", "p99 JCT s"],
            rows,
            "The later version's text has 0.3 s; the released code 3 s, which is the preset's.",
        )

    def _orders_table(self) -> StudyTable:
        point = self.scope.stressed(self.capacity_rps)
        rows: list[list[Value]] = []
        for policy in dict.fromkeys([*SCHEDULERS, *self.scope.other_orders]):
            numbers = [self.mean(point, policy, number) for number in LATENCIES]
            paper = PAPER_FIXED_GAIN if policy == FIXED_PRIORITY else None
            rows.append([label(policy), *numbers, self.gain(point, policy), paper])
        return self.table(
            "orders",
            f"Other orders at load {OVERLOAD:g} ({SINGLE.title})",
            ["policy", "mean JCT s", "p99 JCT s", "over fastserve's mean", "paper: up to"],
            rows,
            "The paper's gain over fixed priority is of its later version, over shares of prompts and answers.",
        )

    # ---- what the paper says -----------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """Statements of sections 4.1 and 6.3 about the queues."""
        return [
            *_iteration_claims(),
            *self._rate_claims(),
            *self._theta_claims(),
            *self._quantum_claims(),
            *self._order_claims(),
        ]

    def _over(self, policy: str, axis: str) -> list[float | None]:
        """A policy's mean relative to fastserve's along an axis."""
        return [self.gain(point, policy) for point in self.points(axis).values()]

    def _rate_claims(self) -> Iterable[Claim]:
        points = self.points(RATE_AXIS)
        lowest = next(iter(points.values()))
        alike = sensitivity(self.mean(lowest, policy, mean_jct_s) for policy in _SHOWN)
        yield Claim(
            where="Fig. 10(a)",
            says="at low rates all three schedulers are alike, and first come, first served",
            paper="1",
            ours=times(alike),
            verdict=judged(as_gain(alike, 1)),
            reason=reason_of(
                alike,
                {
                    f"without {PREEMPT}": sensitivity(
                        self.mean(lowest, policy, mean_jct_s) for policy in _SHOWN if policy != PREEMPT
                    )
                },
                1,
            ),
        )
        killed = self._over(PREEMPT, RATE_AXIS)
        yield Claim(
            where="Fig. 10(a)",
            says="with the rate, mlfq-preempt loses time to work done again",
            paper="rising",
            ours=" ".join(map(times, killed)),
            verdict=judged(as_trend(killed, rising=True)),
        )
        mine, theirs = (self._knee_rps(policy) for policy in (FASTSERVE, NO_PREEMPT))
        yield Claim(
            where="Fig. 10(a)",
            says=f"mlfq-no-preempt rises sharply just above {PAPER_FULL_RPS:g} req/s, fastserve later",
            paper=f"{PAPER_FULL_RPS:g}",
            ours=f"{times(theirs)}, fastserve {times(mine)}",
            verdict=judged(as_above_one(ratio(mine, theirs))),
            reason=self._why_of_skipping(),
        )

    def _why_of_skipping(self) -> str:
        """The time of mlfq-no-preempt relative to fastserve, with quanta that more prompts outlast."""
        point = self.scope.stressed(self.capacity_rps)
        mine, theirs = (self.swept(policy, "quantum") for policy in (FASTSERVE, NO_PREEMPT))
        shortest, longest = min(mine), max(mine)
        tried = {
            f"first quanta of {steps:g} decode steps": ratio(theirs[steps], mine[steps])
            for steps in (shortest, longest)
        }
        return (
            f"at load {OVERLOAD:g} mlfq-no-preempt over fastserve: "
            f"{reason_of(self.gain(point, NO_PREEMPT), tried, inf)}"
        )

    def _knee_rps(self, policy: str) -> float | None:
        """The rate at which a policy's mean has doubled."""
        found = self.knee(self.points(RATE_AXIS), policy)
        return found.setting * self.capacity_rps(ABLATED) if found and found.missed else None

    def _theta_claims(self) -> Iterable[Claim]:
        gaps = self._over(NO_PREEMPT, THETA_AXIS)
        yield Claim(
            where="Fig. 10(c)",
            says="the less skewed the lengths, the larger the gap of mlfq-no-preempt",
            paper="falling in theta",
            ours=" ".join(map(times, gaps)),
            verdict=judged(as_trend(gaps, rising=False)),
            reason=self._why_of_skipping(),
        )
        points = [point for axis in AXES for point in self.points(axis).values()]
        worse = span(self.ratio(point, NO_PREEMPT, FCFS, mean_jct_s) for point in points)
        yield Claim(
            where="section 4.1",
            says="without skip-join MLFQ becomes round robin, at times worse than first come, first served",
            paper="above 1",
            ours=said(worse),
            verdict=judged(as_above_one(None if worse is None else worse[1])),
            reason=self._why_of_skipping(),
        )

    def _quantum_claims(self) -> Iterable[Claim]:
        mine = sensitivity(self.swept(FASTSERVE, "ratio").values())
        yield Claim(
            where="Fig. 10(d)",
            says="fastserve is insensitive to the quantum ratio",
            paper="1",
            ours=times(mine),
            verdict=judged(as_gain(mine, 1)),
            reason=reason_of(
                mine,
                {"the first quantum varied instead": sensitivity(self.swept(FASTSERVE, "quantum").values())},
                1,
            ),
        )
        for policy in (PREEMPT, NO_PREEMPT):
            means = [*self.swept(policy, "ratio").values()]
            first = [*self.swept(policy, "quantum").values()]
            yield Claim(
                where="Fig. 10(d)",
                says=f"larger quanta shorten {policy}'s mean",
                paper="falling",
                ours=" ".join(f"{times(mean)} s" for mean in means),
                verdict=judged(as_trend(means, rising=False)),
                reason=f"with the first quantum: {' '.join(map(times, first))} s",
            )

    def _order_claims(self) -> Iterable[Claim]:
        stressed, alone = (
            self.ratio(point, NO_PREEMPT, PREEMPT, mean_jct_s)
            for point in (self.scope.stressed(self.capacity_rps), self.scope.killed_alone(self.capacity_rps))
        )
        yield Claim(
            where="Fig. 10",
            says="blocking costs more than killing: mlfq-no-preempt over mlfq-preempt",
            paper="above 1",
            ours=times(stressed),
            verdict=judged(as_above_one(stressed)),
            reason="a killed step takes the work of its whole batch: "
            f"{reason_of(stressed, {'batches of one': alone}, inf)}",
        )
        if FIXED_PRIORITY in self.scope.other_orders:
            fixed = self.gain(self.scope.stressed(self.capacity_rps), FIXED_PRIORITY)
            yield Claim(
                where="later version",
                says="mean over fixed priority, largest",
                paper=f"{PAPER_FIXED_GAIN:g}",
                ours=times(fixed),
                verdict=judged(as_gain(fixed, PAPER_FIXED_GAIN)),
            )
        starved = self.scope.starved(self.capacity_rps)
        if starved:
            means, tails = (
                [self.mean(p, FASTSERVE, number) for p in starved.values()] for number in LATENCIES
            )
            yield Claim(
                where="section 4.1",
                says="the limit of starvation trades the mean against the tail",
                paper="mean falling, tail rising",
                ours=f"mean {' '.join(map(times, means))} s, p99 {' '.join(map(times, tails))} s",
                verdict=judged(as_trend(means, rising=False), as_trend(tails, rising=True)),
            )


def _iteration_claims() -> Iterable[Claim]:
    """The premise of section 4.1: the first iteration grows with the prompt, the others hardly do."""
    short_prompt, long_prompt = 512, 1024
    firsts = [SINGLE.iteration_s(tokens) for tokens in (short_prompt, long_prompt)]
    later = [SINGLE.iteration_s(1, tokens) for tokens in (short_prompt, long_prompt)]
    growth = firsts[1] / firsts[0], later[1] / later[0]
    yield Claim(
        where="section 4.1",
        says="the first iteration grows about linearly with the prompt",
        paper="2 for twice as long",
        ours=f"{growth[0]:.2f} from {short_prompt} to {long_prompt:,} tokens",
        verdict=judged(as_value(growth[0], long_prompt / short_prompt)),
    )
    yield Claim(
        where="section 4.1",
        says="later iterations hardly grow with it",
        paper="1",
        ours=f"{growth[1]:.2f}",
        verdict=judged(as_gain(growth[1], 1)),
    )


# ---- the memory ----------------------------------------------------------------------------------------


class MemoryFindings(Ablations):
    """FastServe's KV management compared with others, and with other settings of its own."""

    def part(self) -> StudyPart:
        """Four ways to manage KV over four axes, the slots kept free, and the peak of KV."""
        axes = (*AXES, SLOTS_AXIS)
        points = dict.fromkeys(point for axis in axes for point in self.points(axis).values())
        return StudyPart(
            title="Fig. 11: KV management alone",
            text=self.unfinished(points, self.scope.memories),
            tables=[*map(self._axis_table, axes), self._slots_table(), self._peak_table()],
            charts=[
                self._chart("fig11", axis, {each: each for each in self.scope.memories}) for axis in axes
            ],
        )

    def _axis_table(self, axis: str) -> StudyTable:
        policies = self.scope.memories
        rows: list[list[Value]] = []
        for setting, point in self.points(axis).items():
            means = [self.mean(point, policy, mean_jct_s) for policy in policies]
            gains = [self.gain(point, over) for over in policies[1:]]
            swaps = [round(self.count(point, policy, "swaps")) for policy in (FASTSERVE, REACTIVE)]
            rows.append([f"{setting:g}", *means, *gains, *swaps])
        over = [f"over {policy}" for policy in policies[1:]]
        return self.table(
            f"fig11-{axis}",
            f"Mean job completion time in seconds, and fastserve's gains ({SINGLE.title})",
            [_HEADINGS[axis], *policies, *over, f"swaps, {FASTSERVE}", f"swaps, {REACTIVE}"],
            rows,
            f"At load {LOAD:g}." if axis == SLOTS_AXIS else "",
        )

    def _slots_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for (name, value), point in self.scope.slot_points(self.capacity_rps).items():
            means = [self.mean(point, FASTSERVE, number) for number in LATENCIES]
            rows.append([_SLOT_NAMES[name], value, *means, round(self.count(point, FASTSERVE, "swaps"))])
        return self.table(
            "slots",
            f"Slots that fastserve keeps free, at load {OVERLOAD:g} ({SINGLE.title})",
            ["setting", "value", "mean JCT s", "p99 JCT s", "swaps"],
            rows,
            "One is varied, the other as it stands: K a batch, K' 2.",
            keys=2,
        )

    def _peak_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for name, point in self.scope.peaks(self.capacity_rps).items():
            theirs, ours = (self.count(point, policy, "peak_kv_blocks") for policy in (FCFS, FASTSERVE))
            rows.append([name, round(theirs), round(ours), ratio(ours, theirs), PAPER_PEAK_KV])
        return self.table(
            "peak-kv",
            f"Most KV blocks at once, on the device and the host ({SMALL.title})",
            ["arrivals", FCFS, FASTSERVE, "times", "paper: up to"],
            rows,
            "Answers of up to 20 tokens. The paper gives the rate and the CV, not its engine's batch.",
        )

    def peaks(self) -> list[float | None]:
        """fastserve's peak of KV relative to first come, first served: in the paper's setting, then above capacity."""
        return [
            self.ratio(point, FASTSERVE, FCFS, lambda result: float(result.meter.peak_kv_blocks))
            for point in self.scope.peaks(self.capacity_rps).values()
        ]

    # ---- what the paper says -----------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """Statements of sections 4.2 and 6.3 about memory."""
        return [*self._gain_claims(), *self._trend_claims(), *self._setting_claims()]

    def _gain_claims(self) -> Iterable[Claim]:
        asked = (
            ("Fig. 11(a)", DEFER, RATE_AXIS, PAPER_DEFER[RATE_AXIS]),
            ("Fig. 11(b)", DEFER, CV_AXIS, PAPER_DEFER[CV_AXIS]),
            ("Fig. 11(b)", REACTIVE, CV_AXIS, PAPER_REACTIVE_GAIN),
            ("later version", REACTIVE, RATE_AXIS, PAPER_V3[REACTIVE]),
            ("later version", RECOMPUTE, RATE_AXIS, PAPER_V3[RECOMPUTE]),
        )
        for where, over, axis, paper in asked:
            if over not in self.scope.memories:
                continue
            found = largest(self.gains(self.points(axis).values(), over))
            yield Claim(
                where=where,
                says=f"mean JCT over {over}, largest as {axis} varies",
                paper=f"{paper:g}",
                ours=times(found),
                verdict=judged(as_gain(found, paper)),
                reason=self._said_of_memory(over, paper),
            )

    def _said_of_memory(self, over: str, paper: float) -> str:
        """The gain with less of the memory, with KV in slots, and with the longest lengths."""
        shares, thetas = self.points(SLOTS_AXIS), self.points(THETA_AXIS)
        slots = self.scope.in_slots(self.capacity_rps)
        tried = {
            **{
                f"{share:g} of the KV blocks": self.gain(point, over)
                for share, point in shares.items()
                if share < 1
            },
            f"slots of {slots.block_tokens:,} tokens": self.gain(slots, over),
            f"theta {min(thetas):g}": self.gain(thetas[min(thetas)], over),
        }
        return f"at load {LOAD:g}: {reason_of(self.gain(shares[1.0], over), tried, paper)}"

    def _trend_claims(self) -> Iterable[Claim]:
        asked = (
            ("Fig. 11(a)", "the higher the rate", RATE_AXIS, True),
            ("Fig. 11(c)", "the less skewed the lengths", THETA_AXIS, False),
            ("Fig. 11(d)", "the fewer KV slots", SLOTS_AXIS, False),
        )
        for where, says, axis, rising in asked:
            for over in (DEFER, REACTIVE):
                gains = [self.gain(point, over) for point in self.points(axis).values()]
                if axis == SLOTS_AXIS:
                    gains.reverse()
                yield Claim(
                    where=where,
                    says=f"{says}, the larger the gain over {over}",
                    paper="rising" if rising else "falling",
                    ours=" ".join(map(times, gains)),
                    verdict=judged(as_trend(gains, rising=rising)),
                    reason=self._said_of_memory(over, inf),
                )

    def _setting_claims(self) -> Iterable[Claim]:
        points = self.scope.slot_points(self.capacity_rps).items()
        for name, called in _SLOT_NAMES.items():
            found = sensitivity(
                self.mean(point, FASTSERVE, mean_jct_s) for (each, _), point in points if each == name
            )
            yield Claim(
                where="section 4.2",
                says=f"insensitive to {called}",
                paper="1",
                ours=times(found),
                verdict=judged(as_gain(found, 1)),
            )
        peaks = self.peaks()
        yield Claim(
            where="section 4.2",
            says="peak of KV over first come, first served",
            paper=f"{PAPER_PEAK_KV:g}",
            ours=times(peaks[0]),
            verdict=judged(as_gain(peaks[0], PAPER_PEAK_KV)),
            reason=f"at {OVERLOAD:g} of capacity, where jobs queue: {times(peaks[1])}" if peaks[1:] else "",
        )
