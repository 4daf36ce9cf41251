"""Streams of requests: clients with targets, tasks of the demo model with predicted lengths, conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from headway_reproduce.ascendra.real_stream import TTFT_FACTOR

from headway.core.length_estimate import LengthEstimate
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError, SimulationError
from headway.lab.predictor_choice import length_source
from headway.lab.trace import INTERACTIVE_SHARE
from headway.predict.lengths.facts import RequestFacts, SharedPrefix
from headway.predict.lengths.predictor import LengthLearner
from headway.results import Summary
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from headway.traces.demo_tasks import demo_requests, demo_rows, prompt_text

NONE, ONE, TWO = "none", "one", "two"
KINDS = (NONE, ONE, TWO)
"""No targets; all clients interactive; two classes, seven in ten interactive and the others patient."""
INTERACTIVE, PATIENT = "interactive", "patient"

INTERACTIVE_TBT_FACTOR = 5.0
"""The interactive TBT target as a multiple of the mean at light load. Source: the strict target of Sarathi-Serve
(OSDI 2024, section 5).
"""
PATIENT_TBT_FACTOR = 25.0
"""The patient TBT target as the same multiple. Source: the relaxed target of Sarathi-Serve."""
PATIENCE = 20.0
"""Patient clients wait this many times longer for a first token than interactive ones: as in `make demo`, 8 s and
0.4 s.
"""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of each class of clients."""

    interactive: Slo
    patient: Slo

    @property
    def classes(self) -> Mapping[Slo, str]:
        """The class of each target."""
        return {self.interactive: INTERACTIVE, self.patient: PATIENT}

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """Targets by class, in seconds."""
        return {name: {"ttft_s": slo.ttft_s, "tbt_s": slo.tbt_s} for slo, name in self.classes.items()}


def targets_from(light: Summary) -> Targets:
    """The targets derived from `vllm`'s latencies at a light load, measured before any comparison.

    Raises SimulationError if nothing was measured there.
    """
    if light.p50_ttft_s is None or light.mean_tbt_s is None:
        raise SimulationError(
            "no answer of two tokens ended at light load, so there is nothing to set targets by"
        )
    ttft_s = TTFT_FACTOR * light.p50_ttft_s
    return Targets(
        interactive=Slo(ttft_s=ttft_s, tbt_s=INTERACTIVE_TBT_FACTOR * light.mean_tbt_s),
        patient=Slo(ttft_s=PATIENCE * ttft_s, tbt_s=PATIENT_TBT_FACTOR * light.mean_tbt_s),
    )


def rule_text() -> str:
    """How the targets are derived, in words."""
    return (
        f"interactive: TTFT {TTFT_FACTOR:g} times the median of vllm at light load, TBT {INTERACTIVE_TBT_FACTOR:g} "
        f"times its mean; patient: {PATIENCE:g} times that TTFT, TBT {PATIENT_TBT_FACTOR:g} times the mean"
    )


def asked_by(requests: Sequence[TraceRequest], kind: str, targets: Targets, seed: int) -> list[TraceRequest]:
    """The same requests from clients of this kind; with two classes the interactive ones have the better priority.

    Raises ConfigError for an unknown kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"class is {kind!r}; accepted: {', '.join(KINDS)}")
    if kind == NONE:
        return [replace(request, slo=NO_TARGETS) for request in requests]
    rng = Random(f"clients of {seed}")
    return [
        _from_client(request, kind == ONE or rng.random() < INTERACTIVE_SHARE, targets)
        for request in requests
    ]


def _from_client(request: TraceRequest, interactive: bool, targets: Targets) -> TraceRequest:
    slo = targets.interactive if interactive else targets.patient
    return replace(request, slo=slo, priority=0 if interactive else 1)


# ---- the demo model's tasks: half of them make streams, half teach a length predictor ----------------

MAX_OUTPUT_TOKENS = 1_024
"""The limit that every request declares; the packaged answers that never end are cut there."""
TAUGHT = "taught"
"""Name of the product's predictor after its lessons."""

