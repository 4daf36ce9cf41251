"""Magnus's threshold, the toy example, the cost of decisions, and the reasons for gains: one thing changed at a
time.
"""

from __future__ import annotations

from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import mean
from headway_reproduce.magnus.accuracy import Accuracy
from headway_reproduce.magnus.cells import MagnusPoint
from headway_reproduce.magnus.data import load_tasks
from headway_reproduce.magnus.engine import Toy, toy
from headway_reproduce.magnus.findings import LOAD, MAIN_GAINS, MagnusFindings
from headway_reproduce.magnus.setting import (
    CCB,
    MAGNUS,
    PAPER_TOY_MAGNUS_S,
    PAPER_TOY_RATIO,
    PAPER_TOY_VS_S,
    PHI,
    PHI_SEED,
    PREDICTING,
    STRETCH,
    STRETCH_LOAD,
    VS,
)

_SWEPT = {
    "throughput_rps": "requests/s",
    "mean_rt_s": "mean response time, s",
    "p95_rt_s": "95th percentile, s",
    "mean_batch": "mean batch",
    "oom": "batches out of memory",
}
_LEARNED = {
    "length_rmse": "RMSE of lengths, tokens",
    "refits": "fits",
    "time_rmse_s": "RMSE of batch times, s",
    "oom": "batches out of memory",
}
_DECISIONS = {"join_us": "joining a batch", "choose_us": "choosing a batch"}


class MagnusReasons(MagnusFindings):
    """Magnus's own runs with other thresholds and changes, and the time of its decisions."""

    # ---- Phi ---------------------------------------------------------------------------------------

    def phi_part(self) -> StudyPart:
        """Magnus under each threshold."""
        best: dict[float, MagnusPoint] = {}
        for point in self.scope.phis():
            if point.load not in best or self._mean_rt_s(point) < self._mean_rt_s(best[point.load]):
                best[point.load] = point
        said = ", ".join(f"{point.phi} at load {load:g}" for load, point in best.items())
        table = self.table(
            "phi",
            "The threshold of wasted memory access, Phi",
            [LOAD, "Phi", *_SWEPT.values()],
            [
                [f"{point.load:g}", str(point.phi), *(self.value(point, MAGNUS, key) for key in _SWEPT)]
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

    def part(self) -> StudyPart | None:
        """Magnus's gains with one thing changed; None where this is not run."""
        changed = self.scope.changed()
        if not changed:
            return None
        plain = [MagnusPoint(load=point.load) for point in next(iter(changed.values()))]
        rows: list[list[Value]] = []
        for name, points in {"as it stands": plain, **changed}.items():
            for point in points:
                gains = [self.gain(point, MAGNUS, base, gain) for base in (VS, CCB) for gain in MAIN_GAINS]
                keys = ("mean_rt_s", "mean_batch", "length_rmse", "oom")
                own = [self.value(point, MAGNUS, key) for key in keys]
                rows.append([name, f"{point.load:g}", *gains, *own])
        over = [f"{gain.heading}, {base}" for base in (VS, CCB) for gain in MAIN_GAINS]
        table = self.table(
            "reasons",
            "Gains of magnus with one thing changed",
            [
                *("changed", "load", *over, "mean response time, s", "mean batch", "RMSE of lengths, tokens"),
                "batches out of memory",
            ],
            rows,
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
        rows: list[list[Value]] = [["predicting a length", found.predict_us]]
        rows += [[heading, self.value(point, MAGNUS, key)] for key, heading in _DECISIONS.items()]
        decisions = self.table(
            "overhead",
            "CPU time of Magnus's decisions",
            ["decision", "µs"],
            rows,
            f"Each for one request or batch, at load {point.load:g}, on one core.",
            measured_on="timed on this machine",
        )
        estimates = self.table(
            "estimates",
            "Errors of what was predicted while serving",
            [LOAD, "policy", *_LEARNED.values()],
            [
                [f"{point.load:g}", policy, *(self.value(point, policy, key) for key in _LEARNED)]
                for point in self.scope.rates()
                for policy in PREDICTING
            ],
            keys=2,
            detail=True,
        )
        return StudyPart(title="What deciding costs", tables=[decisions, estimates])


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
