from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.lab.stream import Stream
from headway.planner.sampling import Sample, counted_from_s, cut, sample
from headway.traces import TraceRequest


def trace(*arrivals_s: float) -> list[TraceRequest]:
    return [
        TraceRequest(id=str(place), arrival_s=arrival_s, input_tokens=10, output_tokens=5)
        for place, arrival_s in enumerate(arrivals_s)
    ]


def times(requests: list[TraceRequest]) -> list[float]:
    return [request.arrival_s for request in requests]


def test_a_window_begins_with_a_request_at_0() -> None:
    # The request at half of eight is the fifth, at 40 s; within 25 s of it are those at 50 and 60.
    part = cut(trace(0, 10, 20, 30, 40, 50, 60, 70), Sample(1, 0.5, 25.0))
    assert times(part) == [0, 10, 20]
    assert [request.id for request in part] == ["4", "5", "6"]


def test_a_window_near_the_end_begins_earlier() -> None:
    part = cut(trace(0, 10, 20, 30, 40), Sample(1, 0.9, 25.0))
    assert times(part) == [5, 15, 25]
    assert part[-1].id == "4"


def test_a_window_longer_than_the_trace_is_all_of_it() -> None:
    assert times(cut(trace(5, 15, 30), Sample(3, 0.75, 100.0))) == [0, 10, 25]


@given(
    st.lists(st.floats(0, 1e5), min_size=1, max_size=50).map(sorted),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 1e5),
)
def test_there_is_always_somebody_and_nobody_is_early(
    arrivals_s: list[float], start_share: float, window_s: float
) -> None:
    part = cut(trace(*arrivals_s), Sample(0, start_share, window_s))
    assert part
    assert all(request.arrival_s >= 0 for request in part)
    assert times(part) == sorted(times(part))
    assert counted_from_s(part, Sample(0, start_share, window_s)) <= part[-1].arrival_s


def test_the_warm_up_does_not_count_unless_nobody_comes_later() -> None:
    assert counted_from_s(trace(0, 1, 50), Sample(0, 0.0, 100.0)) == 10.0
    assert counted_from_s(trace(0, 1), Sample(0, 0.0, 100.0)) == 0.0


def test_samples_of_a_file_are_other_windows_and_those_of_a_workload_other_draws() -> None:
    assert [sample(number, 60.0, drawn=False).start_share for number in range(4)] == [0.5, 0.25, 0.75, 0.125]
    assert {sample(number, 60.0, drawn=True).start_share for number in range(4)} == {0.5}
    assert [sample(number, 60.0, drawn=True).number for number in range(3)] == [0, 1, 2]


def test_a_sample_of_conversations_is_not_their_first_turns_alone() -> None:
    """Two conversations of eight turns begin a second, for 750 s: in the middle 16 turns come a second."""
    turns = Stream("gen:poisson:rate=2/input=sharegpt/output=sharegpt/count=1500/turns=8/think=60").requests()
    part = cut(turns, sample(0, 60.0, drawn=True))
    assert len(part) / 60 == pytest.approx(16, rel=0.1)
    assert fmean(turn.input_tokens for turn in part) == pytest.approx(
        fmean(turn.input_tokens for turn in turns), rel=0.1
    )