Estimates = Mapping[str, LengthEstimate]


@cache
def lessons() -> Mapping[str, tuple[int, int]]:
    """Every second packaged task, by its prompt: prompt and output tokens. No stream has any of them."""
    return {
        prompt_text(row.instruction, row.user_input): (row.num_prompt_tokens, row.output_tokens)
        for row in demo_rows()[::2]
    }


def untaught_stream(rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    """The first `count` tasks of a stream that the predictor was not taught; a thinned Poisson process is still one.

    Raises ConfigError for more tasks than are packaged.
    """
    drawn = demo_requests(len(demo_rows()), 2 * rate_rps, seed)
    untaught = [request for request in drawn if request.prompt not in lessons()]
    if count > len(untaught):
        raise ConfigError(f"a stream of {count} tasks; accepted: up to {len(untaught)}, which are packaged")
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS) for request in untaught[:count]]


@dataclass(slots=True)
class Taught:
    """The length predictor after its lessons, which reads prompts as a server does."""

    predictor: LengthLearner
    prefixes: SharedPrefix

    @classmethod
    def with_lessons(cls) -> Taught:
        """A fresh predictor after its lessons."""
        made = cls(LengthLearner(), SharedPrefix())
        for prompt, (tokens, output) in lessons().items():
            made.predictor.observe(made.facts(prompt, tokens), output)
        return made

    def facts(self, prompt: str, num_prompt_tokens: int) -> RequestFacts:
        """The facts that a server would have about a request."""
        return self.prefixes.facts(
            prompt, num_prompt_tokens=num_prompt_tokens, max_output_tokens=MAX_OUTPUT_TOKENS
        )

    def estimates(self, requests: Sequence[TraceRequest]) -> Estimates:
        """The predictions for a stream."""
        asked = {request.id: self.facts(request.prompt or "", request.input_tokens) for request in requests}
        said = ((name, self.predictor.predict(facts)) for name, facts in asked.items())
        return {name: estimate for name, estimate in said if estimate is not None}


@cache
def taught() -> Taught:
    """The shared instance of the taught predictor."""
    return Taught.with_lessons()


def estimates_of(predictor: str | None, requests: Sequence[TraceRequest], seed: int) -> Estimates:
    """A predictor's estimates for a stream, of the taught one for `TAUGHT`; empty where there is none."""
    if predictor is None:
        return {}
    if predictor == TAUGHT:
        return taught().estimates(requests)
    source = length_source(predictor, requests, seed)
    assert source is not None
    said = ((request.id, source.predict(request, MAX_OUTPUT_TOKENS)) for request in requests)
    return {name: estimate for name, estimate in said if estimate is not None}


# ---- conversations: every prompt extends the one before ----------------------------------------------

TURNS = 5
THINKING_S = 3.0
"""Mean time from a turn to the next."""


def conversations(rate_rps: float, seconds: float, seed: int) -> list[TraceRequest]:
    """Turns in order of arrival, `rate_rps` of them a second on average, of conversations that begin within
    `seconds`.
    """
    rng = Random(seed)
    turns: list[TraceRequest] = []
    begins_s, number = 0.0, 0
    while (begins_s := begins_s + rng.expovariate(rate_rps / TURNS)) < seconds:
        at_s = begins_s
        for turn in range(TURNS):
            blocks = tuple(range(number * TURNS, number * TURNS + turn + 1))
            turns.append(
                TraceRequest(
                    id=f"{number}-{turn}",
                    arrival_s=at_s,
                    input_tokens=turn * MOONCAKE_BLOCK_TOKENS + rng.randint(32, MOONCAKE_BLOCK_TOKENS),
                    output_tokens=rng.randint(8, 60),
                    prefix_blocks=blocks,
                )
            )
            at_s += rng.expovariate(1 / THINKING_S)
        number += 1
    return sorted(turns, key=lambda request: request.arrival_s)
