"""A tier as it is written on a command line, and what follows of it for an engine."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from headway.errors import ConfigError
from headway.predict.steps.copies import TransferModel
from headway.sim.limits import KvTier, parse_kv_tier
from tests.sim.worlds import system

HOST = TransferModel(start_s=2e-5, bytes_per_s=1e10)
ONE_BLOCK_GIB = 4 / (1 << 30)
"""Of four tokens of a byte each."""


def test_a_tier_is_written_as_one_line() -> None:
    tier = parse_kv_tier("gib=200/gib_per_s=20/latency_ms=1")
    assert tier == KvTier(gib=200.0, gib_per_s=20.0, latency_ms=1.0)
    assert parse_kv_tier(str(tier)) == tier
    assert parse_kv_tier("gib=0.5") == KvTier(gib=0.5)
    assert parse_kv_tier("gib_per_s=inf/gib=1").gib_per_s == inf


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("200", "'200' of the KV tier '200' is unknown or given twice"),
        ("gib=1/gib=2", "'gib=2' of the KV tier"),
        ("gib=1/bandwidth=3", "'bandwidth=3' of the KV tier"),
        ("gib=much", "gib of the KV tier is 'much'"),
        ("gib_per_s=20", "has no size"),
        ("gib=-1", "gib of the KV tier is -1; accepted: 0 to"),
        ("gib=nan", "gib of the KV tier is nan"),
        ("gib=1/gib_per_s=0", "gib_per_s of the KV tier is 0; accepted: more than 0"),
        ("gib=1/latency_ms=-1", "latency_ms of the KV tier is -1; accepted: 0 or more"),
        ("gib=1/latency_ms=inf", "latency_ms of the KV tier is inf"),
    ],
)
def test_what_is_not_accepted(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_kv_tier(text)


def test_an_engine_has_the_share_of_each_of_its_gpus() -> None:
    both = KvTier(gib=3.0, gib_per_s=10.0, latency_ms=1.0).of_engine(2)
    assert both == KvTier(gib=6.0, gib_per_s=20.0, latency_ms=1.0)
    assert both.num_blocks(1 << 30) == 6
    assert both.link(HOST) == TransferModel(start_s=0.001, bytes_per_s=20.0 * (1 << 30))
    assert KvTier(gib=3.0).of_engine(2).link(HOST) == HOST


def test_what_it_cannot_stand_beside_is_refused_by_name() -> None:
    tier = KvTier(gib=4 * ONE_BLOCK_GIB)
    with pytest.raises(ConfigError, match=r"host_blocks is 3 beside a KV tier .*; accepted: one of the two"):
        replace(system(host_blocks=3, prefix_caching=True), kv_tier=tier)
    with pytest.raises(ConfigError, match="without prefix caching; accepted: with prefix caching"):
        replace(system(), kv_tier=tier)
    # One that holds no block is none.
    assert replace(system(), kv_tier=KvTier(gib=0.9 * ONE_BLOCK_GIB)).store_blocks == 0
