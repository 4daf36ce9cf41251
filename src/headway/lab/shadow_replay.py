"""Serves reported requests again, in a simulation of one engine or of a fleet of any size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.lab.shadow_feed import EngineFacts, Told
from headway.policies.presets import build_policy, find_preset
from headway.results.metrics import summarize
from headway.routing import DEFAULT_ROUTER
from headway.routing.scaling import Served
from headway.sim.simulation import PolicyFactory, System, simulate
from headway.statistics import median
from headway.traces import TraceRequest

MOST_REPLAYED = 800
"""Requests in a replay. Of a busier fleet only some instances are replayed, with their share of the requests, and
at least one, whatever its share: a shorter time would not show a queue that grows slowly.
"""


def policy_factory(engine: EngineFacts, policy: str | None) -> PolicyFactory:
    """A factory of the named policy for an engine; None: the policy it has."""
    name, parts = (engine.policy, engine.parts.given()) if policy is None else (policy, {})
    preset = find_preset(name, **parts)
    return lambda cost: build_policy(preset, cost, priority_first=engine.priority_first)


def trace_of(told: Iterable[Told]) -> tuple[list[TraceRequest], dict[str, LengthEstimate]]:
    """Everything that engines served, in order of arrival, and the prediction for each answer.

    A request that was handed off unstarted counts at the instance that took it.
    """
    known = {one.id: one for one in told if one.outcome is not Outcome.HANDED_OFF}
    served = sorted(known.values(), key=_by_arrival)
    usual = int(median([one.output_tokens for one in served if one.outcome is Outcome.FINISHED] or [1]))
    start_s = served[0].arrival_s if served else 0.0
    requests = [_request(one, start_s, usual) for one in served]
    estimates = {one.id: one.estimate for one in served if one.estimate is not None}
    return requests, estimates


def _by_arrival(one: Told) -> tuple[float, str]:
    return one.arrival_s, one.id


def _request(one: Told, start_s: float, usual_tokens: int) -> TraceRequest:
    """The request for the simulator, without prompt tokens that were found on the device."""
    return TraceRequest(
        id=one.id,
        arrival_s=max(0.0, one.arrival_s - start_s),
        input_tokens=max(1, one.prompt_tokens - one.found_tokens),
        output_tokens=_output_tokens(one, usual_tokens),
        max_output_tokens=one.max_output_tokens,
        tenant=one.tenant,
        priority=one.priority,
        slo=one.slo,
    )


def _output_tokens(one: Told, usual_tokens: int) -> int:
    """The true length; for an answer that did not end by itself, the known part and the likeliest rest."""
    if one.outcome in (Outcome.FINISHED, Outcome.CANCELLED):
        return max(1, min(one.output_tokens, one.max_output_tokens))
    estimate = one.estimate
    if estimate is not None:
        likely = one.output_tokens + estimate.remaining_tokens(one.output_tokens)
    else:
        likely = float(max(usual_tokens, one.output_tokens + 1))
    return max(1, min(round(likely), one.max_output_tokens))


class Recorded:
    """Repeats the prediction that each request had in reality."""

    def __init__(self, estimates: Mapping[str, LengthEstimate]) -> None:
        self._estimates = estimates

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """The recorded prediction."""
        return self._estimates.get(request.id)

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """Nothing: the next predictions are recorded too."""


@dataclass(frozen=True, slots=True)
class FleetReplay:
    """The last requests of a whole fleet, and the engine that represents all of its instances.

    Requests that arrived since `judged_from_s`, ended or not, are judged; those before fill the queue.
    """

    requests: Sequence[TraceRequest]
    estimates: Mapping[str, LengthEstimate]
    judged_from_s: float
    policy: PolicyFactory
    system: System

    @classmethod
    def of(
        cls, told: Iterable[Told], judged_from_s: float, policy: PolicyFactory, system: System
    ) -> FleetReplay:
        """Make the replay of requests whose times are of one clock."""
        known = list(told)
        requests, estimates = trace_of(known)
        start_s = min((one.arrival_s for one in known), default=0.0)
        return cls(requests, estimates, judged_from_s - start_s, policy, system)

    def served(self, count: int, growth: float = 1.0) -> Served:
        """What `count` instances would have achieved if requests had come `growth` times as fast.

        Prefix hits are kept as recorded. With n instances each gets every n-th arrival, as from a router that
        balances load.
        """
        part = self._instances_replayed(count)
        requests = [
            replace(each, arrival_s=each.arrival_s / growth)
            for place, each in enumerate(self.requests)
            if (place + 1) * part // count > place * part // count
        ]
        judged_from_s = self.judged_from_s / growth
        found: list[Record] = []
        simulate(
            requests,
            self.policy,
            replace(self.system, instances=part, router=DEFAULT_ROUTER),
            on_record=found.append,
            max_output_tokens=max((each.max_output_tokens or 1 for each in requests), default=1),
            lengths=Recorded(self.estimates) if self.estimates else None,
        )
        summary = summarize([record for record in found if record.arrival_s >= judged_from_s])
        return Served(summary.goodput, summary.mean_jct_s)

    def _instances_replayed(self, count: int) -> int:
        """How many of the `count` instances receive MOST_REPLAYED requests between them; at least one."""
        return max(1, min(count, count * MOST_REPLAYED // max(1, len(self.requests))))
