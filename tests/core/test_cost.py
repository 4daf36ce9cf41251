from __future__ import annotations

from headway.core.cost import CostModel, UnknownCost


def test_before_anything_was_measured_nothing_takes_time() -> None:
    cost: CostModel = UnknownCost()
    assert [cost.prefill_s(tokens) for tokens in (0, 1, 10**6)] == [0.0, 0.0, 0.0]
