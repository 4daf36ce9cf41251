from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.routing.pools import (
    RoleChange,
    Roles,
    RoleSettings,
    instance_name,
    instance_names,
    parse_pools,
    pool_of,
    share_left,
)
from tests.strategies import make_job

sizes = st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9]{0,5}\Z"), st.integers(1, 4), min_size=1, max_size=4)


def test_instances_are_named_by_their_pool_and_number() -> None:
    assert parse_pools("lp=2,hp=1") == {"lp": 2, "hp": 1}
    assert instance_names({"lp": 2, "hp": 1}) == ("lp-0", "lp-1", "hp-0")
    assert instance_name("", 3) == "3"
    assert pool_of("3") == ""


@given(sizes)
def test_what_is_written_is_read_in_its_order(given_sizes: dict[str, int]) -> None:
    text = ",".join(f"{pool}={count}" for pool, count in given_sizes.items())
    read = parse_pools(text)
    assert list(read.items()) == list(given_sizes.items())
    names = instance_names(read)
    assert len(set(names)) == len(names) == sum(given_sizes.values())
    assert {pool: [pool_of(name) for name in names].count(pool) for pool in read} == read


@pytest.mark.parametrize(
    "text", ["", "lp", "lp=", "lp=0", "lp=-1", "=1", "lp=1;hp=1", "lp=1,", "LP=1", "l-p=1", "lp=²", "lp=1.5"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^pools are '.*'; accepted: POOL=COUNT,.* as lp=2,hp=1$"):
        parse_pools(text)


def test_a_pool_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="with lp twice; accepted: each pool once"):
        parse_pools("lp=1,hp=1,lp=2")


THREE = ("lp-0", "lp-1", "hp-0")
HP_SHORT = {"lp": 0.9, "hp": 0.1}
QUICK = RoleSettings(patience_s=10, dwell_s=60)


def test_the_share_left_by_hand() -> None:
    # At 3 s: of 4 s from 2 s on 3/4 is left, of 2 s from 0 s on nothing. The others do not count.
    waiting = [
        make_job("a", arrival_s=2.0, slo=Slo(ttft_s=4)),
        make_job("b", slo=Slo(ttft_s=2)),
        make_job("c"),
        make_job("d", slo=Slo(ttft_s=1), num_output_tokens=1),
    ]
    assert share_left(waiting, 3.0) == pytest.approx(0.375)
    assert share_left(waiting[2:], 3.0) == 1.0


def test_a_shortage_that_lasts_moves_the_last_of_the_other_pool() -> None:
    roles = Roles(QUICK)
    assert roles.decide(THREE, HP_SHORT, 0.0) is None
    assert roles.decide(THREE, HP_SHORT, 9.9) is None
    assert roles.decide(THREE, HP_SHORT, 10.0) == RoleChange("lp-1", "hp-1")


def test_a_shortage_that_was_over_in_between_starts_anew() -> None:
    roles = Roles(QUICK)
    roles.decide(THREE, HP_SHORT, 0.0)
    assert roles.decide(THREE, {}, 5.0) is None
    assert roles.decide(THREE, HP_SHORT, 10.0) is None
    assert roles.decide(THREE, HP_SHORT, 20.0) == RoleChange("lp-1", "hp-1")


def test_the_next_change_waits_until_the_last_has_shown_what_it_does() -> None:
    roles = Roles(QUICK)
    lp_short = {"lp": 0.1, "hp": 0.9}
    moved = ("lp-0", "hp-0", "hp-1")
    roles.decide(THREE, HP_SHORT, 0.0)
    assert roles.decide(THREE, HP_SHORT, 10.0) is not None
    assert [roles.decide(moved, lp_short, now_s) for now_s in (11.0, 21.0, 69.9)] == [None] * 3
    assert roles.decide(moved, lp_short, 70.0) == RoleChange("hp-1", "lp-1")


@pytest.mark.parametrize("shares", [{"lp": 0.1, "hp": 0.1}, {"lp": 0.5, "hp": 0.1}, {"hp": 0.3}, {}])
def test_between_short_and_spare_nothing_moves(shares: dict[str, float]) -> None:
    roles = Roles(QUICK)
    assert [roles.decide(THREE, shares, float(now_s)) for now_s in range(100)] == [None] * 100


def test_no_pool_gives_its_last_instance() -> None:
    roles = Roles(QUICK)
    assert [roles.decide(("lp-0", "hp-0"), HP_SHORT, float(now_s)) for now_s in range(100)] == [None] * 100


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=300))
def test_changes_are_far_apart_and_keep_both_pools(shares: list[tuple[float, float]]) -> None:
    roles, names = Roles(QUICK), list(THREE)
    changed: list[float] = []
    for now_s, (lp, hp) in enumerate(shares):
        change = roles.decide(names, {"lp": lp, "hp": hp}, float(now_s))
        if change is not None:
            changed.append(now_s)
            names.remove(change.instance)
            names.append(change.new_name)
        assert {pool_of(name) for name in names} == {"lp", "hp"}
        assert len(set(names)) == 3
    assert all(later - earlier >= QUICK.dwell_s for earlier, later in pairwise(changed))


@pytest.mark.parametrize("bad", [{"short": 0.8}, {"short": -0.1}, {"spare": 1.1}, {"short": 0.7}])
def test_shares_out_of_order_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="accepted: 0 <= short < spare <= 1"):
        RoleSettings(**bad)


@pytest.mark.parametrize("name", ["patience_s", "dwell_s"])
def test_times_below_zero_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1; accepted: 0 or more seconds"):
        RoleSettings(**{name: -1})
