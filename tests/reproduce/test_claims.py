"""The one measure of all papers' statements: the boundaries of each rule."""

from __future__ import annotations

from math import inf

import pytest
from headway_reproduce.claims import (
    NOTHING_TRIED,
    Claim,
    Held,
    Verdict,
    as_above_one,
    as_cost,
    as_fact,
    as_gain,
    as_trend,
    as_value,
    claims_part,
    judged,
    reason_of,
    verdict_counts,
)

from headway.results.study import Value


@pytest.mark.parametrize(
    ("ours", "held"),
    [
        (4.0, Held.SIZE),
        (4.4, Held.SIZE),  # 1.1 times
        (3.63, Held.DIRECTION),
        (1.04, Held.DIRECTION),
        (1.03, Held.NOT),  # as good as equal
        (0.5, Held.NOT),
        (None, None),
    ],
)
def test_a_gain_of_four_is_near_in_its_direction_or_neither(ours: float | None, held: Held | None) -> None:
    assert as_gain(ours, 4.0) == held


def test_a_small_gain_is_near_only_if_it_is_a_gain() -> None:
    # 1.02 is within a tenth of 1.1, and no gain.
    assert as_gain(1.02, 1.1) == Held.NOT
    assert as_gain(1.02, 1.0) == Held.SIZE
    assert as_gain(1.06, 1.0) == Held.NOT


def test_a_loss_has_the_other_direction_and_a_range_may_begin_at_equality() -> None:
    assert as_gain(0.42, 0.44, 0.68) == Held.SIZE
    assert as_gain(0.8, 0.44, 0.68) == Held.DIRECTION
    assert as_gain(1.2, 0.44, 0.68) == Held.NOT
    assert as_gain(0.98, 1.0, 4.3) == Held.SIZE
    assert as_gain(9.0, 3.0, inf) == Held.SIZE


def test_facts_without_a_direction_hold_or_do_not() -> None:
    assert [as_value(ours, 3.0) for ours in (2.73, 3.3, 2.7, None)] == [Held.SIZE, Held.SIZE, Held.NOT, None]
    assert [as_cost(ours, 0.01) for ours in (0.0, 0.011, 0.012)] == [Held.SIZE, Held.SIZE, Held.NOT]
    assert [as_above_one(ours) for ours in (1.04, 1.03, None)] == [Held.SIZE, Held.NOT, None]


def test_a_trend_holds_at_every_step_or_on_the_whole() -> None:
    assert as_trend([1.0, 2.0, 3.0], rising=True) == Held.SIZE
    assert as_trend([1.0, 3.0, 2.0], rising=True) == Held.DIRECTION
    assert as_trend([1.0, 3.0, 1.0], rising=True) == Held.NOT
    assert as_trend([3.0, 2.0, None], rising=False) == Held.SIZE
    assert as_trend([1.0, 1.03], rising=True) == Held.NOT
    assert as_trend([1.0, 2.0, 1.95, 3.0], rising=True) == Held.SIZE
    assert as_trend([3.0], rising=False) is None


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ([Held.SIZE, Held.SIZE], "reproduced"),
        ([Held.SIZE, Held.DIRECTION], "partly"),
        ([Held.SIZE, Held.NOT], "partly"),
        ([Held.DIRECTION, Held.NOT, Held.NOT], "not"),
        ([None, Held.SIZE], "reproduced"),
        ([None], "not run"),
        ([], "not run"),
    ],
)
def test_a_statement_is_judged_by_its_facts(facts: list[Held | None], verdict: Verdict) -> None:
    assert judged(*facts) == verdict


@pytest.mark.parametrize(
    ("stands", "without", "paper", "said"),
    [
        (1.2, 1.3, 1.38, "explains it"),  # within a tenth of the paper's
        (1.1, 1.2, 1.38, "a part of it"),
        (1.2, 1.1, 1.38, "not the reason"),  # further away
        (1.5, 1.2, 1.38, "not the reason"),  # 1.087 times away before, 1.15 times after
        (1.1, 1.13, 1.38, "not the reason"),  # as good as equal
        (0.9, 1.04, inf, "explains it"),  # more than 1 is all that is said
        (0.5, 0.9, inf, "a part of it"),
        (1.2, 0.9, 0, "explains it"),
    ],
)
def test_what_a_run_without_a_reason_says_of_it(
    stands: float, without: float, paper: float, said: str
) -> None:
    assert (
        reason_of(stands, {"no x": without}, paper)
        == f"{stands:.2f} as it stands; no x {without:.2f} ({said})"
    )


def test_a_reason_is_judged_by_all_cases_together() -> None:
    # From 1.1 to 1.2 and from 1.1 to 1.08, of 1.2: nearer in the mean, and not all there.
    assert reason_of([1.1, 1.05], {"x": [1.2, 1.08]}, 1.2).endswith("x 1.08 to 1.20 (a part of it)")
    assert reason_of([1.1, None], {"x": [1.2, 1.08]}, 1.2) == "1.10 as it stands"
    assert reason_of(None, {"x": 1.0}, 1.2) == "not known as it stands"


def _claim(says: str, verdict: Verdict, reading: str = "", reason: str = "") -> Claim:
    return Claim(
        where="abstract", says=says, paper="5.1", ours="2.0", verdict=verdict, reading=reading, reason=reason
    )


def test_every_statement_is_a_row_and_verdicts_are_counted() -> None:
    claims = [_claim("gain", "partly", reason="tested"), _claim("equal", judged(as_fact(True)))]
    assert verdict_counts(claims) == {"reproduced": 1, "partly": 1}
    part = claims_part(claims, "simulated, abacus")
    assert part.text == ["1 reproduced, 1 partly."]
    [table] = part.tables
    assert table.rows[0] == ["abstract", "gain", "5.1", "2.0", "partly", "tested"]
    assert table.measured_on == "simulated, abacus"


def test_readings_stand_side_by_side_and_share_what_they_make_no_difference_to() -> None:
    claims = [
        _claim("faster", "partly", "prompt", "no padding 1.1"),
        _claim("faster", "not", "prompt + output", "no padding 1.1"),
        _claim("alone", "not", "memory alone"),
        _claim("KV", "reproduced"),
    ]
    part = claims_part(claims, "simulated")
    shown: list[list[Value]] = [list(row) for row in part.tables[0].rows]
    assert shown == [
        ["abstract", "faster", "5.1", "2.0", "partly", "2.0", "not", "-", "", "no padding 1.1"],
        ["abstract", "alone", "5.1", "-", "", "-", "", "2.0", "not", NOTHING_TRIED],
        ["abstract", "KV", "5.1", *(["2.0", "reproduced"] * 3), ""],
    ]
    assert part.text == [
        "prompt: 1 reproduced, 1 partly.",
        "prompt + output: 1 reproduced, 1 not.",
        "memory alone: 1 reproduced, 1 not.",
    ]
