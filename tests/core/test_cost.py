from __future__ import annotations

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost


def test_before_anything_was_measured_nothing_takes_time() -> None:
    cost: CostModel = UnknownCost()
    for predict in (cost.prefill_s, cost.swap_out_s, cost.swap_in_s):
        assert [predict(size) for size in (0, 1, 10**6)] == [0.0, 0.0, 0.0]
    assert cost.step_s(BatchShape(num_jobs=9, num_tokens=900)) == 0.0
