"""The targets of a cell: multiples of what its machine needs for such a request when nobody else is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from bench.regret_recordings import MAIN_AGENT, SUB_AGENT
from bench.regret_workloads import Served
from headway.core.batch_shape import BatchShape
from headway.core.slo import NO_TARGETS, Slo
from headway.sim.simulation import System
from headway.traces import TraceRequest

NONE, ONE, TWO = "none", "one", "two"
CLASSES = (NONE, ONE, TWO)
"""No targets; the same targets for all; interactive requests beside patient ones."""
TARGETED = (ONE, TWO)


@dataclass(frozen=True, slots=True)
class Multiples:
    """Of the time to first token of a long prompt (the 90th percentile) at light load, and of a light-load step."""

    ttft: float
    tbt: float


USUAL = Multiples(ttft=5, tbt=5)
INTERACTIVE = Multiples(ttft=3, tbt=5)
PATIENT = Multiples(ttft=50, tbt=20)
INTERACTIVE_SHARE = 0.5
"""Of requests whose trace has no classes of its own."""
RULE = (USUAL, INTERACTIVE, PATIENT, INTERACTIVE_SHARE)
PATIENT_PRIORITY = 1
"""Interactive requests have 0, which runs first: what `priority` needs to know of the classes."""


def light_ttft_s(system: System, prompt_tokens: int) -> float:
    """Seconds from a prompt to its first token on an engine that has just begun a step as large as it may be.

    Then its chunks are computed one after another, with nobody beside them.
    """
    budget, computed = system.limits.max_num_batched_tokens, 0
    seconds = _chunk_s(system, budget, 0)
    while computed < prompt_tokens:
        chunk = min(budget, prompt_tokens - computed)
        seconds += _chunk_s(system, chunk, computed)
        computed += chunk
    return seconds


def _chunk_s(system: System, tokens: int, context_tokens: int) -> float:
    shape = BatchShape()
    shape.add(tokens, context_tokens)
    return system.step.step_s(shape)


def light_step_s(system: System, context_tokens: int) -> float:
    """Seconds of a step that extends one answer."""
    return _chunk_s(system, 1, context_tokens)


def targets(served: Served, multiples: Multiples) -> Slo:
    """The same for every request of a workload on a machine, whatever its own length."""
    return _targets(served, multiples)


@lru_cache(maxsize=64)
def _targets(served: Served, multiples: Multiples) -> Slo:
    facts, system = served.facts(), served.machine.system()
    return Slo(
        ttft_s=round(multiples.ttft * light_ttft_s(system, facts.p90_prompt_tokens), 4),
        tbt_s=round(multiples.tbt * light_step_s(system, facts.mean_context_tokens), 5),
    )


def with_classes(
    requests: Sequence[TraceRequest], served: Served, classes: str, seed: int
) -> list[TraceRequest]:
    """The requests with the targets of `classes`; where there are two, with priorities too."""
    if classes == NONE:
        return [replace(request, slo=NO_TARGETS, priority=0) for request in requests]
    if classes == ONE:
        slo = targets(served, USUAL)
        return [replace(request, slo=slo, priority=0) for request in requests]
    tight, loose = targets(served, INTERACTIVE), targets(served, PATIENT)
    return [
        replace(request, slo=tight, priority=0)
        if is_interactive(request, seed)
        else replace(request, slo=loose, priority=PATIENT_PRIORITY)
        for request in requests
    ]


def is_interactive(request: TraceRequest, seed: int) -> bool:
    """Whether somebody waits for it: by the trace's own classes where it has some (agents, whose sub-agents are
    patient), else for a share of the requests that the seed draws.
    """
    if request.tenant in (MAIN_AGENT, SUB_AGENT):
        return request.tenant == MAIN_AGENT
    return Random(f"{seed} {request.id}").random() < INTERACTIVE_SHARE
