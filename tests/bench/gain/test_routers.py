"""The workloads and sums of `bench/gain/routers.py`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bench.gain.routers import APPLICATIONS, OWN_BLOCKS, RouterRun, hot, served
from bench.streams import conversations
from headway.traces import MOONCAKE_BLOCK_TOKENS


def test_the_most_popular_application_has_half_of_all_requests() -> None:
    requests = hot(100.0, 50.0, seed=0)
    assert len(requests) == pytest.approx(5000, rel=0.1)
    asked = Counter(request.prefix_blocks for request in requests)
    assert len(asked) == APPLICATIONS
    (_, most), (_, second) = asked.most_common(2)
    assert most / len(requests) == pytest.approx(1 / 2, rel=0.1)
    assert second / len(requests) == pytest.approx(1 / 6, rel=0.1)
    assert all(request.input_tokens > OWN_BLOCKS * MOONCAKE_BLOCK_TOKENS for request in requests)


def test_caches_hold_more_where_conversations_stay() -> None:
    requests = conversations(40.0, 10.0, seed=1)
    run = RouterRun("conversations", 1.0, "round-robin", 1, "vllm", 0.0)
    (blind, found_blindly), (aware, found) = (
        served(requests, replace(run, router=router), instances=4)
        for router in ("round-robin", "cache-aware")
    )
    assert len(blind) == len(aware) == len(requests)
    assert found > 1.1 * found_blindly
