"""FastServe's KV management apart from its queues (Fig. 11), the slots it keeps free, and its peak of KV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.claims import Claim, as_gain, as_trend, judged, reason_of
from headway_reproduce.fastserve.findings import (
    ABLATED_HEADINGS,
    LATENCIES,
    FastServeFindings,
    largest,
    mean_jct_s,
    sensitivity,
    times,
)
from headway_reproduce.fastserve.scope import AXES, CV_AXIS, OVERLOAD, RATE_AXIS, THETA_AXIS
from headway_reproduce.fastserve.setting import (
    DEFER,
    FASTSERVE,
    FCFS,
    LOAD,
    REACTIVE,
    RECOMPUTE,
    SINGLE,
    SMALL,
    FastServePoint,
)
from headway_reproduce.study import ratio

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
_HEADINGS = {**ABLATED_HEADINGS, SLOTS_AXIS: "share of the KV blocks"}
_SLOT_NAMES = {"idle_jobs": "K, slots kept free", "burst_levels": "K', levels that foretell a burst"}


class MemoryFindings(FastServeFindings):
    """FastServe's KV management compared with others, and with other settings of its own."""

    def points(self, axis: str) -> Mapping[float, FastServePoint]:
        """Setting -> point."""
        if axis == SLOTS_AXIS:
            return self.scope.with_memory(self.capacity_rps)
        return self.scope.ablated(axis, self.capacity_rps)

    def part(self) -> StudyPart:
        """Four ways to manage KV over four axes, the slots kept free, and the peak of KV."""
        axes = (*AXES, SLOTS_AXIS)
        points = dict.fromkeys(point for axis in axes for point in self.points(axis).values())
        return StudyPart(
            title="Fig. 11: KV management alone",
            text=self.unfinished(points, self.scope.memories),
            tables=[*map(self._axis_table, axes), self._slots_table(), self._peak_table()],
            charts=[*map(self._axis_chart, axes)],
        )

    def _axis_chart(self, axis: str) -> Chart:
        curves = {policy: policy for policy in self.scope.memories}
        return self.jct_chart(
            f"fig11-{axis}",
            SINGLE,
            dict(self.points(axis)),
            curves,
            _HEADINGS[axis],
            doubling=axis == CV_AXIS,
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

    def _slots(self, name: str) -> dict[str, float | None]:
        """Value of K or K' -> mean JCT in seconds."""
        points = self.scope.slot_points(self.capacity_rps).items()
        return {
            str(value): self.mean(point, FASTSERVE, mean_jct_s)
            for (each, value), point in points
            if each == name
        }

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
        for name, called in _SLOT_NAMES.items():
            found = sensitivity(self._slots(name).values())
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
