"""The paper's directions on a small fixed workload: the first 200 requests of two groups."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from headway_reproduce.adaptivellm.cells import (
    BASELINE,
    BY_ALL,
    BY_PROMPT,
    MEMORY_ONLY,
    REQUESTS,
    SWAP,
    AdaptivePoint,
    ModelAndData,
)
from headway_reproduce.study_runs import RunResult, simulate_run, throughput_rps

FEW = 200


@cache
def run(policy: str, data: str = "Chatbot") -> RunResult:
    """A group's first requests under one policy."""
    whole = AdaptivePoint(group=ModelAndData("OPT-13B", data)).run(policy, 0)
    result = simulate_run(replace(whole, trace=whole.trace.replace(f"count={REQUESTS}", f"count={FEW}")))
    assert result.summary.finished == FEW
    return result


def rate(policy: str, data: str = "Chatbot") -> float:
    """Requests a second."""
    found = throughput_rps(run(policy, data))
    assert found is not None
    return found


def test_chats_swap_more_than_they_recompute_by_the_prompts_length() -> None:
    for policy in (BY_PROMPT, MEMORY_ONLY):
        assert run(policy).meter.swaps > run(policy).meter.recomputes


def test_by_the_length_so_far_they_recompute_more_since_the_host_is_full() -> None:
    meter = run(BY_ALL).meter
    assert meter.recomputes > meter.swaps
    assert meter.host_full > 0.5 * meter.recomputes


def test_the_baseline_recomputes_always_and_vllm_s_swaps_always() -> None:
    assert (run(BASELINE).meter.swaps, run(SWAP).meter.recomputes) == (0, 0)
    assert run(BASELINE).meter.recomputes > 0
    assert run(SWAP).meter.swaps > 0


def test_chats_get_through_faster_than_under_vllm_and_vllm_s_is_the_slowest() -> None:
    for policy in (BY_PROMPT, MEMORY_ONLY):
        assert rate(policy) > 1.02 * rate(BASELINE)
    assert rate(SWAP) < 0.8 * rate(BASELINE)


def test_summaries_seldom_find_the_host_full_and_swap_less_than_chats() -> None:
    meter = run(BY_PROMPT, "Summary").meter
    assert meter.host_full <= 0.05 * (meter.swaps + meter.recomputes)
    assert meter.swaps < run(BY_PROMPT).meter.swaps


def test_requests_wait_less_for_their_size_by_either_reading() -> None:
    before = run(BASELINE).summary.weighted_turnaround
    assert before is not None
    for policy in (BY_PROMPT, BY_ALL):
        found = run(policy).summary.weighted_turnaround
        assert found is not None
        assert found < before
