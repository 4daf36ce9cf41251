"""Ascendra's runs, each determined by plain data, and the choice of runs: all, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import product

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.lab.kept_runs import release
from headway.lab.simulation import fingerprint
from headway.policies.batching.step_tokens import low_step_tokens
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BASELINES,
    BREAKDOWN_LOAD,
    BUSY_LOADS,
    CASE_LOAD,
    CASES,
    COUNT,
    ERROR_S,
    FIGURE_2_INSTANCES,
    FIGURE_2_LOAD,
    FIRST_COME,
    FIXED,
    FIXED_NARROW,
    HARDWARE,
    HEADWAY,
    INSTANCES,
    LIGHT_LOAD,
    LOADS,
    MAIN,
    NARROW,
    NARROW_SHARED,
    NO_HAND_OFF,
    NO_TICKET,
    OVERLOAD_S,
    OVERLOADS,
    PAIR,
    PAIR_CASE,
    PAIR_LOADS,
    PURE_EDF,
    QWEN,
    REGION,
    REGION_LOADS,
    SARATHI,
    SARATHI_512,
    SCALE_RATES,
    SCALES,
    SEEDS,
    SHARED_KERNEL,
    SHAREGPT,
    SHORTEST,
    SJF,
    SPLIT_LOAD,
    SPLITS,
    SYSTEMS,
    TBT_S,
    THRESHOLDS,
    TOKENS_A_STEP,
    TOKENS_TRIED,
    TRIED_LOADS,
    TRIED_SEED,
    UNCHANGED,
    WORKLOADS,
    AscendraCase,
    AscendraChange,
    Service,
    with_budget,
    with_order,
    with_threshold,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraRun:
    """All that determines one run.

    `count` requests in Poisson arrivals at `rate_rps`, 0 for all at once. `slo_scale` is a factor on both targets.
    `seed` draws the workload anew, and the noise of the clock. With `errors` predicted step times are compared with
    actual ones, with `gaps` the time between any two tokens is kept.
    """

    case: AscendraCase
    service: Service
    rate_rps: float
    count: int
    seed: int
    slo_scale: float = 1.0
    change: AscendraChange = UNCHANGED
    errors: bool = False
    gaps: bool = False

    @property
    def slo(self) -> Slo:
        """The targets of every request."""
        slo, scale, change = self.case.slo, self.slo_scale, self.change
        assert slo.ttft_s is not None
        assert slo.tbt_s is not None
        return Slo(
            ttft_s=scale * change.ttft_factor * slo.ttft_s, tbt_s=scale * change.tbt_factor * slo.tbt_s
        )

    @property
    def tokens(self) -> int:
        """Token budget of every chunked system."""
        return self.change.tokens or equal_tokens(self.case.model.name, self.change)

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        law = self.change.law or self.case.data.law
        arrivals = f"poisson:rate={self.rate_rps:.6g}" if self.rate_rps else "at-once"
        longest = f"/max_output={self.case.data.longest_output}" if self.change.law else ""
        return f"gen:{arrivals}/input={law}/output={law}/count={self.count}{longest}"

    def digest(self) -> str:
        """As `Digested.digest`."""
        said = [release(), _fingerprint(self.case.model.name, self.change), *sorted(asdict(self).items())]
        return sha256(repr(said).encode()).hexdigest()


@lru_cache(maxsize=16)
def costs(model: str, change: AscendraChange = UNCHANGED) -> Calibration:
    """The step costs of an instance."""
    return calibration(HARDWARE, model_shape(model), attention=change.attention)


@lru_cache(maxsize=16)
def equal_tokens(model: str, change: AscendraChange = UNCHANGED) -> int:
    """The budget that follows from the target between tokens and the step law, by the rule of low-priority
    instances.
    """
    job = Job(
        id="",
        arrival_s=0.0,
        num_prompt_tokens=1,
        max_output_tokens=1,
        slo=Slo(tbt_s=change.tbt_factor * TBT_S),
    )
    return low_step_tokens(_LawCost(costs(model, change)), [job], TOKENS_A_STEP)


@dataclass(frozen=True, slots=True)
class _LawCost(UnknownCost):
    """Predicts prefill times with the law of the simulated clock."""

    of: Calibration

    def prefill_s(self, num_tokens: int) -> float:
        shape = BatchShape()
        shape.add(num_tokens, 0)
        return self.of.step.step_s(shape) + self.of.host_s


@lru_cache(maxsize=16)
def _fingerprint(model: str, change: AscendraChange) -> str:
    return fingerprint(costs(model, change))


# ---- which runs are made -------------------------------------------------------------------------------

CHUNKED = (ASCENDRA, SARATHI)
"""Systems that compute prompts in chunks."""
ABLATED = (FIXED, SJF, PURE_EDF, NO_HAND_OFF, NO_TICKET, SARATHI_512)
"""Systems compared with Ascendra at the busy loads."""

Reference = Callable[[AscendraCase, AscendraChange], float]
"""The request rate that a case's loads are shares of, with one thing changed."""

