"""Magnus's runs: every system at every rate (Fig. 8, 9), step by step (Fig. 10, 11), beside vLLM as it is now, under
other thresholds and with one thing changed; what decisions cost; and the toy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway.statistics import mean, mean_of_all
from headway_reproduce.magnus.accuracy import Accuracy
from headway_reproduce.magnus.cells import (
    PHI,
    PHI_SEED,
    STRETCH,
    STRETCH_LOAD,
    UNCHANGED,
    MagnusChange,
    MagnusPoint,
    MagnusRun,
    MagnusScope,
)
from headway_reproduce.magnus.data import load_tasks
from headway_reproduce.magnus.engine import Toy, toy
from headway_reproduce.magnus.setting import (
    BASELINES,
    CCB,
    MAGNUS,
    PAPER_TOY_MAGNUS_S,
    PAPER_TOY_RATIO,
    PAPER_TOY_VS_S,
    POLICIES,
    PREDICTING,
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
    "mean_batch": "mean batch",
    "length_rmse": "RMSE of lengths, tokens",
    "refits": "fits",
    "time_rmse_s": "RMSE of batch times, s",
    "join_us": "joining a batch",
    "choose_us": "choosing a batch",
}
"""Field of a result -> its name in tables."""
_RATES = ("throughput_rps", "mean_rt_s", "p95_rt_s", "valid_tps", "total_tps", "oom", "mean_batch")
_SWEPT = ("throughput_rps", "mean_rt_s", "p95_rt_s", "mean_batch", "oom")
_CHANGED = ("mean_rt_s", "mean_batch", "length_rmse", "oom")
_LEARNED = ("length_rmse", "refits", "time_rmse_s", "oom")
_DECISIONS = ("join_us", "choose_us")
"""Fields that each of the tables shows."""
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
    simulate = staticmethod(simulate_magnus)
    scope: MagnusScope

    def phases(self) -> Iterator[Sequence[MagnusRun]]:
        """The phases: first capacity, which the rates of all others are shares of."""
        yield self.scope.capacity_runs()
        yield self.scope.loaded_runs(self.capacity_rps)

    def run(self, point: MagnusPoint, policy: str, seed: int) -> MagnusRun:
        """As `PointFindings.run`."""
        return self.scope.run(point, policy, seed, self.capacity_rps)

    def capacity_rps(self, change: MagnusChange = UNCHANGED) -> float:
        """The throughput of vs with all requests at once."""
        return self.value(MagnusPoint(load=0.0, change=change), VS, "throughput_rps") or 0.0

    def value(self, point: MagnusPoint, policy: str, key: str) -> float | None:
        """The mean over seeds of a result's value."""
        return mean_of_all(getattr(result, key) for result in self.results(point, policy))

    def values(self, point: MagnusPoint, policy: str, keys: Iterable[str]) -> list[float | None]:
        """`value` under each key."""
        return [self.value(point, policy, key) for key in keys]

    def gain(self, point: MagnusPoint, policy: str, over: str, gain: MagnusGain) -> float | None:
        """One policy's gain over another, mean over seeds: both served the same requests."""
        pairs = zip(self.results(point, policy), self.results(point, over), strict=True)
        return mean_of_all(gain.of(mine, theirs) for mine, theirs in pairs)

    def gains(self, point: MagnusPoint, policy: str, over: str) -> list[float | None]:
        """Each of GAINS for one policy over another."""
        return [self.gain(point, policy, over, gain) for gain in GAINS.values()]

    # ---- every policy at every rate ----------------------------------------------------------------

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

    def rates_part(self) -> StudyPart:
        """Every policy's numbers at every rate."""
        points, policies = self.scope.rates(), (*POLICIES, TODAY)
        title = "Throughput and response time (Fig. 8 and 9)"
        table = self.table(
            "rates",
            title,
            [LOAD, "policy", *_headings(_RATES)],
            [
                [f"{point.load:g}", policy, *self.values(point, policy, _RATES)]
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

    # ---- Phi ---------------------------------------------------------------------------------------

    def phi_part(self) -> StudyPart:
        """Magnus under each threshold."""
        of_load: dict[float, list[MagnusPoint]] = {}
        for point in self.scope.phis():
            of_load.setdefault(point.load, []).append(point)
        best = {load: min(points, key=self._mean_rt_s) for load, points in of_load.items()}
        said = ", ".join(f"{point.phi} at load {load:g}" for load, point in best.items())
        table = self.table(
            "phi",
            "The threshold of wasted memory access, Phi",
            [LOAD, "Phi", *_headings(_SWEPT)],
            [
                [f"{point.load:g}", str(point.phi), *self.values(point, MAGNUS, _SWEPT)]
                for point in [*self.scope.phis(), *self.scope.stretched_phis()]
            ],
            f"Seed {PHI_SEED}, which nothing else is run with. The paper does not give its value. Rows of load "
            f"{STRETCH_LOAD:g} that come last are of texts {STRETCH} times as long.",
            keys=2,
        )
        text = f"All else is run with Phi {PHI}. Least mean response time: {said}."
        return StudyPart(title="Phi", text=[text], tables=[table])

    def _mean_rt_s(self, point: MagnusPoint) -> float:
        return self.value(point, MAGNUS, "mean_rt_s") or 0.0

    # ---- one thing changed at a time ---------------------------------------------------------------

    def reasons_part(self) -> StudyPart:
        """Magnus's gains with one thing changed."""
        changed = self.scope.changed()
        plain = [MagnusPoint(load=point.load) for point in next(iter(changed.values()))]
        over = [(gain, base) for base in (VS, CCB) for gain in MAIN_GAINS]
        table = self.table(
            "reasons",
            "Gains of magnus with one thing changed",
            ["changed", "load", *(f"{gain.heading}, {base}" for gain, base in over), *_headings(_CHANGED)],
            [
                [
                    *(name, f"{point.load:g}"),
                    *(self.gain(point, MAGNUS, base, gain) for gain, base in over),
                    *self.values(point, MAGNUS, _CHANGED),
                ]
                for name, points in {"as it stands": plain, **changed}.items()
                for point in points
            ],
            "Loads are of what vs gets through on the engine as changed. Not in the paper.",
            keys=2,
        )
        return StudyPart(
            title="Where it differs from the paper, and why", text=[self._said_of_batches()], tables=[table]
        )

    def _said_of_batches(self) -> str:
        """What limits a batch, with the numbers that show it."""
        outputs = [row.output_tokens for task in load_tasks(self.scope.source) for row in task.workload]
        point = self.scope.rates()[-1]
        members = self.value(point, MAGNUS, "mean_batch") or 0.0
        return (
            f"An answer has {mean(outputs):.0f} tokens in the mean, so that a batch held by memory alone has "
            f"{members:.0f} members at load {point.load:g}. Memory is planned to the last token for the longest answer "
            "that is predicted; a batch that outgrows it loses its work."
        )

    # ---- what deciding costs -----------------------------------------------------------------------

    def overhead_part(self, found: Accuracy) -> StudyPart:
        """This machine's time for each decision, beside the simulated time."""
        point = self.scope.rates()[-1]
        decisions = self.table(
            "overhead",
            "CPU time of Magnus's decisions",
            ["decision", "µs"],
            [
                ["predicting a length", found.predict_us],
                *([KEYS[key], self.value(point, MAGNUS, key)] for key in _DECISIONS),
            ],
            f"Each for one request or batch, at load {point.load:g}, on one core.",
            measured_on="timed on this machine",
        )
        estimates = self.table(
            "estimates",
            "Errors of what was predicted while serving",
            [LOAD, "policy", *_headings(_LEARNED)],
            [
                [f"{point.load:g}", policy, *self.values(point, policy, _LEARNED)]
                for point in self.scope.rates()
                for policy in PREDICTING
            ],
            keys=2,
            detail=True,
        )
        return StudyPart(title="What deciding costs", tables=[decisions, estimates])


def _headings(keys: Iterable[str]) -> list[str]:
    return [KEYS[key] for key in keys]


# ---- the toy -------------------------------------------------------------------------------------------


def toy_part() -> StudyPart:
    """21 requests on one instance, the paper's seconds beside ours."""
    found = toy()
    table = StudyTable(
        name="toy",
        title="18 small requests and 3 large ones on one instance (section II)",
        measured_on="simulated, V100 32 GB",
        headings=["engine", "vs, s", "magnus, s", "ratio", "fitted overhead, ms a step"],
        rows=[
            ["paper", PAPER_TOY_VS_S, PAPER_TOY_MAGNUS_S, PAPER_TOY_RATIO, None],
            _toy_row("as it stands", found),
            _toy_row("a cache that is written in place", toy(copies=0.0)),
            _toy_row("a cache that is copied at half the rate", toy(copies=2.0)),
        ],
        note="Small: 10 tokens in and out; large: 1,000. Each batch of vs holds one large request; magnus serves "
        "a batch of 18 and one of 3.",
    )
    text = (
        f"The overhead of a step is the one constant that was fitted, to vs's {PAPER_TOY_VS_S:g} s: "
        f"{1e3 * found.fitted_overhead_s:.1f} ms. The ratio is {found.ratio:.2f}, in the paper {PAPER_TOY_RATIO:.1f}. "
        "Three batches of 1,000 steps against one make 3; the rest is that a step of 7 long contexts costs more than "
        "one of 3, in attention and in copying the cache."
    )
    return StudyPart(title="The toy", text=[text], tables=[table])


def _toy_row(name: str, found: Toy) -> list[Value]:
    return [name, found.vs_s, found.magnus_s, found.ratio, 1e3 * found.fitted_overhead_s]
