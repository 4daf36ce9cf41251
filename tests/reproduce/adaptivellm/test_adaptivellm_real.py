from __future__ import annotations

from dataclasses import replace

import pytest
from headway_reproduce.adaptivellm.study import REAL_PLAN, real_requests

from headway.engine.stepped_engine import SteppedEngine


def test_the_workload_is_the_groups_own_beginning_all_at_once() -> None:
    requests = real_requests(50)
    assert len(requests) == 50
    assert {request.arrival_s for request in requests} == {0.0}
    assert {request.max_output_tokens for request in requests} == {64}


def test_the_engine_has_the_papers_kv_tokens_in_larger_blocks() -> None:
    sizes = REAL_PLAN.sizes
    assert (sizes.blocks * sizes.block_tokens, sizes.host_blocks * sizes.block_tokens) == (128 * 16, 64 * 16)


@pytest.mark.engine
def test_they_swap_and_recompute_on_the_real_engine() -> None:
    sizes = REAL_PLAN.sizes
    engine = SteppedEngine("demo", sizes.flags(), sizes.settings("vllm-0.2.5"))
    try:
        found = replace(REAL_PLAN, rounds=1).run(engine, real_requests(100))
    finally:
        engine.close()
    by_policy = {result.policy: result.summaries[0] for result in found}
    assert all(summary.finished == 100 for summary in by_policy.values())
    assert by_policy["vllm-0.2.5"].swapped_out_blocks == 0
    assert by_policy["vllm-s"].recomputed_tokens == 0
    assert by_policy["vllm-s"].swapped_out_blocks > 0
