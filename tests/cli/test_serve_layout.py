from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.cli.serve_layout import Place, read_layout
from headway.errors import ConfigError
from headway.policies.presets import POOLED
from headway.routing.pools import pool_of
from headway.routing.scaling import Bounds


def test_instances_that_are_all_alike() -> None:
    layout = read_layout(instances="2", join=["http://a:1/v1/"], policy="edf")
    assert layout.places == (Place("0", ""), Place("1", ""), Place("2", "", "http://a:1"))
    assert (layout.policy, layout.presets, layout.router) == ("edf", {"": "edf"}, "cache-aware")
    assert [place.name for place in layout.launched] == ["0", "1"]
    assert [place.name for place in layout.joined] == ["2"]
    assert read_layout(instances="1").policy == "headway"


def test_of_a_range_the_first_begin_and_the_others_wait() -> None:
    layout = read_layout(instances="2..4")
    assert [place.name for place in layout.launched] == ["0", "1", "2", "3"]
    assert [layout.begins(place) for place in layout.places] == [True, True, False, False]
    assert (layout.scale, layout.elastic) == (Bounds(2, 4), True)


def test_a_number_of_instances_may_be_recommended_alone() -> None:
    layout = read_layout(instances="1", join=["http://a"], scale="1..8")
    assert all(layout.begins(place) for place in layout.places)
    assert (layout.scale, layout.elastic) == (Bounds(1, 8), False)
    assert read_layout(instances="2").scale is None


def test_pools() -> None:
    layout = read_layout(pools="lp=2,hp=1", join=["hp=https://b:2"])
    names = ["lp-0", "lp-1", "hp-0", "hp-1"]
    assert [place.name for place in layout.places] == names
    assert layout.joined == (Place("hp-1", "hp", "https://b:2"),)
    assert (layout.policy, layout.router) == ("ascendra", "ascendra")
    assert layout.presets == {"lp": "ascendra-lp", "hp": "ascendra-hp"}


def test_prefill_and_decode_serve_one_policy() -> None:
    layout = read_layout(pools="prefill=1,decode=2", join=["prefill=http://a:1"])
    assert [place.name for place in layout.places] == ["prefill-0", "decode-0", "decode-1", "prefill-1"]
    assert layout.router == "prefill-decode"
    assert layout.presets == {"prefill": "headway", "decode": "headway"}
    assert read_layout(pools="prefill=1", join=["decode=http://a:1"], policy="headway").presets == {
        "prefill": "headway"
    }


def test_servers_that_are_there_already() -> None:
    alike = read_layout(join=["http://a:1", "http://b:1?x=1"])
    assert [place.name for place in alike.places] == ["0", "1"]
    assert (dict(alike.presets), alike.router) == ({}, "cache-aware")
    pooled = read_layout(join=["lp=http://a:1", "hp=http://b:1"])
    assert [place.name for place in pooled.places] == ["lp-0", "hp-0"]
    assert (dict(pooled.presets), pooled.router) == ({}, "ascendra")


@pytest.mark.parametrize(
    ("flags", "router"),
    [
        ({"pools": "lp=1,hp=1", "tickets": False}, "ascendra-no-ticket"),
        ({"pools": "lp=1,hp=1", "router": "round-robin"}, "round-robin"),
        ({"instances": "2", "router": "power-of-two"}, "power-of-two"),
    ],
)
def test_the_router_that_was_asked_for(flags: dict[str, Any], router: str) -> None:
    assert read_layout(**flags).router == router


@given(
    st.dictionaries(st.sampled_from(["lp", "hp"]), st.integers(1, 5), min_size=1),
    st.lists(st.sampled_from(["lp", "hp"]), max_size=6),
)
def test_every_instance_has_a_name_of_its_own_that_tells_its_pool(
    sizes: dict[str, int], joined: list[str]
) -> None:
    assume("lp" in {*sizes, *joined})
    pools = ",".join(f"{pool}={count}" for pool, count in sizes.items())
    layout = read_layout(pools=pools, join=[f"{pool}=http://h:{port}" for port, pool in enumerate(joined)])
    names = [place.name for place in layout.places]
    assert len(set(names)) == len(names) == sum(sizes.values()) + len(joined)
    assert [pool_of(place.name) for place in layout.places] == [place.pool for place in layout.places]
    assert len(layout.launched) == sum(sizes.values())


