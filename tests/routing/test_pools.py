from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.routing.pools import instance_name, instance_names, parse_pools, pool_of

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
