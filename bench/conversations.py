"""Conversations whose every prompt is the one before and something new."""

from __future__ import annotations

from random import Random

from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

TURNS = 5
THINKING_S = 3.0
"""Mean time from a turn to the next."""


def conversations(rate_rps: float, seconds: float, seed: int) -> list[TraceRequest]:
    """Turns in order of arrival, so many a second in the mean, of conversations that begin within `seconds`."""
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
