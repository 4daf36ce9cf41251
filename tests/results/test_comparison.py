import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.errors import RecordError
from headway.results import Comparison, compare, summarize

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


def test_nothing_in_common() -> None:
    comparison = side_by_side(one=ABC[:1], other=ABC[1:])
    assert not comparison.comparable
    assert comparison.common == {}
    assert "no request finished under all policies" in comparison.note


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
