"""The stream that real instances are compared with, and the targets its clients have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import SimulationError
from headway.results import Summary
from headway.traces import NAMED_LAWS, Gamma, TraceRequest, generate, scale_lengths, scale_rate

LAW = "azure-conversation"
ARRIVAL_CV = 2.0
"""Coefficient of variation of the intervals between arrivals; 1 is Poisson. The Azure 2023 conversation trace has 1.0
second by second and more over minutes; of a stream of seconds all of it has to be in the intervals."""
LONGEST_INPUT_TOKENS, LONGEST_OUTPUT_TOKENS = 3_000, 128
"""The law's lengths are divided by the factors that put their 99th percentiles here; the demo's context is 4,096."""

TTFT_FACTOR = 10.0
"""TTFT target over the median at light load (ours): the paper's 1.0 s is at least as many times a prompt's prefill."""
TBT_SHARE = 0.15
"""TBT target over TTFT target, as in the paper (0.15 s and 1.0 s)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a stream is made of, but for its rate."""

    cv: float = ARRIVAL_CV
    longest_input_tokens: int = LONGEST_INPUT_TOKENS
    longest_output_tokens: int = LONGEST_OUTPUT_TOKENS

    def text(self) -> str:
        """For people."""
        return (
            f"lengths of {LAW}, inputs scaled to {self.longest_input_tokens} tokens and outputs to "
            f"{self.longest_output_tokens} (99th percentiles); gamma arrivals, cv {self.cv:g}, the last when the run's "
            "time is up, so that the load is what it is called"
        )


def bursty_stream(
    rate_rps: float, seconds: float, seed: int, slo: Slo = NO_TARGETS, shape: Shape | None = None
) -> list[TraceRequest]:
    """`rate_rps * seconds` requests within exactly `seconds`, with these targets; at least two."""
    shape = shape or Shape()
    law, count = NAMED_LAWS[LAW], max(2, round(rate_rps * seconds))
    drawn = generate(Gamma(rate_rps, shape.cv), law.input, law.output, count, seed)
    fitted = scale_lengths(drawn, shape.longest_input_tokens, shape.longest_output_tokens)
    timed = scale_rate(fitted, fitted[-1].arrival_s / seconds)
    return [replace(request, slo=slo) for request in timed]


@dataclass(frozen=True, slots=True)
class TargetRule:
    """From what is measured at light load to targets, decided before anything is compared."""

    ttft_factor: float = TTFT_FACTOR
    tbt_share: float = TBT_SHARE

    def targets(self, light: Summary) -> Slo:
        """Raises SimulationError if nothing was finished at light load."""
        if light.p50_ttft_s is None:
            raise SimulationError("no request finished at light load, so there is nothing to set targets by")
        ttft_s = self.ttft_factor * light.p50_ttft_s
        return Slo(ttft_s=ttft_s, tbt_s=self.tbt_share * ttft_s)

    def text(self) -> str:
        """For people."""
        return (
            f"TTFT: {self.ttft_factor:g} times the median at light load; TBT: {self.tbt_share:g} of the TTFT target, "
            "as the paper's 0.15 s and 1.0 s"
        )
