from __future__ import annotations

from collections import Counter
from itertools import product
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.lab.trace import Trace
from headway.planner.machine import Configuration
from headway.planner.sampling import (
    Sample,
    candidates,
    counted_from_s,
    cut,
    point,
    sample,
    shares,
    spread,
    van_der_corput,
)
from headway.planner.space import Index, PolicySettings, Space
from headway.traces import TraceRequest


def made(index: Index, gpus: int = 1, policy: str = "vllm") -> Configuration:
    """A configuration that tells where on a grid it is."""
    layout, seats, tokens, threshold, host = index
    return Configuration(
        gpus=gpus,
        policy=policy,
        tp=layout + 1,
        instances=1,
        seats=seats + 1,
        tokens_a_step=tokens + 1,
        threshold=threshold / 100,
        host_gib=float(host),
    )


def grid(*shape: int, gpus: int = 1, policy: str = "vllm", without: int | None = None) -> PolicySettings:
    """All settings of a shape except the one with this many seats."""
    indexes = [index for index in product(*map(range, shape)) if index[1] != without]
    found = {index: made(index, gpus, policy) for index in indexes}
    return PolicySettings(gpus, policy, shape, found, next(iter(found.values()), None))


SHAPE = (3, 7, 6, 4, 3)


def test_mirrored_digits_by_hand() -> None:
    assert [van_der_corput(number, 2) for number in range(1, 8)] == [
        *(0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875)
    ]
    # 5 is 12 in base 3, so 0.21 there: 2/3 + 1/9.
    assert abs(van_der_corput(5, 3) - 7 / 9) < 1e-12


def test_a_point_is_a_setting_on_each_axis() -> None:
    # Halves, thirds, fifths, sevenths and elevenths of 1.
    assert point(1, (4, 6, 10, 14, 22)) == (2, 2, 2, 2, 2)


def test_the_plain_one_comes_first_and_none_comes_twice() -> None:
    whole = grid(*SHAPE)
    found = spread(whole, 100)
    assert found[0] == whole.plain
    assert len(set(found)) == 100


def test_every_axis_is_spread_over_by_every_beginning() -> None:
    for size in (30, 60, 120):
        found = spread(grid(*SHAPE), size)
        for axis, length in enumerate(SHAPE):
            counts = Counter(
                (each.tp, each.seats, each.tokens_a_step, each.threshold, each.host_gib)[axis]
                for each in found
            )
            assert len(counts) == length
            assert max(counts.values()) <= 2 * size / length + 2


def test_what_is_not_possible_is_passed_over() -> None:
    found = spread(grid(*SHAPE, without=2), 80)
    assert len(found) == 80
    assert all(each.seats != 3 for each in found)


def test_all_are_taken_where_there_are_no_more() -> None:
    small = grid(1, 3, 2, 1, 1)
    assert set(spread(small, 100)) == set(small.possible.values())
    assert spread(small, 0) == []


def test_the_same_seed_gives_the_same_and_another_others() -> None:
    assert spread(grid(*SHAPE), 50, seed=1) == spread(grid(*SHAPE), 50, seed=1)
    assert set(spread(grid(*SHAPE), 50, seed=1)) != set(spread(grid(*SHAPE), 50))


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 300))
def test_shares_are_even_as_far_as_may_be(sizes: list[int], total: int) -> None:
    given = shares(sizes, total)
    assert sum(given) == min(total, sum(sizes))
    assert all(0 <= mine <= size for mine, size in zip(given, sizes, strict=True))
    hungry = [mine for mine, size in zip(given, sizes, strict=True) if mine < size]
    if hungry:
        assert max(given) - min(hungry) <= 1


def space(*grids: PolicySettings) -> Space:
    """The space of these grids, with each number of GPUs' plain configuration as the default."""
    return Space(grids, {each.gpus: each.plain for each in grids if each.plain is not None}, {})


def test_half_are_on_all_of_the_gpus_and_policies_take_turns() -> None:
    whole = space(
        grid(*SHAPE, gpus=1),
        grid(*SHAPE, gpus=2),
        *(grid(*SHAPE, gpus=4, policy=name) for name in ("vllm", "edf")),
    )
    found = candidates(whole, 80)
    assert {gpus: len(each) for gpus, each in found.items()} == {1: 20, 2: 20, 4: 40}
    assert [each.policy for each in found[4][:4]] == ["vllm", "edf", "vllm", "edf"]
    assert {gpus: len(each) for gpus, each in candidates(whole, 90, even=True).items()} == {
        1: 30,
        2: 30,
        4: 30,
    }


def test_what_one_has_no_use_for_goes_to_the_others() -> None:
    uneven = space(grid(1, 2, 1, 1, 1, gpus=1), grid(*SHAPE, gpus=2))
    assert {gpus: len(each) for gpus, each in candidates(uneven, 50).items()} == {1: 2, 2: 48}


def test_every_number_of_gpus_has_at_least_one() -> None:
    whole = space(*(grid(*SHAPE, gpus=gpus) for gpus in (1, 2, 4)))
    assert [len(each) for each in candidates(whole, 1).values()] == [1, 1, 1]


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
    turns = Trace("gen:poisson:rate=2/input=sharegpt/output=sharegpt/count=1500/turns=8/think=60").requests()
    part = cut(turns, sample(0, 60.0, drawn=True))
    assert len(part) / 60 == pytest.approx(16, rel=0.1)
    assert fmean(turn.input_tokens for turn in part) == pytest.approx(
        fmean(turn.input_tokens for turn in turns), rel=0.1
    )
