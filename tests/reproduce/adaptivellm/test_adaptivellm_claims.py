"""How statements of several groups are told and judged, by hand."""

from __future__ import annotations

import pytest
from headway_reproduce.adaptivellm.claims import Outcome, by_reading, judged_cases, judged_cuts, judged_gains


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([1.38, 1.26], "reproduced"),  # 1.38 is 1.095 times 1.26
        ([1.38, 1.10], "partly"),  # 1.25 times, but faster
        ([1.20, 1.10, 0.90], "partly"),  # two of three are faster
        ([1.38, 1.02], "partly"),  # 1.02 is the same: one of two is faster
        ([0.97, 0.92], "not"),
    ],
)
def test_gains_are_near_the_papers_or_in_its_direction_or_neither(ours: list[float], verdict: str) -> None:
    assert judged_gains([(gain, 1.38) for gain in ours]).verdict == verdict


def test_gains_are_told_as_a_range() -> None:
    assert judged_gains([(1.38, 1.38), (1.1, 1.38)]).ours == "1.10 to 1.38; near in 1 of 2"


@pytest.mark.parametrize(
    ("cuts", "verdict"),
    [
        # From 20 to 40 % shorter is 1.25 to 1.67 times as short; a tenth more either way is 12 to 45 %.
        ([0.13, 0.45], "reproduced"),
        ([0.11, 0.3], "partly"),
        ([0.01, 0.3], "partly"),
        ([-0.01, 0.02, 0.3], "not"),
        ([], "not run"),
    ],
)
def test_cuts_are_in_the_papers_range_or_most_are_shorter_or_neither(cuts: list[float], verdict: str) -> None:
    assert judged_cuts(cuts, (0.2, 0.4)).verdict == verdict


def test_cases_are_counted() -> None:
    assert judged_cases([True, True, False], "so many") == Outcome("so many; in 2 of 3", "partly")


def test_a_statement_is_judged_by_the_policy_of_each_reading() -> None:
    readings = {"prompt": "adaptivellm-prompt", "prompt + output": "adaptivellm"}
    claims = list(by_reading(readings, lambda policy: Outcome(policy, "not"), where="4.3", says="swaps"))
    assert [(claim.reading, claim.ours) for claim in claims] == [*readings.items()]
    assert {(claim.where, claim.says, claim.paper, claim.verdict) for claim in claims} == {
        ("4.3", "swaps", "yes", "not")
    }