def test_pools_may_serve_one_policy() -> None:
    layout = read_layout(pools="lp=2,hp=1", policy="headway")
    assert (layout.presets, layout.router) == ({"lp": "headway", "hp": "headway"}, "ascendra")
    assert [place.name for place in layout.places] == ["lp-0", "lp-1", "hp-0"]


@pytest.mark.parametrize("policy", POOLED)
def test_each_policy_for_pools_has_its_presets(policy: str) -> None:
    assert read_layout(pools="lp=1,hp=1", policy=policy).presets == POOLED[policy]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"instances": "2", "pools": "lp=1"}, "--instances and --pools are both given"),
        ({"instances": "0"}, "--instances is '0'; accepted: N or MIN..MAX"),
        ({"instances": "3..1"}, "--instances is '3..1'; accepted: N or MIN..MAX"),
        ({"instances": "1..2", "join": ["http://a"]}, "--instances MIN..MAX with --join; accepted"),
        ({"instances": "1..2", "scale": "1..2"}, "--instances MIN..MAX with --scale; accepted"),
        ({"instances": "1..2", "batched": True}, "--instances MIN..MAX with --batches; accepted"),
        ({"pools": "lp=1,hp=1", "scale": "1..2"}, "--scale with pools; accepted"),
        ({"pools": "lp"}, "pools are 'lp'; accepted"),
        ({"pools": "hp=1"}, "pools are hp alone; accepted: lp beside it, which new requests go to"),
        ({"pools": "lp=1,xp=1"}, "policy 'ascendra' has none for pool 'xp'; accepted: lp, hp"),
        (
            {"instances": "2", "policy": "ascendra"},
            "policy 'ascendra' serves pools; add --pools",
        ),
        ({"join": ["http://a"], "policy": "edf"}, "--policy is 'edf', but no instance is started here"),
        ({"join": ["ftp://a"]}, "--join is 'ftp://a'; accepted: URL or POOL=URL"),
        ({"join": ["hp=http://"]}, "--join is 'hp=http://'; accepted: URL or POOL=URL"),
        ({"join": ["hp=a:8000"]}, "--join is 'hp=a:8000'; accepted: URL or POOL=URL"),
        ({"join": ["H P=http://a"]}, "pools are 'H P=1'; accepted"),
        ({"join": ["http://a", "http://a/v1"]}, "--join names http://a twice"),
        ({"instances": "1", "join": ["hp=http://a"]}, "some instances are in a pool and some are not"),
        ({"pools": "lp=1", "join": ["http://a"]}, "some instances are in a pool and some are not"),
        ({"instances": "1", "router": "nope"}, "unknown router 'nope'; accepted: "),
        ({"instances": "1", "router": "ascendra"}, "router 'ascendra' tells pools apart, and there are none"),
        (
            {"pools": "prefill=1"},
            "pools are prefill; accepted: prefill and decode together, and no other pool",
        ),
        ({"pools": "prefill=1,decode=1,lp=1"}, "pools are decode, lp, prefill; accepted"),
        ({"join": ["decode=http://a"]}, "pools are decode; accepted"),
        ({"pools": "prefill=1,decode=1", "policy": "ascendra"}, "policy 'ascendra' serves pools"),
        (
            {"pools": "prefill=1,decode=1", "router": "cache-aware"},
            "router is 'cache-aware' with the pools prefill and decode; accepted: router 'prefill-decode'",
        ),
        (
            {"pools": "lp=1,hp=1", "router": "prefill-decode"},
            "router is 'prefill-decode' with other instances; accepted: --pools prefill=1,decode=1",
        ),
        ({"instances": "2", "router": "prefill-decode"}, "accepted: --pools prefill=1,decode=1"),
        ({"instances": "1", "tickets": False}, "--no-tickets with router 'cache-aware'; use router ascendra"),
        (
            {"pools": "lp=1", "router": "round-robin", "tickets": False},
            "--no-tickets with router 'round-robin'",
        ),
    ],
)
def test_flags_that_contradict_one_another(flags: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_layout(**flags)
    assert complaint in str(raised.value)
