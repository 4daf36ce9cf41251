"""How statements of the paper are judged, by hand."""

from __future__ import annotations

import pytest
from headway_reproduce.adaptivellm.statements import (
    Outcome,
    Statement,
    judged_cases,
    judged_cuts,
    judged_gains,
    judged_most,
    statements_data,
    statements_part,
)
from headway_reproduce.claims import Verdict

from headway.results.study import Value


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1.38, 1.25], "reproduced"),  # 1.25 is 0.906 of 1.38
        ([1.38, 1.10], "partly"),  # 0.8 of it, but faster
        ([1.20, 1.10, 0.90], "partly"),  # two of three are faster
        ([1.38, 1.02], "not"),  # 1.02 is the same: one of two is faster
        ([0.97, 0.92], "not"),
    ],
)
def test_gains_are_near_the_papers_or_in_its_direction_or_neither(ours: list[float], verdict: str) -> None:
    assert judged_gains([(gain, 1.38) for gain in ours]).verdict == verdict


def test_gains_are_told_as_a_range() -> None:
    assert judged_gains([(1.38, 1.38), (1.1, 1.38)]).ours == "1.10 to 1.38; near in 1 of 2"


@pytest.mark.parametrize(
    ("cuts", "verdict"),
    [([0.1, 0.5], "reproduced"), ([0.1, 0.51], "partly"), ([0.01, 0.3], "partly"), ([-0.01, 0.3], "not")],
)
def test_cuts_are_in_the_papers_range_or_all_shorter_or_neither(cuts: list[float], verdict: str) -> None:
    assert judged_cuts(cuts, (0.2, 0.4)).verdict == verdict


@pytest.mark.parametrize(
    ("true", "verdict"),
    [([True] * 3, "reproduced"), ([True, True, False], "partly"), ([True, False], "not")],
)
def test_what_is_said_of_all_is_true_of_all_of_most_or_of_fewer(true: list[bool], verdict: Verdict) -> None:
    assert judged_cases(true, "so many") == Outcome(f"so many; in {sum(true)} of {len(true)}", verdict)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(0.01, "reproduced"), (0.02, "partly"), (0.03, "not"), (None, "not run")]
)
def test_a_cost_is_at_most_the_papers_or_twice_that(ours: float | None, verdict: str) -> None:
    assert judged_most(ours, 0.01, "x").verdict == verdict


def test_what_was_not_run_is_no_verdict() -> None:
    assert {judged_gains([]).verdict, judged_cuts([], (0, 1)).verdict, judged_cases([], "").verdict} == {
        "not run"
    }


def test_a_row_shows_each_reading_and_one_outcome_for_all_where_readings_make_no_difference() -> None:
    of_both = {"prompt": Outcome("1.2", "partly"), "prompt + output": Outcome("0.9", "not")}
    rows = [
        Statement(where="Table 3", says="faster", paper="1.4", found=of_both, changed="no padding 1.1"),
        Statement(where="2.1", says="KV", paper="39.1 MB", found={"": Outcome("78.1 MiB", "not")}),
    ]
    part = statements_part(rows)
    shown: list[list[Value]] = [list(row) for row in part.tables[0].rows]
    assert shown == [
        ["Table 3", "faster", "1.4", "1.2", "partly", "0.9", "not", None, None, "no padding 1.1"],
        ["2.1", "KV", "39.1 MB", "78.1 MiB", "not", "78.1 MiB", "not", "78.1 MiB", "not", ""],
    ]
    assert part.text == ["Verdicts. prompt: 1 partly, 1 not; prompt + output: 2 not; memory alone: 1 not."]
    assert list(statements_data(rows)) == ["statements"]
