from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from headway.planner.machine import Configuration
from headway.planner.sampling import candidates, point, shares, spread, van_der_corput
from headway.planner.space import Index, PolicyGrid, Space


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


def grid(*shape: int, gpus: int = 1, policy: str = "vllm", without: int | None = None) -> PolicyGrid:
    """All of a shape but what has this many seats less one."""
    indexes = [index for index in product(*map(range, shape)) if index[1] != without]
    found = {index: made(index, gpus, policy) for index in indexes}
    return PolicyGrid(gpus, policy, shape, found, next(iter(found.values()), None))


SHAPE = (3, 7, 6, 4, 3)


def test_mirrored_digits_by_hand() -> None:
    assert [van_der_corput(number, 2) for number in range(1, 8)] == [
        *(0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875),
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


def space(*grids: PolicyGrid) -> Space:
    """Of these grids, each number of GPUs with its plain configuration as the default."""
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
