"""One run of Ascendra's experiments: the simulation, its records' figures, and the errors of predicted step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headway.core.batch_shape import StepKind, shape_of
from headway.core.cost import CostModel
from headway.core.plan import StepOutcome
from headway.core.record import Outcome, Record
from headway.lab.policy_choice import policy_factory
from headway.lab.simulation import simulate_policy
from headway.lab.trace import Trace, read_once
from headway.policies.policy import Policy
from headway.results import summarize
from headway.results.metrics import end_s, ends, met_targets, tbt_s, ttft_s
from headway.routing.pools import pool_of
from headway.sim.simulation import Policies, PolicyFactory, SimulatedRun, System
from headway.statistics import known, mean, quantile
from headway.traces import TraceRequest
from headway_reproduce.ascendra.cells import AscendraRun, costs
from headway_reproduce.study_runs import of_kind


def simulate_ascendra(run: AscendraRun) -> AscendraResult:
    """Simulate one run; an error raised on purpose names it. Holds its records in memory."""
    requests = read_once(Trace(run.trace(), slo=run.slo), run.seed)
    policies, errors, gaps = policies_of(run, requests), StepErrors(), TokenGaps()
    result = simulate_policy(
        requests,
        errors.following(policies) if run.errors else policies,
        system_of(run),
        max_output_tokens=run.case.data.longest_output,
        seed=run.seed,
        named=f"{run.service.name}, {run.case}, {run.rate_rps:g} req/s, seed {run.seed}",
        watch=errors.stepped if run.errors else gaps.stepped if run.gaps else None,
    )
    return replace(
        measure(result.records, _busy_shares(result)), step_errors=errors.by_minute(), p99_gap_s=gaps.at(0.99)
    )


def system_of(run: AscendraRun) -> System:
    """The simulated system of a run."""
    service, limits = run.service, run.case.model.limits()
    pools = {engines.pool: engines.count for engines in service.engines if engines.pool}
    return System(
        limits=replace(limits, num_blocks=int(run.change.kv_share * limits.num_blocks)),
        calibration=costs(run.case.model.name, run.change),
        instances=service.instances,
        router=service.router,
        pools=pools or None,
    )


def policies_of(run: AscendraRun, requests: Sequence[TraceRequest]) -> Policies:
    """The policy factories of each pool, or of all instances; all chunked steps have one budget."""
    found = {
        engines.pool: policy_factory(engines.policy, engines.with_budget(run.tokens), requests)
        for engines in run.service.engines
    }
    return found.get("", found)


def _busy_shares(result: SimulatedRun) -> dict[str, float]:
    """How busy the instances of each pool were, from the first arrival to the last output."""
    busy_s: dict[str, list[float]] = {}
    for name, totals in result.totals.items():
        busy_s.setdefault(pool_of(name), []).append(totals.busy_s)
    return {pool: sum(found) / (len(found) * result.end_s) for pool, found in busy_s.items()}


# ---- predicted step times ------------------------------------------------------------------------------

MINUTE_S = 60.0


@dataclass(slots=True)
class StepErrors:
    """Relative errors of each instance's own predictions, each made when its step was scheduled.

    For steps one at a time: a step's time lasts from its scheduling to its output, the host's time included. Steps
    before the model can predict are left out.
    """

    _expected: dict[int, tuple[StepKind, float]] = field(default_factory=dict)
    _found: dict[StepKind, dict[int, list[float]]] = field(default_factory=dict)

    def following(self, policies: Policies) -> Policies:
        """The same policies, with their cost models asked about every step."""
        if not isinstance(policies, Mapping):
            return self._following(policies)
        return {pool: self._following(build) for pool, build in policies.items()}

    def _following(self, build: PolicyFactory) -> PolicyFactory:
        def build_followed(cost: CostModel) -> Policy:
            followed = of_kind(_Followed, build(cost))
            followed.errors, followed.cost = self, cost
            followed.uses_costs = True
            return followed

        return build_followed

    def expect(self, outcome: StepOutcome, cost: CostModel) -> None:
        """A step was scheduled."""
        if outcome.tokens:
            shape = shape_of(outcome.tokens)
            self._expected[id(outcome)] = (shape.kind, cost.step_s(shape))

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """A step's output has come."""
        kind, expected_s = self._expected.pop(id(outcome))
        if expected_s:
            took_s = finished_s - started_s
            minute = int(started_s // MINUTE_S)
            self._found.setdefault(kind, {}).setdefault(minute, []).append(abs(expected_s / took_s - 1))

    def by_minute(self) -> dict[str, tuple[float | None, ...]]:
        """Kind of step -> mean relative error of each minute; None where it had no such step."""
        return {
            kind: tuple(mean(minutes[at]) if at in minutes else None for at in range(max(minutes) + 1))
            for kind, minutes in sorted(self._found.items())
        }


class _Followed(Policy):
    """Delegates all decisions to the policy whose parts it has."""

    errors: StepErrors
    cost: CostModel

    def observe(self, outcome: StepOutcome) -> None:
        """Ask the cost model about the step, then update the policy."""
        self.errors.expect(outcome, self.cost)
        super().observe(outcome)


@dataclass(slots=True)
class TokenGaps:
    """Seconds between any two tokens of an answer, for steps one at a time: a mean over an answer hides a stall."""

    _last_s: dict[str, float] = field(default_factory=dict)
    _gaps_s: list[float] = field(default_factory=list)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """A step's output has come: a token of each job whose known tokens are all computed."""
        for job in outcome.tokens:
            if job.num_computed_tokens < job.num_prompt_tokens + job.num_output_tokens:
                continue
            last_s = self._last_s.get(job.id)
            if last_s is not None:
                self._gaps_s.append(finished_s - last_s)
            self._last_s[job.id] = finished_s

    def at(self, share: float) -> float | None:
        """The gap that this share of all gaps stays within; None without any."""
        return quantile(self._gaps_s, share) if self._gaps_s else None


# ---- from the records of a run to what the experiments ask of it -----------------------------------------

GOOD = 0.9
"""Share of requests within their targets that defines capacity."""
STEADY = 0.9
"""Share of the requests, first to end, whose rate counts as steady."""
QUANTILES = 100
"""Steps of the distribution of times to first token that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """The activity of a pool's instances: `delay_s` is the mean wait there, from arrival to the first step, of
    requests that started there; `first_tokens` is their number.
    """

    busy_share: float
    first_tokens: int
    delay_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraResult:
    """The result of a run.

    `met` of `requests` finished within both targets; `late` finished outside; `dropped` never started. `needed_scale`
    is the least factor on both targets that nine in ten would have met, None where fewer finished. `ttft_s` are
    quantiles at equal distances from 0 to 1. `steady_rps` is the rate at which the first nine tenths ended, so that a
    few long answers at the end do not count. `pools` has the one entry "" where there are no pools. `step_errors` are
    mean relative errors of predicted step times by kind of step, minute by minute; None for a minute without.
    `p99_tbt_s` is over the means of answers, `p99_gap_s` over all times between two tokens, where they were kept.
    """

    requests: int
    finished: int
    met: int
    late: int
    dropped: int
    moves: int
    total_tps: float | None
    mean_ttft_s: float | None
    p99_ttft_s: float | None
    mean_tbt_s: float | None
    p99_tbt_s: float | None
    needed_scale: float | None
    steady_rps: float | None
    ttft_s: tuple[float, ...]
    pools: dict[str, PoolResult]
    step_errors: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    p99_gap_s: float | None = None

    @property
    def unfinished(self) -> int:
        """Requests that did not finish."""
        return self.requests - self.finished

    @property
    def goodput(self) -> float:
        """Share of all requests that finished within both targets."""
        return self.met / self.requests


def measure(records: Sequence[Record], busy_shares: Mapping[str, float]) -> AscendraResult:
    """The figures of a run's records, including moves."""
    summary, ended = summarize(records), ends(records)
    met = sum(map(met_targets, ended))
    finished = [record for record in ended if record.outcome is Outcome.FINISHED]
    return AscendraResult(
        requests=len(ended),
        finished=len(finished),
        met=met,
        late=len(finished) - met,
        dropped=summary.expired + summary.shed,
        moves=summary.handed_off,
        total_tps=summary.total_tps,
        mean_ttft_s=summary.mean_ttft_s,
        p99_ttft_s=summary.p99_ttft_s,
        mean_tbt_s=summary.mean_tbt_s,
        p99_tbt_s=summary.p99_tbt_s,
        needed_scale=needed_scale(finished, len(ended), GOOD),
        ttft_s=_quantiles(finished),
        steady_rps=_steady_rps(ended),
        pools={pool: _pool_result(pool, share, records) for pool, share in busy_shares.items()},
    )


def _steady_rps(ended: Sequence[Record]) -> float | None:
    times_s = sorted(map(end_s, ended))
    count = int(STEADY * len(times_s))
    began_s = min(record.arrival_s for record in ended)
    return count / (times_s[count - 1] - began_s) if count and times_s[count - 1] > began_s else None


def needed_scale(finished: Sequence[Record], requests: int, good: float) -> float | None:
    """The least factor on all targets at which a share `good` of all requests is within both; O(n log n)."""
    scales = sorted(map(_own_scale, finished))
    wanted = int(np.ceil(good * requests))
    return scales[wanted - 1] if 0 < wanted <= len(scales) else None


def _own_scale(record: Record) -> float:
    """The least factor at which one request is within both targets; one token has no time between tokens."""
    first_s, between_s = ttft_s(record), tbt_s(record) or 0.0
    assert first_s is not None
    assert record.slo.ttft_s is not None
    assert record.slo.tbt_s is not None
    return max(first_s / record.slo.ttft_s, between_s / record.slo.tbt_s)


def _quantiles(finished: Sequence[Record]) -> tuple[float, ...]:
    times_s = known(map(ttft_s, finished))
    shares = [step / QUANTILES for step in range(QUANTILES + 1)] if times_s else []
    return tuple(round(quantile(times_s, share), 6) for share in shares)


def _pool_result(pool: str, busy_share: float, records: Sequence[Record]) -> PoolResult:
    came_s = {record.id: end_s(record) for record in records if record.outcome is Outcome.HANDED_OFF}
    started = [
        record
        for record in records
        if record.first_scheduled_s is not None and pool_of(record.instance) == pool
    ]
    delays_s = [
        record.first_scheduled_s - came_s.get(record.id, record.arrival_s)
        for record in started
        if record.first_scheduled_s is not None
    ]
    return PoolResult(
        busy_share=busy_share, first_tokens=len(started), delay_s=mean(delays_s) if delays_s else None
    )
