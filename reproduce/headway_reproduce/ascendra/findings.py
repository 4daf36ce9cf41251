"""Ascendra's goodput beside the others': against rate, with tighter targets, and in overload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headway.results.study import Chart, StudyPart
from headway.statistics import mean, mean_of_all
from headway_reproduce.ascendra.cells import (
    MAIN,
    SCALE_RATES,
    SIMULATED,
    UNCHANGED,
    AscendraCase,
    AscendraChange,
    AscendraRun,
    AscendraScope,
)
from headway_reproduce.ascendra.run import GOOD, AscendraResult, simulate_ascendra
from headway_reproduce.ascendra.services import ASCENDRA, SARATHI, SYSTEMS, Service
from headway_reproduce.study import Runs, chart, ratio

Number = Callable[[AscendraResult], float | None]
"""A value of a run; None where it has no such value."""
Curve = Sequence[tuple[float, float]]
"""(setting, share within targets), settings rising."""

NAMES = [service.name for service in SYSTEMS]


def goodput(result: AscendraResult) -> float:
    """Share of all requests within both targets."""
    return result.goodput


def dropped(result: AscendraResult) -> float:
    """Share of all requests that never started."""
    return result.dropped / result.requests


def late(result: AscendraResult) -> float:
    """Share of all requests that finished outside a target."""
    return result.late / result.requests


@dataclass(frozen=True)
class AscendraFindings(Runs[AscendraRun, AscendraResult]):
    """Ascendra's runs; a rate called a load is a share of the case's reference."""

    measured_on = SIMULATED
    simulate = staticmethod(simulate_ascendra)
    scope: AscendraScope

    def phases(self) -> Iterator[Sequence[AscendraRun]]:
        """The phases: first the reference, then the sweep, from which capacity is read."""
        yield self.scope.reference_runs()
        yield self.scope.sweep_runs(self.reference_rps)
        yield self.scope.further_runs(self.reference_rps, self.capacity_rps())

    def result(self, run: AscendraRun) -> AscendraResult:
        """The result of a run. Raises SimulationError for one that was not made."""
        return self.made(run, run.service.name, f"{run.case}, {run.rate_rps:g} req/s")

    def reference_rps(self, case: AscendraCase, change: AscendraChange = UNCHANGED) -> float:
        """The rate that a case's loads are shares of."""
        return self.result(self.scope.reference_run(case, change)).steady_rps or 0.0

    def capacity_rps(self) -> float:
        """Ascendra's capacity in the main case; the sweep's largest rate if the sweep does not pass it."""
        found = self.rate_at_good(MAIN, ASCENDRA)
        return self.scope.loads[-1] * self.reference_rps(MAIN) if found is None else found

    def at_load(
        self, load: float, service: Service, seed: int = 0, *, case: AscendraCase = MAIN
    ) -> AscendraResult:
        """The result of one seed."""
        return self.result(self.scope.run(case, service, load * self.reference_rps(case), seed))

    def at_rate(
        self, case: AscendraCase, rate_rps: float, service: Service, *, scale: float = 1.0
    ) -> list[AscendraResult]:
        """The results of all seeds at a rate."""
        runs = [
            self.scope.run(case, service, rate_rps, seed, slo_scale=scale)
            for seed in self.scope.seeds_of(case)
        ]
        return [self.result(run) for run in runs]

    def mean(
        self, case: AscendraCase, load: float, service: Service, number: Number = goodput
    ) -> float | None:
        """The mean over seeds; None where some seed has no such value."""
        return mean_of_all(map(number, self.at_rate(case, load * self.reference_rps(case), service)))

    def curve(self, case: AscendraCase, service: Service) -> Curve:
        """Goodput over requests a second."""
        rates = [load * self.reference_rps(case) for load in self.scope.loads]
        return [(rate_rps, mean(map(goodput, self.at_rate(case, rate_rps, service)))) for rate_rps in rates]

    def rate_at_good(self, case: AscendraCase, service: Service) -> float | None:
        """Requests a second at which nine in ten are still within their targets."""
        return crossing(self.curve(case, service))

    def rate_gain(self, case: AscendraCase, over: Service) -> float | None:
        """Ascendra's rate at nine in ten over another's."""
        return ratio(self.rate_at_good(case, ASCENDRA), self.rate_at_good(case, over))

    def changed_goodput(
        self, service: Service, load: float, change: AscendraChange, case: AscendraCase = MAIN
    ) -> float:
        """Goodput with one thing changed; a single seed."""
        rate_rps = load * self.reference_rps(case, change)
        return self.result(self.scope.run(case, service, rate_rps, change=change)).goodput

    # ---- goodput against rate ----------------------------------------------------------------------

    def rates_part(self) -> StudyPart:
        """Each system's curve in each case."""
        cases, loads = self.scope.cases, self.scope.loads
        capacity = self.table(
            "capacity",
            "Requests a second at which nine in ten are within both targets",
            ["case", "load of 1, req/s", *NAMES],
            [
                [
                    *(str(case), self.reference_rps(case)),
                    *(self.rate_at_good(case, service) for service in SYSTEMS),
                ]
                for case in cases
            ],
            "None where the sweep begins or ends beyond it.",
        )
        table = self.table(
            "goodput",
            "Share of requests within both targets",
            ["case", "load", "req/s", *NAMES],
            [
                [
                    *(str(case), load, load * self.reference_rps(case)),
                    *(self.mean(case, load, service) for service in SYSTEMS),
                ]
                for case in cases
                for load in loads
            ],
            f"A load of 1 is what {SARATHI.name} gets through of the case's requests sent all at once. "
            "With one budget of tokens a step it is today's vllm.",
            decimals=3,
            keys=2,
            detail=True,
        )
        charts = [self._chart(case) for case in cases]
        return StudyPart(title="Goodput against rate", tables=[capacity, table], charts=charts)

    def _chart(self, case: AscendraCase) -> Chart:
        curves = {
            service.name: [
                (load, share)
                for load, (_, share) in zip(self.scope.loads, self.curve(case, service), strict=True)
            ]
            for service in SYSTEMS
        }
        return chart(
            f"goodput-{_slug(case)}",
            f"Goodput, {case}",
            curves,
            "load, simulated",
            "share within targets",
            level=GOOD,
            doubling=False,
        )

    # ---- tighter targets ---------------------------------------------------------------------------

    def least_scale(self, share: float, service: Service) -> float | None:
        """The smallest factor at a share of Ascendra's capacity, mean over seeds of the baselines; None if no factor
        tried is enough.

        Ascendra decides by targets, so it is run with each factor. The others are run once, and the factor that each
        request would have needed is computed.
        """
        rate_rps = share * self.capacity_rps()
        if service is not ASCENDRA:
            return mean_of_all(result.needed_scale for result in self.at_rate(MAIN, rate_rps, service))
        return scale_at_good(
            [
                (scale, mean(map(goodput, self.at_rate(MAIN, rate_rps, service, scale=scale))))
                for scale in self.scope.scales
            ]
        )

    def targets_part(self) -> StudyPart:
        """The factors by share of capacity and system."""
        table = self.table(
            "slo-scale",
            f"Smallest factor on both targets that nine in ten are within ({MAIN})",
            ["rate, of Ascendra's capacity", *NAMES],
            [[share, *(self.least_scale(share, service) for service in SYSTEMS)] for share in SCALE_RATES],
            "Smaller is tighter. Ascendra decides by targets, so it is run with each of a few factors, the smallest "
            f"{self.scope.scales[0]:g}, and read off between two.",
        )
        return StudyPart(title="Tighter targets", tables=[table])

    # ---- overload with shedding --------------------------------------------------------------------

    def overload_share(self, service: Service, over: float, number: Number = goodput) -> float:
        """The mean over seeds of a share of all requests, by default of those within targets.

        `over` is the rate, as a share of Ascendra's capacity.
        """
        rate_rps = over * self.capacity_rps()
        runs = [self.scope.overload_run(service, rate_rps, seed) for seed in self.scope.seeds]
        return mean_of_all(number(self.result(run)) for run in runs) or 0.0

    def overload_gain(self, over: float, service: Service) -> float:
        """Ascendra's requests within targets relative to another's; 0 if the other has none."""
        return ratio(self.overload_share(ASCENDRA, over), self.overload_share(service, over)) or 0.0

    def overload_part(self) -> StudyPart:
        """Shares within targets, dropped and late, by rate."""
        shares = {"within": goodput, "dropped": dropped, "late": late}
        table = self.table(
            "overload",
            f"Ten minutes in overload, shares of all requests ({MAIN})",
            ["rate, of Ascendra's capacity", *(f"{what}: {name}" for what in shares for name in NAMES)],
            [
                [
                    over,
                    *(
                        self.overload_share(service, over, share)
                        for share in shares.values()
                        for service in SYSTEMS
                    ),
                ]
                for over in self.scope.overloads
            ],
            "Every system drops a request that still waits for its first step when its first token is due. Late ones "
            "finished outside a target.",
            decimals=3,
        )
        title = "Overload with shedding"
        drawn = chart(
            "overload",
            title,
            {
                service.name: [(over, self.overload_share(service, over)) for over in self.scope.overloads]
                for service in SYSTEMS
            },
            "rate, of Ascendra's capacity; simulated",
            "share within targets",
            doubling=False,
        )
        return StudyPart(title=title, text=[self._said_of_hand_offs()], tables=[table], charts=[drawn])

    def _said_of_hand_offs(self) -> str:
        moved = {
            over: self.overload_share(ASCENDRA, over, lambda result: result.moves / result.requests)
            for over in self.scope.overloads
        }
        said = ", ".join(f"{share:.0%} at {over:g}" for over, share in moved.items())
        return (
            f"LP instances hand off {said} of capacity, of all requests, to the one HP instance. They know what waits "
            "there, and keep what would be late there too."
        )


def crossing(curve: Curve) -> float | None:
    """Where a curve first falls below `GOOD`, on the line between two points; None if it begins or stays there."""
    if not curve or curve[0][1] < GOOD:
        return None
    for (low, above), (high, below) in pairwise(curve):
        if below < GOOD:
            return low + (high - low) * (above - GOOD) / (above - below)
    return None


def scale_at_good(curve: Curve) -> float | None:
    """The smallest factor on targets that keeps `GOOD`, on the line between two points; the first factor if it
    suffices.
    """
    for place, (scale, share) in enumerate(curve):
        if share >= GOOD:
            if not place:
                return scale
            tighter, less = curve[place - 1]
            return tighter + (scale - tighter) * (GOOD - less) / (share - less)
    return None


def _slug(case: AscendraCase) -> str:
    words = f"{case.model.title}-{case.data.title}".lower()
    return "".join(letter if letter.isalnum() else "-" for letter in words).strip("-").replace("--", "-")