_ABOUT_REFERENCE_RPS, _ABOUT_CAPACITY_RPS = 7.0, 7.93
"""Rough rates for the main case, to count runs before they are measured; chosen so that no share of one is a share
of the other, as with the real rates.
"""
_SECONDS_A_REQUEST = 0.0012
"""Seconds to simulate one request on one core, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraScope:
    """Which experiments are run, given the throughput of `SARATHI` and Ascendra's capacity; by default all.

    `loads` are the rates of the sweep, as shares of the reference; ablations are compared at `busy_loads`; `overloads`
    are shares of Ascendra's capacity in the main case, `scales` factors on both targets. Each seed is another draw of
    arrivals and lengths, and of the clock's noise.
    """

    quick: bool = False
    seeds: range = range(SEEDS)
    cases: Sequence[AscendraCase] = CASES
    loads: Sequence[float] = LOADS
    busy_loads: Sequence[float] = BUSY_LOADS
    overloads: Sequence[float] = OVERLOADS
    scales: Sequence[float] = SCALES

    def seeds_of(self, case: AscendraCase) -> range:
        """The seeds that a case is run with."""
        return self.seeds if case == MAIN else self.seeds[:1]

    # ---- single runs ---------------------------------------------------------------------------------

    def reference_run(self, case: AscendraCase, change: AscendraChange = UNCHANGED) -> AscendraRun:
        """The run, with all requests at once, that determines a case's reference rate."""
        own = change if change in WORKLOADS else UNCHANGED
        return AscendraRun(case=case, service=SARATHI, rate_rps=0.0, count=COUNT, seed=0, change=own)

    def run(self, case: AscendraCase, service: Service, rate_rps: float, seed: int) -> AscendraRun:
        """A standard run of a service at a rate."""
        return AscendraRun(
            case=case, service=service, rate_rps=float(f"{rate_rps:.5g}"), count=COUNT, seed=seed
        )

    def overload_run(self, service: Service, rate_rps: float, seed: int) -> AscendraRun:
        """Ten minutes of arrivals, where every instance drops requests past their first target."""
        run = self.run(MAIN, service.shedding(), rate_rps, seed)
        return replace(run, count=round(OVERLOAD_S * run.rate_rps))

    def error_run(self, rate_rps: float) -> AscendraRun:
        """Ten minutes of arrivals, where every predicted step is compared with its actual time."""
        run = self.run(MAIN, ASCENDRA, rate_rps, 0)
        return replace(run, count=round(ERROR_S * run.rate_rps), errors=True)

    def changed_run(
        self, service: Service, rate_rps: float, change: AscendraChange, case: AscendraCase = MAIN
    ) -> AscendraRun:
        """A run with one thing changed."""
        return replace(self.run(case, service, rate_rps, 0), change=change)

    def gaps_run(self, service: Service, rate_rps: float) -> AscendraRun:
        """A run in which every time between tokens is kept."""
        return replace(self.run(MAIN, service, rate_rps, 0), gaps=True)

    @property
    def region(self) -> Sequence[AscendraChange]:
        """The targets tested for whether two tiers are worthwhile."""
        return (*((NARROW,) if self.quick else REGION), NARROW_SHARED)

    @property
    def budget_loads(self) -> Sequence[float]:
        """The loads at which budgets are compared."""
        return TRIED_LOADS[-1:] if self.quick else TRIED_LOADS

    # ---- all runs ------------------------------------------------------------------------------------

    def reference_runs(self) -> list[AscendraRun]:
        """The runs that the rates of all others depend on."""
        found = [self.reference_run(case) for case in (*self.cases, PAIR_CASE)]
        found += [self.reference_run(AscendraCase(QWEN, SHAREGPT), change) for change in WORKLOADS]
        return list(dict.fromkeys(found))

    def sweep_runs(self, reference: Reference) -> list[AscendraRun]:
        """Goodput against rate, which Ascendra's capacity is read from."""
        return [
            self.run(case, service, load * reference(case, UNCHANGED), seed)
            for case, load, service in product(self.cases, self.loads, SYSTEMS)
            for seed in self.seeds_of(case)
        ]

    def further_runs(self, reference: Reference, capacity_rps: float) -> list[AscendraRun]:
        """All other runs, those with the most requests first."""
        main_rps = reference(MAIN, UNCHANGED)
        found = [
            *self._overload_runs(capacity_rps),
            self.error_run(BUSY_LOADS[0] * main_rps),
            *self._scale_runs(capacity_rps),
            *self._ablation_runs(main_rps),
            *self._budget_runs(main_rps),
            *self._reason_runs(reference, capacity_rps),
            *(self.gaps_run(service, BREAKDOWN_LOAD * main_rps) for service in SYSTEMS),
            *(
                self.changed_run(service, load * main_rps, SHARED_KERNEL)
                for load, service in product(self.busy_loads, SYSTEMS)
            ),
            *(
                self.changed_run(service, load * main_rps, change)
                for change, load, service in product(self.region, REGION_LOADS, (*SYSTEMS, HEADWAY))
            ),
        ]
        if not self.quick:
            found += [
                *self._choice_runs(main_rps),
                *self._figure_2_runs(main_rps),
            ]
        return sorted(dict.fromkeys(found), key=lambda run: -run.count)

    def _overload_runs(self, capacity_rps: float) -> Iterable[AscendraRun]:
        for over, service, seed in product(self.overloads, SYSTEMS, self.seeds):
            yield self.overload_run(service, over * capacity_rps, seed)

    def _scale_runs(self, capacity_rps: float) -> Iterable[AscendraRun]:
        """Runs over scaled targets. A system that ignores targets runs once, and is judged at each scale."""
        for share, seed in product(SCALE_RATES, self.seeds):
            for service in BASELINES:
                yield self.run(MAIN, service, share * capacity_rps, seed)
            for scale in self.scales:
                yield replace(self.run(MAIN, ASCENDRA, share * capacity_rps, seed), slo_scale=scale)

    def _ablation_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        for seed in self.seeds:
            for load, service in product(self.busy_loads, ABLATED):
                yield self.run(MAIN, service, load * main_rps, seed)
            yield self.run(MAIN, NO_TICKET, LIGHT_LOAD * main_rps, seed)
            for service in SPLITS.values():
                share = service.instances / ASCENDRA.instances
                yield self.run(MAIN, service, share * SPLIT_LOAD * main_rps, seed)

    def _reason_runs(self, reference: Reference, capacity_rps: float) -> Iterable[AscendraRun]:
        """Runs with one thing changed, for the reasons of single statements; and two instances alone."""
        main_rps = reference(MAIN, UNCHANGED)
        for service in (*(each.shedding() for each in SYSTEMS), PURE_EDF, NO_TICKET):
            yield self.run(MAIN, service, BREAKDOWN_LOAD * main_rps, 0)
        for load in self.busy_loads:
            yield self.run(MAIN, FIXED_NARROW, load * main_rps, 0)
            yield self.run(MAIN, SPLITS["1L2H"], load * main_rps, 0)
        for change in (SHARED_KERNEL, NARROW):
            yield self.changed_run(SPLITS["1L2H"], SPLIT_LOAD * main_rps, change)
        yield self.changed_run(SJF, REGION_LOADS[-1] * main_rps, NARROW)
        yield self.overload_run(NO_HAND_OFF, self.overloads[-1] * capacity_rps, 0)
        for case in self.cases:
            for change, service in product(self.case_changes(case), SYSTEMS):
                yield self.changed_run(service, CASE_LOAD * reference(case, change), change, case)
        for load, service in product(PAIR_LOADS, PAIR):
            share = service.instances / INSTANCES
            yield self.run(PAIR_CASE, service, share * load * reference(PAIR_CASE, UNCHANGED), 0)

    def case_changes(self, case: AscendraCase) -> Sequence[AscendraChange]:
        """The changes in a case that test the reasons of its gains."""
        if case == MAIN:
            return ()
        return (SHARED_KERNEL, *(WORKLOADS if case == AscendraCase(QWEN, SHAREGPT) else ()))

    def _choice_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        for load, threshold in product(TRIED_LOADS, THRESHOLDS):
            yield self.run(MAIN, with_threshold(threshold), load * main_rps, TRIED_SEED)

    def _budget_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        """One budget for all, and Sarathi-Serve's own beside it."""
        for load in self.budget_loads:
            for tokens, service in product(TOKENS_TRIED, CHUNKED):
                yield self.budget_run(tokens, service, load * main_rps)

    def budget_run(self, tokens: int, service: Service, rate_rps: float) -> AscendraRun:
        """A run with this token budget."""
        return replace(self.run(MAIN, service, rate_rps, TRIED_SEED), change=with_budget(tokens))

    def _figure_2_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        for name, instances in product((FIRST_COME, SHORTEST), FIGURE_2_INSTANCES):
            yield self.run(MAIN, with_order(name, instances), FIGURE_2_LOAD * main_rps, 0)

    def num_runs(self) -> int:
        """The number of all runs."""
        return len(self._all())

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        runs = self._all()
        return _SECONDS_A_REQUEST * sum(run.count for run in runs) / len(runs)

    def _all(self) -> set[AscendraRun]:
        """Every run, with approximate rates."""
        further = self.further_runs(_about, _ABOUT_CAPACITY_RPS)
        return {*self.reference_runs(), *self.sweep_runs(_about), *further}


ALL = AscendraScope()
QUICK = AscendraScope(
    quick=True,
    seeds=range(1),
    cases=(MAIN, AscendraCase(QWEN, SHAREGPT)),
    loads=(0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7),
    busy_loads=(1.1, 1.3),
    overloads=(1.0, 1.5),
    scales=(0.4, 0.7, 1.0),
)
"""No Figure 2, no sweeps of the hand-off's threshold and of targets, and few of the changes that test the gains."""


def _about(case: AscendraCase, change: AscendraChange) -> float:
    return _ABOUT_REFERENCE_RPS
