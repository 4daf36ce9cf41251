"""The stream of `make demo`: two kinds of client, bursts, and lengths with a heavy tail."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from headway.core.slo import Slo
from headway.traces import LogNormal, OnOff, TraceRequest, generate

NAME = "demo"
"""How `headway bench --trace` calls it."""

REQUESTS = 480
INTERACTIVE_SHARE = 0.7
INTERACTIVE = Slo(ttft_s=0.4, tbt_s=0.05)
BACKGROUND = Slo(ttft_s=8.0)


def demo_stream(seed: int = 0) -> list[TraceRequest]:
    """480 requests, the same for every policy; `make demo` sends them at a share of the machine's capacity.

    As drawn: bursts of 60 requests/s for about 1.5 s, 8 requests/s between them; a few very long prompts among many
    short ones. Seven in ten come from people (first token within 0.4 s), the others from a batch job
    (within 8 s), in random order.
    """
    arrivals = OnOff(rate_on_rps=60, rate_off_rps=8, mean_on_s=1.5, mean_off_s=4)
    prompts = LogNormal(mean=220, sigma=1.2, maximum=3000, minimum=8)
    answers = LogNormal(mean=48, sigma=1.0, maximum=512, minimum=1)
    rng = Random(f"tenants of {seed}")
    return [_of_a_client(request, rng) for request in generate(arrivals, prompts, answers, REQUESTS, seed)]


def _of_a_client(request: TraceRequest, rng: Random) -> TraceRequest:
    interactive = rng.random() < INTERACTIVE_SHARE
    return replace(
        request,
        tenant="interactive" if interactive else "background",
        slo=INTERACTIVE if interactive else BACKGROUND,
    )
