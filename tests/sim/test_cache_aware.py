"""The gain, over several simulated engines, of sending conversations back to where their beginning is cached."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from headway.results.metrics import jct_s
from headway.sim.simulation import System
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from tests.sim.worlds import SECOND_STEPS, Linear, calibration, limits, request, run

pytestmark = pytest.mark.slow

TURNS = 4


def conversations(count: int, seed: int) -> list[TraceRequest]:
    """Each turn repeats the one before, and 512 tokens more."""
    rng, turns = Random(seed), []
    for number in range(count):
        at_s = rng.uniform(0, count / 4)
        for turn in range(TURNS):
            blocks = tuple(number * TURNS + block for block in range(turn))
            tokens = turn * MOONCAKE_BLOCK_TOKENS + rng.randint(32, MOONCAKE_BLOCK_TOKENS)
            turns.append(request(f"{number}-{turn}", at_s, tokens, 20, prefix_blocks=blocks))
            at_s += rng.expovariate(1 / 5)
    return sorted(turns, key=lambda each: each.arrival_s)


def served(requests: list[TraceRequest], router: str, instances: int = 3) -> tuple[float, int]:
    """Mean completion time in seconds, and tokens computed by all engines together."""
    system = System(
        limits=limits(num_blocks=20_000, max_num_seqs=16, max_num_batched_tokens=512),
        calibration=calibration(Linear(base_s=0.01, per_token_s=1e-4)),
        instances=instances,
        router=router,
    )
    records, result = run(
        requests, "vllm", system, check=False
    )  # a look at every block in every step is most of it
    times_s = [time_s for record in records.values() if (time_s := jct_s(record)) is not None]
    assert len(times_s) == len(requests)
    return fmean(times_s), sum(total.tokens for total in result.totals.values())


@pytest.mark.parametrize("seed", range(3))
def test_conversations_are_computed_once(seed: int) -> None:
    requests = conversations(20, seed)
    _, least_tokens = served(requests, "round-robin", instances=1)
    aware_s, aware_tokens = served(requests, "cache-aware")
    blind_s, blind_tokens = served(requests, "least-work")
    assert aware_tokens < 1.05 * least_tokens
    assert blind_tokens > 1.2 * least_tokens
    assert aware_s < blind_s


def test_two_turns_by_hand() -> None:
    # A second a step of 512 tokens. a: 512 tokens of prompt and one of answer, from 0 to 1, at the first of two.
    # b comes at 2 and begins with a's 512 tokens: there it has one step more to do, elsewhere two.
    first = request("a", 0.0, 512, 1, prefix_blocks=(7,))
    second = request("b", 2.0, 1024, 1, prefix_blocks=(7, 8))
    system = System(
        limits=limits(num_blocks=400, max_num_batched_tokens=512), calibration=SECOND_STEPS, instances=2
    )
    blind, _ = run([first, second], "vllm", replace(system, router="round-robin"))
    aware, _ = run([first, second], "vllm", replace(system, router="cache-aware"))
    assert (blind["b"].instance, blind["b"].finished_s) == ("1", 4.0)
    assert (aware["b"].instance, aware["b"].finished_s) == ("0", 3.0)
