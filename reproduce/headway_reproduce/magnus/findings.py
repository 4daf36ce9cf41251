"""Magnus against all others at every rate (Fig. 8, 9), step by step (Fig. 10, 11), and beside vLLM as it is now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.results.study import Chart, StudyPart, Value
from headway.statistics import mean_of_all
from headway_reproduce.magnus.cells import UNCHANGED, MagnusChange, MagnusPoint, MagnusRun, MagnusScope
from headway_reproduce.magnus.setting import (
    BASELINES,
    MAGNUS,
    POLICIES,
    SIMULATED,
    STEPS,
    TODAY,
    VS,
)
from headway_reproduce.magnus.simulation import MagnusResult, simulate_magnus
from headway_reproduce.study import PointFindings, Range, chart, span

KEYS = {
    "throughput_rps": "requests/s",
    "mean_rt_s": "mean response time, s",
    "p95_rt_s": "95th percentile, s",
    "valid_tps": "valid tokens/s",
    "total_tps": "tokens/s, invalid ones too",
    "oom": "batches out of memory",
}
"""Field of a result -> its name in tables."""
LOAD = "load, of vs's capacity"
"""Its name in charts and tables."""
_KEEPS_UP = 0.9
"""A policy that serves a smaller share of the arriving requests is overloaded."""


@dataclass(frozen=True, slots=True)
class MagnusGain:
    """How one policy's number is compared with another's: as a relative increase or a relative reduction."""

    key: str
    heading: str
    shorter: bool = False

    def of(self, mine: MagnusResult, theirs: MagnusResult) -> float | None:
        """Mine over theirs less 1, or 1 less that ratio: above 0 is better. None if theirs is 0."""
        number, other = getattr(mine, self.key), getattr(theirs, self.key)
        if not other:
            return None
        more: float = number / other - 1
        return -more if self.shorter else more


GAINS = {
    "throughput": MagnusGain("throughput_rps", "more requests/s"),
    "mean_rt_cut": MagnusGain("mean_rt_s", "mean response time shorter by", shorter=True),
    "p95_rt_cut": MagnusGain("p95_rt_s", "95th percentile shorter by", shorter=True),
    "valid_tps": MagnusGain("valid_tps", "more valid tokens/s"),
    "total_tps": MagnusGain("total_tps", "more tokens/s, invalid ones too"),
}
"""Key of PAPER_RANGES -> the compared number. Source of the five: Fig. 8 and 9."""
MAIN_GAINS = (GAINS["throughput"], GAINS["mean_rt_cut"])
_GAIN_HEADINGS = [gain.heading for gain in GAINS.values()]


@dataclass(frozen=True)
class MagnusFindings(PointFindings[MagnusPoint, MagnusRun, MagnusResult]):
    """Magnus's runs."""

    measured_on = SIMULATED
    scope: MagnusScope

    def phases(self) -> Iterator[Sequence[MagnusRun]]:
        """The phases: first capacity, which the rates of all others are shares of."""
        yield self.scope.capacity_runs()
        yield self.scope.loaded_runs(self.capacity_rps)

    @property
    def simulate(self) -> Callable[[MagnusRun], MagnusResult]:
        """As `Runs.simulate`."""
        return simulate_magnus

    def run(self, point: MagnusPoint, policy: str, seed: int) -> MagnusRun:
        """As `PointFindings.run`."""
        return self.scope.run(point, policy, seed, self.capacity_rps)

    def capacity_rps(self, change: MagnusChange = UNCHANGED) -> float:
        """The throughput of vs with all requests at once."""
        return self.value(MagnusPoint(load=0.0, change=change), VS, "throughput_rps") or 0.0

    def value(self, point: MagnusPoint, policy: str, key: str) -> float | None:
        """The mean over seeds of a result's value."""
        return mean_of_all(getattr(result, key) for result in self.results(point, policy))

    def gain(self, point: MagnusPoint, policy: str, over: str, gain: MagnusGain) -> float | None:
        """One policy's gain over another, mean over seeds: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        return mean_of_all(gain.of(mine, theirs) for mine, theirs in pairs)

    def gains(self, point: MagnusPoint, policy: str, over: str) -> list[float | None]:
        """Each of GAINS for one policy over another."""
        return [self.gain(point, policy, over, gain) for gain in GAINS.values()]


class MagnusRates(MagnusFindings):
    """Every policy at every rate."""

    def overloaded(self) -> list[MagnusPoint]:
        """The points at which no baseline keeps up: only there can Magnus have more throughput than all of them."""
        return [
            point
            for point in self.scope.rates()
            if all(
                (self.value(point, base, "throughput_rps") or 0.0)
                < _KEEPS_UP * point.load * self.capacity_rps()
                for base in BASELINES
            )
        ]

    def span(self, points: Iterable[MagnusPoint], gain: MagnusGain) -> Range | None:
        """Magnus's least and largest gain over any of the baselines, at any of the points."""
        return span(self.gain(point, MAGNUS, base, gain) for point in points for base in BASELINES)

    def part(self) -> StudyPart:
        """Every policy's numbers at every rate."""
        points, shown, policies = self.scope.rates(), (*KEYS, "mean_batch"), (*POLICIES, TODAY)
        title = "Throughput and response time (Fig. 8 and 9)"
        table = self.table(
            "rates",
            title,
            [LOAD, "policy", *KEYS.values(), "mean batch"],
            [
                [f"{point.load:g}", policy, *(self.value(point, policy, key) for key in shown)]
                for point in points
                for policy in policies
            ],
            "Means over seeds. Response time is from arrival to the whole answer, which batches return together. "
            f"{TODAY} is vLLM as it is now, on the same instances.",
            keys=2,
        )
        drawn = ("throughput_rps", "mean_rt_s", "p95_rt_s", "total_tps")
        return StudyPart(
            title=title,
            text=self.unfinished(points, policies),
            tables=[table],
            charts=[self._chart(policies, key, "rates") for key in drawn],
        )

    def _chart(self, policies: Sequence[str], key: str, name: str) -> Chart:
        """One number of some policies against the load."""
        curves = {
            policy: [(point.load, self.value(point, policy, key)) for point in self.scope.rates()]
            for policy in policies
        }
        title = KEYS[key][0].upper() + KEYS[key][1:]
        return chart(f"{name}-{key.replace('_', '-')}", title, curves, f"{LOAD}, simulated", KEYS[key])

    # ---- step by step ------------------------------------------------------------------------------

    def ablation_part(self) -> StudyPart:
        """The contribution of each step over the one before."""
        rows: list[list[Value]] = [
            [f"{point.load:g}", f"{before} to {after}", *self.gains(point, after, before)]
            for point in self.scope.rates()
            for before, after in pairwise(STEPS)
        ]
        table = self.table(
            "ablation",
            "What each step adds to the one before (Fig. 10 and 11)",
            [LOAD, "step", *_GAIN_HEADINGS],
            rows,
            "glp: batches by predicted length, of 7 at most; abp: without that cap; magnus: the batch that has waited "
            "longest for its length goes first. In the paper every step is a gain.",
            keys=2,
            decimals=3,
        )
        return StudyPart(
            title="Step by step (Fig. 10 and 11)",
            tables=[table],
            charts=[self._chart(STEPS, key, "ablation") for key in ("throughput_rps", "mean_rt_s")],
        )

    # ---- vLLM as it is now -------------------------------------------------------------------------

    def today_part(self) -> StudyPart:
        """Whether batching by predicted length still pays on an engine with continuous batching."""
        points = self.scope.rates()
        wins = sum((self.gain(point, MAGNUS, TODAY, GAINS["mean_rt_cut"]) or 0.0) > 0 for point in points)
        verdict = (
            f"{TODAY} answers sooner than magnus at {len(points) - wins} of {len(points)} rates. Continuous batching "
            "over paged memory has neither padding nor members that wait for the longest, and takes in new requests "
            "at the next step: batches by predicted length are for engines that cannot do so."
        )
        table = self.table(
            "vs-vllm-today",
            f"Gains of magnus over {TODAY} on the same instances",
            [LOAD, *_GAIN_HEADINGS],
            [[f"{point.load:g}", *self.gains(point, MAGNUS, TODAY)] for point in points],
            "Less than 0 is worse. Same steps, same memory, same overhead a step; no copies of the cache, which vLLM "
            "writes in place. Not in the paper.",
        )
        return StudyPart(title="Against vLLM as it is now", text=[verdict], tables=[table])
