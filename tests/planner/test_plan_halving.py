from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from headway.planner.search import FINALISTS, Rung, judge, quota, rungs, sampled_s


def test_a_rung_by_hand() -> None:
    scores = {
        "best": (1.0, 1.2, 1.1),
        # Always 0.1 more: sure, although by itself its interval overlaps with that of the best.
        "steady": (1.1, 1.3, 1.2),
        # 0, 0.2 and 0 more: mean 0.067, deviation 0.115, so +- 4.303 x 0.115 / sqrt(3) = 0.287 holds 0.
        "noisy": (1.0, 1.4, 1.1),
        # 0.5, 0.6 and 0.7 more: mean 0.6 +- 4.303 x 0.1 / sqrt(3) = 0.248.
        "far": (1.5, 1.8, 1.8),
    }
    verdict = judge(scores, 3)
    assert verdict.kept == ("best", "noisy")
    assert verdict.worse == ("steady", "far")
    assert verdict.untold == ()


def test_what_does_not_fit_is_left_out_by_name_not_as_worse() -> None:
    verdict = judge({"a": (1.0, 2.0), "b": (1.1, 2.0), "c": (1.0, 2.3)}, 1)
    assert verdict.kept == ("a",)
    assert verdict.untold == ("b", "c")
    assert verdict.worse == ()


def test_with_one_sample_nobody_is_surely_worse() -> None:
    verdict = judge({"a": (1.0,), "b": (100.0,), "c": (2.0,)}, 2)
    assert (verdict.kept, verdict.worse, verdict.untold) == (("a", "c"), (), ("b",))


def test_what_serves_nobody_never_goes_on_beside_what_does() -> None:
    assert judge({"a": (inf,), "b": (3.0,)}, 2).worse == ("a",)
    assert judge({"a": (inf,), "b": (inf,)}, 1).kept == ("a",)
    assert judge({"a": (1.0, inf), "b": (3.0, 3.0)}, 2).worse == ("a",)


def test_equal_means_are_ranked_by_place() -> None:
    assert judge({"x": (1.0,), "y": (1.0,)}, 1, place=lambda item: -ord(item)).kept == ("y",)


def test_nobody_is_judged_where_nobody_is() -> None:
    assert judge({}, 3).kept == ()


def test_a_ladder_by_hand() -> None:
    # 1000, 250, 63 and 16: the last has all samples and the whole window, each before it half of both, down to a
    # quarter of the window.
    ladder = rungs(1000, 5, 600.0)
    assert ladder == [
        Rung(turn=0, samples=1, window_s=150.0, last=False),
        Rung(turn=1, samples=2, window_s=150.0, last=False),
        Rung(turn=2, samples=3, window_s=300.0, last=False),
        Rung(turn=3, samples=5, window_s=600.0, last=True),
    ]
    assert [quota(1000, rung) for rung in ladder[:-1]] == [250, 63, 16]
    # 1000 x 150 + 250 x 2 x 150 + 63 x 3 x 300 + 16 x 5 x 600
    assert sampled_s(1000, 5, 600.0) == 329_700.0


def test_few_configurations_are_all_measured_to_the_end() -> None:
    assert rungs(2 * FINALISTS, 3, 60.0) == [Rung(turn=0, samples=3, window_s=60.0, last=True)]
    assert len(rungs(2 * FINALISTS + 1, 3, 60.0)) == 2


@given(st.integers(1, 5000), st.integers(1, 9))
def test_rungs_grow_and_what_goes_on_shrinks(configurations: int, samples: int) -> None:
    ladder = rungs(configurations, samples, 100.0)
    assert [rung.last for rung in ladder] == [False] * (len(ladder) - 1) + [True]
    assert (ladder[-1].samples, ladder[-1].window_s) == (samples, 100.0)
    for before, after in pairwise(ladder):
        assert before.samples <= after.samples
        assert before.window_s in (after.window_s, after.window_s / 2)
        assert before.window_s >= 25.0
        assert quota(configurations, before) >= quota(configurations, after) >= FINALISTS
    there = configurations
    for rung in ladder[:-1]:
        there = min(there, quota(configurations, rung))
    assert there <= 2 * FINALISTS


def noisy(truth: Sequence[float], noise: Sequence[float], samples: int) -> dict[int, list[float]]:
    """Every item's scores: its true one, with the noise in turn."""
    turns = cycle(noise)
    return {item: [true + next(turns) for _ in range(samples)] for item, true in enumerate(truth)}


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=60, unique=True),
    st.lists(st.floats(-0.49, 0.49), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(1, 10),
)
def test_the_true_best_goes_on_where_differences_exceed_the_noise(
    truth: list[int], noise: list[float], samples: int, room: int
) -> None:
    # True scores are 1 apart or more and the noise is less than a half either way.
    verdict = judge(noisy(truth, noise, samples), room)
    assert truth.index(min(truth)) == verdict.kept[0]


@given(
    st.dictionaries(st.integers(), st.lists(st.floats(-5, 5), min_size=3, max_size=3), max_size=30),
    st.integers(1, 12),
)
def test_everybody_has_one_verdict_and_the_kept_fit(scores: dict[int, list[float]], room: int) -> None:
    verdict = judge(scores, room)
    assert sorted([*verdict.kept, *verdict.worse, *verdict.untold]) == sorted(scores)
    assert len(verdict.kept) == min(room, len(scores) - len(verdict.worse))
