"""Verdicts on a paper's statements: the boundaries of each rule."""

from __future__ import annotations

import pytest
from headway_reproduce.claims import (
    Claim,
    Verdict,
    claims_part,
    judged_equal,
    judged_gain,
    judged_near,
    judged_range,
    judged_trend,
    verdict_counts,
)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (4.0, "reproduced"),
        (6.0, "reproduced"),
        (6.1, "partly"),
        (2.6, "partly"),
        (1.04, "not"),
        (0.5, "not"),
        (None, "not run"),
    ],
)
def test_a_gain_of_four_is_reproduced_within_a_factor_of_one_and_a_half(
    ours: float | None, verdict: Verdict
) -> None:
    assert judged_gain(ours, 4.0) == verdict


def test_a_small_gain_is_near_only_if_it_is_a_gain_or_the_paper_has_none() -> None:
    # 1.3 / 1.5 is below 1: to lose a little is not near to gaining a little.
    assert judged_gain(0.9, 1.3) == "not"
    assert judged_gain(0.9, 1.0) == "reproduced"


def test_a_range_is_reproduced_at_both_ends() -> None:
    assert judged_range((1.0, 4.0), (1.0, 4.3)) == "reproduced"
    assert judged_range((1.0, 2.0), (1.0, 4.3)) == "partly"
    assert judged_range((0.2, 1.0), (1.0, 4.3)) == "not"
    assert judged_range(None, (1.0, 4.3)) == "not run"


def test_a_trend_holds_at_every_step_or_on_the_whole() -> None:
    assert judged_trend([1.0, 2.0, 3.0], rising=True) == "reproduced"
    assert judged_trend([1.0, 3.0, 2.0], rising=True) == "partly"
    assert judged_trend([1.0, 3.0, 1.0], rising=True) == "not"
    assert judged_trend([3.0, 2.0, None], rising=False) == "reproduced"
    assert judged_trend([1.0, 1.04], rising=True) == "not"
    assert judged_trend([1.0, 2.0, 1.95, 3.0], rising=True) == "reproduced"
    assert judged_trend([3.0], rising=False) == "not run"


def test_a_value_is_near_within_the_factor_either_way() -> None:
    assert [judged_near(ours, 3.0) for ours in (2.0, 4.5, 1.9, None)] == [
        "reproduced",
        "reproduced",
        "not",
        "not run",
    ]


def test_equal_is_within_a_twentieth_either_way() -> None:
    assert [judged_equal(ratio) for ratio in (1.05, 0.96, 1.06, None)] == [
        "reproduced",
        "reproduced",
        "not",
        "not run",
    ]


def test_every_statement_is_a_row_and_verdicts_are_counted() -> None:
    claims = [
        Claim(where="abstract", says="gain", paper="5.1", ours="2.00", verdict="partly", reason="tested"),
        Claim(where="Fig. 1", says="equal", paper="1", ours="1.00", verdict="reproduced"),
    ]
    assert verdict_counts(claims) == {"reproduced": 1, "partly": 1}
    part = claims_part(claims, "simulated, abacus")
    assert part.text == ["1 reproduced, 1 partly."]
    [table] = part.tables
    assert table.rows[0] == ["abstract", "gain", "5.1", "2.00", "partly", "tested"]
    assert table.measured_on == "simulated, abacus"
