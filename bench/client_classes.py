"""The clients of a stream: whom each request is from, and the targets that such clients have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from headway_reproduce.ascendra.real_stream import TTFT_FACTOR

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError, SimulationError
from headway.lab.demo_stream import INTERACTIVE_SHARE
from headway.results import Summary
from headway.traces import TraceRequest

NONE, ONE, TWO = "none", "one", "two"
KINDS = (NONE, ONE, TWO)
"""No targets; all clients interactive; two classes, seven in ten interactive and the others patient."""
INTERACTIVE, PATIENT = "interactive", "patient"

INTERACTIVE_TBT_FACTOR = 5.0
"""TBT target over the mean at light load. Source: the strict target of Sarathi-Serve (OSDI 2024, section 5)."""
PATIENT_TBT_FACTOR = 25.0
"""Source: its relaxed target."""
PATIENCE = 20.0
"""Times as long as interactive clients patient ones wait for a first token: as in `make demo`, 8 s and 0.4 s."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What each class of clients asks for."""

    interactive: Slo
    patient: Slo

    @property
    def classes(self) -> Mapping[Slo, str]:
        """Whose targets they are."""
        return {self.interactive: INTERACTIVE, self.patient: PATIENT}

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """By class, in seconds."""
        return {name: {"ttft_s": slo.ttft_s, "tbt_s": slo.tbt_s} for slo, name in self.classes.items()}


def targets_from(light: Summary) -> Targets:
    """The targets that follow from what `vllm` does at a light load, before anything is compared.

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
    """For people: how the targets come about."""
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
