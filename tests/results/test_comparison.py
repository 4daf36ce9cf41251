from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import RecordError
from headway.results import Comparison, compare, summarize
from headway.results.comparison import verdict

from .examples import make, runs, shed, unfinished


def side_by_side(**records: list[Record]) -> Comparison:
    return compare({policy: summarize(mine) for policy, mine in records.items()}, records)


# JCT of a, b and c: 2, 4 and 9 s
ABC = [
    make(id_, first_scheduled_s=0.0, first_token_s=1.0, finished_s=end)
    for id_, end in (("a", 2.0), ("b", 4.0), ("c", 9.0))
]


def test_policies_that_finished_the_same_requests_are_comparable() -> None:
    slower = [make(id_, finished_s=20.0) for id_ in "cba"]
    comparison = side_by_side(vllm=ABC, headway=slower)
    assert comparison.comparable
    assert (comparison.common, comparison.note) == ({}, "")
    assert list(comparison.summaries) == ["vllm", "headway"]


def test_where_finished_differs_the_common_subset_stands_beside_it() -> None:
    # headway sheds the slow one: its mean JCT is (2 + 4) / 2 = 3 s against (2 + 4 + 9) / 3 = 5 s, yet over the
    # two requests that both finished they are equal
    comparison = side_by_side(vllm=ABC, headway=[*ABC[:2], shed(ABC[2])])
    assert not comparison.comparable
    assert [summary.mean_jct_s for summary in comparison.summaries.values()] == [5, 3]
    assert [summary.mean_jct_s for summary in comparison.common.values()] == [3, 3]
    assert [summary.requests for summary in comparison.common.values()] == [2, 2]
    assert comparison.note == (
        "Latencies are not comparable: the policies finished different requests (vllm 3, headway 2); "
        "the 2 finished under all policies are shown as well."
    )


def test_as_many_but_other_requests_are_not_comparable() -> None:
    comparison = side_by_side(one=ABC[:2], other=ABC[1:])
    assert not comparison.comparable
    assert [summary.mean_jct_s for summary in comparison.common.values()] == [4, 4]


def test_moves_of_common_requests_stay_with_them() -> None:
    moved = unfinished("a", Outcome.HANDED_OFF, 0.0, 1.0, preemptions=3)
    comparison = side_by_side(one=[moved, *ABC], other=ABC[:2])
    assert [summary.handed_off for summary in comparison.common.values()] == [1, 0]
    assert comparison.common["one"].preemptions == 3


def test_one_policy_and_none_are_comparable() -> None:
    assert side_by_side(vllm=ABC).comparable
    assert side_by_side().comparable


def test_summaries_and_records_of_different_policies_are_an_error() -> None:
    with pytest.raises(RecordError, match=r"\['vllm'\] cannot go with records of \['orca'\]"):
        compare({"vllm": summarize(ABC)}, {"orca": ABC})


@given(first=runs(), second=runs(), names=st.permutations(["one", "other"]))
def test_the_common_subset_is_as_large_for_all(
    first: list[Record], second: list[Record], names: list[str]
) -> None:
    comparison = side_by_side(**dict(zip(names, (first, second), strict=True)))
    finished = {summary.finished for summary in comparison.common.values()}
    assert len(finished) <= 1
    for policy, summary in comparison.common.items():
        assert summary.requests == summary.finished <= comparison.summaries[policy].finished
    assert list(comparison.summaries) == names


MET, MISSED = Slo(deadline_s=1000.0), Slo(deadline_s=0.001)


def records(count: int, in_time: int, jct_s: float, slo: Slo = MET) -> list[Record]:
    """Requests that all take as long; the first `in_time` of them meet their target."""
    return [
        make(
            str(number),
            first_scheduled_s=0.0,
            first_token_s=0.0,
            finished_s=jct_s,
            slo=slo if number < in_time or not slo else MISSED,
        )
        for number in range(count)
    ]


def said(circumstances: str = "", /, **runs: list[Record]) -> str:
    return verdict(compare({name: summarize(mine) for name, mine in runs.items()}, runs), circumstances)


def test_a_win_is_told_with_both_figures_of_both_policies() -> None:
    found = said("At 0.9 of capacity", vllm=records(200, 122, 1.5), headway=records(200, 194, 0.6204))
    assert found == (
        "At 0.9 of capacity headway met more targets than vllm: 97 of 100 requests were on time instead of 61. "
        "headway answered sooner than vllm: the mean answer took 0.62 s instead of 1.5 s, and 99 of 100 came within "
        "0.62 s instead of 1.5 s."
    )


def test_each_measure_names_its_own_winner() -> None:
    found = said(vllm=records(100, 61, 0.6), headway=records(100, 97, 1.5))
    assert "headway met more targets than vllm: 97 of 100" in found
    assert "vllm answered sooner than headway: the mean answer took 0.6 s instead of 1.5 s" in found


def test_a_longer_tail_of_the_sooner_policy_is_told_as_its_price() -> None:
    found = said(vllm=records(100, 100, 2.0), headway=[*records(95, 95, 1.0), *records(100, 100, 9.0)[95:]])
    assert (
        "headway answered sooner than vllm: the mean answer took 1.4 s instead of 2 s, but 99 of 100" in found
    )
    assert found.endswith("but 99 of 100 came only within 9 s instead of 2 s.")


def test_what_one_run_cannot_tell_apart_is_a_tie() -> None:
    found = said(vllm=records(1000, 981, 1.0), headway=records(1000, 1000, 1.04))
    assert found == (
        "vllm and headway met about as many targets: 98 and 100 of 100 requests were on time. "
        "vllm and headway answered about as soon: the mean answer took 1 s and 1.04 s, and 99 of 100 came within "
        "1 s and 1.04 s."
    )


@pytest.mark.parametrize(
    ("in_time", "of_100"), [(0, "0 and 0"), (1, "1 and 1"), (999, "99 and 99"), (1000, "100 and 100")]
)
def test_all_and_none_are_all_and_none(in_time: int, of_100: str) -> None:
    run = records(1000, in_time, 1.0)
    assert f"targets: {of_100} of 100 requests" in said(vllm=run, headway=run)


def test_without_targets_only_times_are_compared() -> None:
    found = said(vllm=records(9, 9, 2.0, NO_TARGETS), headway=records(9, 9, 1.0, NO_TARGETS))
    assert found.startswith("headway answered sooner than vllm: the mean answer took 1 s instead of 2 s,")


def test_times_are_not_compared_where_different_requests_finished() -> None:
    # A refused request did not meet its target, so goodput speaks of the same requests.
    one = records(100, 100, 2.0)
    found = said(vllm=one, headway=[*records(60, 60, 1.0), *(shed(record) for record in one[60:])])
    assert found == (
        "vllm met more targets than headway: 100 of 100 requests were on time instead of 60. "
        "Their answer times are not comparable: different requests finished (100 under vllm and 60 under headway)."
    )


def test_nothing_is_compared_where_one_run_was_broken_off() -> None:
    found = said(vllm=records(1000, 900, 2.0), headway=records(40, 40, 1.0))
    assert found == "vllm and headway cannot be compared: 1,000 and 40 requests ended."


def test_where_nothing_finished_there_is_no_time() -> None:
    none = [shed(record) for record in records(3, 3, 1.0, NO_TARGETS)]
    assert said(vllm=none, headway=none) == "No request finished."


@pytest.mark.parametrize("names", [(), ("vllm",), ("vllm", "edf", "headway")])
def test_only_two_policies_have_a_verdict(names: tuple[str, ...]) -> None:
    assert said(**{name: records(3, 3, 1.0) for name in names}) == ""
