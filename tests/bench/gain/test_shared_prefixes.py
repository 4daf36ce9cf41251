"""The streams of `bench/gain/shared_prefixes.py`, and what its figures say."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gain.shared_prefixes import cell
from bench.real_runs import STOCK
from bench.streams import TURNS, conversations
from headway.lab.real_engine import prompt_ids
from tests.strategies import FEW

pytestmark = pytest.mark.vllm


@FEW
@given(seed=st.integers(0, 1000))
def test_a_turn_begins_with_the_one_before_it(seed: int) -> None:
    requests = conversations(5.0, 10.0, seed)
    assert [one.arrival_s for one in requests] == sorted(one.arrival_s for one in requests)
    by_conversation = sorted(requests, key=lambda one: tuple(map(int, one.id.split("-"))))
    for _, group in groupby(by_conversation, key=lambda one: one.id.split("-")[0]):
        turns = list(group)
        assert len(turns) == TURNS
        for before, after in pairwise(turns):
            assert after.arrival_s > before.arrival_s
            assert prompt_ids(after, seed)[: before.input_tokens] == prompt_ids(before, seed)
    firsts = [tuple(prompt_ids(one, seed)[:32]) for one in requests if one.id.endswith("-0")]
    assert len(set(firsts)) == len(firsts)


def test_so_many_turns_a_second_come() -> None:
    assert len(conversations(10.0, 1000.0, 0)) / 1000 == pytest.approx(10.0, rel=0.1)


def test_a_gain_is_of_all_seeds_requests_together() -> None:
    found = {(STOCK.name, 0.8): [[4.0, 2.0], [6.0]], ("headway", 0.8): [[1.0, 3.0], [2.0]]}
    own = cell(found, "headway", 0.8)
    assert (own["mean_jct_s"], own["by_seed"], own["gain"]) == (2.0, [2.0, 2.0], 2.0)
    assert cell(found, STOCK.name, 0.8)["gain"] == 1.0
