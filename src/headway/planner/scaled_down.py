"""A choice made small enough for this machine: a configuration, a stream and targets that mean the same here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from headway.core.batch_shape import BatchShape
from headway.core.cuda_graphs import MOST_GRAPHED_TOKENS
from headway.core.slo import MAX_TARGET_S, Slo
from headway.planner.configuration import Configuration
from headway.planner.machine import Machine
from headway.predict.calibration import Calibration
from headway.traces import TraceRequest, scale_lengths

MODEL = "demo"
MAX_SEATS, MAX_TOKENS_A_STEP = 128, 2048
"""What vLLM takes by itself on a CPU, and what `headway profile` measures up to."""
MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS = 1024, 192
MAX_HOST_GIB = 0.5


def scaled_down(configuration: Configuration) -> Configuration:
    """The same policy on one instance here, or one of each pool, with sizes that a CPU has."""
    instances = 1 if configuration.pools is None else len(configuration.pools)
    return replace(
        configuration,
        gpus=instances,
        tp=1,
        instances=instances,
        lp=0 if configuration.pools is None else 1,
        seats=min(configuration.seats, MAX_SEATS),
        tokens_a_step=min(configuration.tokens_a_step, MAX_TOKENS_A_STEP),
        host_gib=min(configuration.host_gib, MAX_HOST_GIB),
    )


def shortened(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The requests with lengths that the small model holds; prompts given as text become tokens, which are made up.

    Each declares the same output limit, so that policies see no other here than in the simulation.
    """
    bare = [replace(request, prompt=None) for request in requests]
    fitted = scale_lengths(bare, MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in fitted]


@dataclass(frozen=True, slots=True)
class Typical:
    """Tokens of a request as they are on the mean."""

    input_tokens: float
    output_tokens: float

    @classmethod
    def of(cls, requests: Sequence[TraceRequest]) -> Typical:
        """Of so many requests, at least one."""
        return cls(
            fmean(request.input_tokens for request in requests),
            fmean(request.output_tokens for request in requests),
        )

    def prefill_s(self, costs: Calibration) -> float:
        """Its prompt alone on an engine."""
        return _step_s(costs, round(self.input_tokens), 0)

    def decode_s(self, costs: Calibration) -> float:
        """A token of its answer alone on an engine, halfway through."""
        return _step_s(costs, 1, round(self.input_tokens + self.output_tokens / 2))

    def whole_s(self, costs: Calibration) -> float:
        """All of it alone on an engine."""
        return self.prefill_s(costs) + self.output_tokens * self.decode_s(costs)


def _step_s(costs: Calibration, new_tokens: int, context_tokens: int) -> float:
    shape = BatchShape()
    shape.add(max(1, new_tokens), context_tokens)
    step = costs.step_with(MOST_GRAPHED_TOKENS)
    return step.step_s(shape) + costs.host_s + costs.host_job_s


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a second of a target there is worth here: by the time that a typical request takes alone on either."""

    ttft: float
    tbt: float
    deadline: float

    @classmethod
    def between(cls, there: Calibration, its: Typical, here: Calibration, ours: Typical) -> Exchange:
        """From one machine and its requests to another with its own."""
        return cls(
            ours.prefill_s(here) / its.prefill_s(there),
            ours.decode_s(here) / its.decode_s(there),
            ours.whole_s(here) / its.whole_s(there),
        )

    def targets(self, slo: Slo) -> Slo:
        """The same targets in the time of this machine, none longer than a target may be: nothing served here is."""
        return Slo(
            ttft_s=_worth(slo.ttft_s, self.ttft),
            tbt_s=_worth(slo.tbt_s, self.tbt),
            deadline_s=_worth(slo.deadline_s, self.deadline),
        )


def _worth(target_s: float | None, rate: float) -> float | None:
    return None if target_s is None else min(MAX_TARGET_S, target_s * rate)


def exchange(
    planned: tuple[Machine, int, Sequence[TraceRequest]], here: Machine, requests: Sequence[TraceRequest]
) -> Exchange:
    """From the machine that was planned for (its TP, its requests) to this one; 1 to 1 where they are the same."""
    machine, tp, theirs = planned
    if machine == here:
        return Exchange(1.0, 1.0, 1.0)
    return Exchange.between(machine.costs(tp), Typical.of(theirs), here.costs(1), Typical.of(requests))
