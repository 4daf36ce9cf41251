import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.results.metrics import end_s, ends, jct_s
from headway.results.series import (
    MAX_POINTS,
    distribution,
    phase_spans,
    queue_lengths,
    spread,
    thin_by_peaks,
)

from .examples import make, runs, shed, unfinished, worked_run


def test_the_queue_of_the_worked_run() -> None:
    # arrivals at 0 1 2 3 4 5 6; starts at 1 (a), 1 (b), 6 (c); d leaves at 12, e at 9, g at 7; f fails at 5
    times_s, lengths = queue_lengths(worked_run())
    assert dict(zip(times_s.tolist(), lengths.tolist(), strict=True)) == {
        0: 1,
        1: 0,  # b arrives and starts at once, a starts
        2: 1,
        3: 2,
        4: 3,
        5: 3,  # f arrives and fails at once
        6: 3,  # c starts, g arrives
        7: 2,
        9: 1,
        12: 0,
    }


def test_a_queue_is_counted_from_the_first_arrival_and_to_the_first_token_at_worst() -> None:
    times_s, lengths = queue_lengths([make(arrival_s=0.5, first_scheduled_s=None)])
    assert (times_s.tolist(), lengths.tolist()) == ([0.0, 1.5], [1, 0])


@given(records=runs())
def test_a_queue_is_never_negative_and_ends_empty(records: list[Record]) -> None:
    times_s, lengths = queue_lengths(records)
    assert (lengths >= 0).all()
    assert (np.diff(times_s) > 0).all()
    assert len(lengths) == 0 or (lengths[-1] == 0 and times_s[0] == 0)


def test_an_unfinished_request_holds_a_distribution_down() -> None:
    # JCT 6 and 8 of three requests: 1/3 and 2/3, never 1
    ended = [make("a"), make("b", finished_s=8.0), shed(make("c"))]
    values_s, shares = distribution(ended, jct_s)
    assert values_s.tolist() == [6, 8]
    assert shares.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_a_distribution_has_no_zero_and_may_be_empty() -> None:
    at_once = make(first_scheduled_s=0.0, first_token_s=0.0, finished_s=0.0)
    assert distribution([at_once], jct_s)[0].tolist() == [1e-6]
    assert len(distribution([], jct_s)[0]) == 0


@given(count=st.integers(1, 3000))
def test_a_distribution_is_thinned_but_keeps_its_ends(count: int) -> None:
    ended = [make(str(i), finished_s=2.0 + i) for i in range(count)]
    values_s, shares = distribution(ended, jct_s)
    assert len(values_s) == min(count, MAX_POINTS)
    assert (values_s[0], values_s[-1], shares[-1]) == (2, 1 + count, 1)
    assert shares == pytest.approx((values_s - 1) / count)


@given(count=st.integers(0, 500), at_most=st.integers(2, 60))
def test_a_sample_is_even(count: int, at_most: int) -> None:
    found = spread(count, at_most)
    assert len(found) == len(set(found)) == min(count, at_most)
    if count > at_most:
        assert (found[0], found[-1]) == (0, count - 1)
        assert max(np.diff(found)) - min(np.diff(found)) <= 1


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=2000))
def test_a_thinned_queue_keeps_its_peak_and_its_end(lengths: list[int]) -> None:
    times_s = np.arange(len(lengths), dtype=float)
    thin_s, thin = thin_by_peaks(times_s, np.array(lengths))
    assert len(thin) <= MAX_POINTS + 1
    assert max(thin) == max(lengths)
    assert (thin_s[0], thin_s[-1], thin[-1]) == (0, len(lengths) - 1, lengths[-1])


@pytest.mark.parametrize(
    ("record", "spans"),
    [
        (make(arrival_s=0.5), [(0.0, 0.5), (0.5, 1.0), (1.5, 4.0)]),
        (make(arrival_s=0.5, first_scheduled_s=None), [(0.0, 1.5), (1.5, 0.0), (1.5, 4.0)]),
        (make(arrival_s=0.5, first_token_s=None), [(0.0, 0.5), (0.5, 5.0), (5.5, 0.0)]),
        (unfinished("x", Outcome.SHED, 1.5, 3.5), [(1.0, 2.0), (3.0, 0.0), (3.0, 0.0)]),
        (unfinished("x", Outcome.FAILED, 1.5, None), [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0)]),
    ],
)
def test_phases_of_a_request(record: Record, spans: list[tuple[float, float]]) -> None:
    assert phase_spans(record, 0.5) == spans


@given(records=runs())
def test_phases_fill_the_time_from_arrival_to_end(records: list[Record]) -> None:
    for record in ends(records):
        spans = phase_spans(record, 0.0)
        assert all(length_s >= 0 for _, length_s in spans)
        assert sum(length_s for _, length_s in spans) == pytest.approx(end_s(record) - record.arrival_s)
