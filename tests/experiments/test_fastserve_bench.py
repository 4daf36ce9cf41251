"""The sums of `bench/fastserve_real.py`, by hand."""

from __future__ import annotations

import pytest

from bench.fastserve_engine import Served
from bench.fastserve_real import SETTINGS, stream, who_pays


def served(number: int, output_tokens: int, jct_s: float) -> Served:
    return Served(number, output_tokens, arrival_s=1.0, first_token_s=1.0, finished_s=1.0 + jct_s)


def test_who_pays_is_by_quarter_of_the_answers_and_by_request() -> None:
    # The shortest answer takes 1 s in place of 4, the longest 8 s in place of 4; given in another order.
    stock = [served(0, 40, 4.0), served(1, 10, 4.0), served(2, 20, 4.0), served(3, 30, 4.0)]
    own = [served(0, 40, 8.0), served(1, 10, 1.0), served(2, 20, 2.0), served(3, 30, 4.0)]
    found = who_pays(stock, own)
    assert found["mean_gain_by_quarter"] == pytest.approx([4.0, 2.0, 1.0, 0.5])
    assert found["share_slower"] == pytest.approx(0.25)
    assert found["worst_slowdown"] == pytest.approx(2.0)


def test_a_stream_is_the_same_for_both_and_tells_nobody_the_lengths() -> None:
    requests = stream(10.0, 3.0, seed=1)
    assert requests == stream(10.0, 3.0, seed=1) != stream(10.0, 3.0, seed=2)
    assert len(requests) == 30
    assert {request.max_output_tokens for request in requests} == {512}


def test_stock_and_fastserve_have_the_same_engine() -> None:
    stock, own = (SETTINGS["short"].settings(system, 256) for system in ("stock", "fastserve"))
    assert (stock.policy, own.policy) == ("vllm", "fastserve")
    assert stock.host_kv == own.host_kv is not None
