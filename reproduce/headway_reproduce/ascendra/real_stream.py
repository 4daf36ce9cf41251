"""The stream for the comparison of real instances, and its clients' targets."""

from __future__ import annotations

from dataclasses import replace

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import SimulationError
from headway.results import Summary
from headway.traces import NAMED_LAWS, Gamma, TraceRequest, generate, scale_lengths, scale_rate

LAW = "azure-conversation"
ARRIVAL_CV = 2.0
"""Coefficient of variation of the intervals between arrivals; 1 is Poisson. The Azure 2023 conversation trace has 1.0
second by second and more over minutes; of a stream of seconds all of it has to be in the intervals."""
LONGEST_INPUT_TOKENS, LONGEST_OUTPUT_TOKENS = 3_000, 128
"""The law's lengths are divided by the factors that bring their 99th percentiles here; the demo's context is 4,096."""
SHAPE_TEXT = (
    f"lengths of {LAW}, inputs scaled to {LONGEST_INPUT_TOKENS} tokens and outputs to {LONGEST_OUTPUT_TOKENS} (99th "
    f"percentiles); gamma arrivals, cv {ARRIVAL_CV:g}, the last when the run's time is up, so that the load is what it "
    "is called"
)

TTFT_FACTOR = 10.0
"""TTFT target over the median at light load (ours): the paper's 1.0 s is at least as many times a prompt's prefill."""
TBT_SHARE = 0.15
"""TBT target over TTFT target, as in the paper (0.15 s and 1.0 s)."""
RULE_TEXT = (
    f"TTFT: {TTFT_FACTOR:g} times the median at light load; TBT: {TBT_SHARE:g} of the TTFT target, as the paper's "
    "0.15 s and 1.0 s"
)


def bursty_stream(
    rate_rps: float, seconds: float, seed: int, slo: Slo = NO_TARGETS, cv: float = ARRIVAL_CV
) -> list[TraceRequest]:
    """`rate_rps * seconds` requests within exactly `seconds`, with these targets; at least two."""
    law, count = NAMED_LAWS[LAW], max(2, round(rate_rps * seconds))
    drawn = generate(Gamma(rate_rps, cv), law.input, law.output, count, seed)
    fitted = scale_lengths(drawn, LONGEST_INPUT_TOKENS, LONGEST_OUTPUT_TOKENS)
    timed = scale_rate(fitted, fitted[-1].arrival_s / seconds)
    return [replace(request, slo=slo) for request in timed]


def targets(light: Summary) -> Slo:
    """The targets derived from latencies at light load, measured before the comparison.

    Raises SimulationError if nothing finished at light load.
    """
    if light.p50_ttft_s is None:
        raise SimulationError("no request finished at light load, so there is nothing to set targets by")
    ttft_s = TTFT_FACTOR * light.p50_ttft_s
    return Slo(ttft_s=ttft_s, tbt_s=TBT_SHARE * ttft_s)
