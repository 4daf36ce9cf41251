from __future__ import annotations

import pytest

from bench.cost.engine_overhead import Round, figures

STOCK = [
    Round([0.004, 0.004, 0.010], {"schedule": 0.0003, "update": 0.0006}),
    Round([0.008, 0.008, 0.008], {"schedule": 0.0003, "update": 0.0006}),
    Round([0.004, 0.004, 0.004], {"schedule": 0.0003, "update": 0.0006}),
]
OURS = [
    Round([0.005, 0.005, 0.005], {"schedule": 0.0006, "update": 0.0006}),
    Round([0.008, 0.009, 0.010], {"schedule": 0.0006, "update": 0.0006}),
    Round([0.004, 0.004, 0.005], {"schedule": 0.0006, "update": 0.0006}),
]


def test_contenders_are_held_against_stock_round_by_round() -> None:
    found = figures({"stock": STOCK, "headway": OURS})
    # Medians of the rounds: 4, 8, 4 ms against 5, 9, 4: 1.25, 1.125 and 1 times; quartiles lie half way between.
    assert found["stock"]["step_us"] == 4000.0
    assert found["headway"]["step_us"] == 5000.0
    assert found["headway"]["times_stock"] == 1.125
    assert (found["headway"]["low"], found["headway"]["high"]) == pytest.approx((1.0625, 1.1875))
    assert "times_stock" not in found["stock"]


def test_parts_are_of_a_step_and_the_rest_is_what_is_left() -> None:
    # Three steps a round; stock's take 6, 8 and 4 ms on average.
    parts = figures({"stock": STOCK})["stock"]["parts_us"]
    assert parts == {"schedule": 100.0, "update": 200.0, "rest": 5700.0}
