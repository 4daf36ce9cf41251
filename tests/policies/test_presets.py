from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.policies.parts import BUILT_IN, known_parts
from headway.policies.presets import POOLED, PRESETS, Preset, build_policy, find_preset, known_presets
from headway.routing.pools import HP, LP
from tests.policies.conftest import Install

KINDS = ("order", "batching", "eviction", "leaving")


def specs(row: Preset, kind: str) -> tuple[str, ...]:
    """The parts of one kind that a row names."""
    named = getattr(row, kind)
    return named if isinstance(named, tuple) else (named,)


@pytest.mark.parametrize("name", PRESETS)
def test_each_row_is_readable_and_names_only_parts_that_exist(name: str) -> None:
    row = PRESETS[name]
    assert row.name == name
    assert row.summary
    assert row.source
    for kind in KINDS:
        assert {spec.partition(":")[0] for spec in specs(row, kind)} <= set(known_parts(kind))


@pytest.mark.parametrize("name", PRESETS)
def test_each_row_is_built_as_it_reads(name: str) -> None:
    policy = build_policy(PRESETS[name])
    assert policy.name == name
    for kind in KINDS:
        built = getattr(policy, kind)
        built = built if isinstance(built, tuple) else (built,)
        named = [BUILT_IN[kind][spec.partition(":")[0]] for spec in specs(PRESETS[name], kind)]
        assert [type(part) for part in built] == named


def test_a_row_has_one_column_for_each_kind_of_part() -> None:
    assert (
        set(KINDS)
        == set(BUILT_IN)
        == {field.name for field in fields(Preset)} - {"name", "summary", "source", "keeps_programs"}
    )


@pytest.mark.parametrize("name", POOLED)
def test_each_policy_for_pools_names_presets_and_no_preset_has_its_name(name: str) -> None:
    assert set(POOLED[name]) == {LP, HP}
    assert set(POOLED[name].values()) <= set(PRESETS)
    assert name not in PRESETS


def test_built_policies_share_nothing() -> None:
    one, other = build_policy(PRESETS["static"]), build_policy(PRESETS["static"])
    assert one.order is not other.order
    assert one.batching is not other.batching


def test_the_cost_model_reaches_every_part_that_wants_it() -> None:
    cost = UnknownCost()
    policy: Any = build_policy(find_preset("vllm", order="slack"), cost)
    assert policy.order._cost is cost


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"order": "slack"}, {"order": "slack"}),
        ({"batching": "static", "eviction": "x"}, {"batching": "static", "eviction": "x"}),
        ({"leaving": ("expired",)}, {"leaving": ("expired",)}),
        ({"leaving": ()}, {"leaving": ()}),
    ],
)
def test_parts_given_take_the_place_of_the_rows_own(given: dict[str, Any], changed: dict[str, Any]) -> None:
    row, found = PRESETS["sarathi"], find_preset("sarathi", **given)
    for field in fields(Preset):
        assert getattr(found, field.name) == changed.get(field.name, getattr(row, field.name))


def test_an_unknown_policy_lists_those_there_are() -> None:
    message = re.escape(f"unknown policy 'magic'; accepted: {', '.join(PRESETS)}")
    with pytest.raises(ConfigError, match=message):
        find_preset("magic")


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_does_not_exist_is_named(kind: str) -> None:
    spec: Any = ("nothing",) if kind == "leaving" else "nothing"
    with pytest.raises(ConfigError, match=f"unknown {kind} 'nothing'"):
        build_policy(find_preset("vllm", **{kind: spec}))


def test_another_package_brings_a_preset(install: Install) -> None:
    entry_points = (
        "[headway.order]\nguest = headway_guest:Guest\n[headway.preset]\nguest = headway_guest:PRESET\n"
    )
    install(entry_points)
    assert list(known_presets()) == [*PRESETS, "guest"]
    policy: Any = build_policy(find_preset("guest"))
    assert policy.order.settings[0] == 0.25
    assert len(policy.leaving) == 1
    assert build_policy(find_preset("guest", leaving=())).leaving == ()


def test_a_preset_may_not_take_a_built_in_name(install: Install) -> None:
    install("[headway.preset]\nvllm = headway_guest:PRESET\n")
    with pytest.raises(ConfigError, match="headway_guest:PRESET and Headway's own are both called 'vllm'"):
        find_preset("vllm")


def test_an_eviction_bounded_by_the_host_wants_a_batching_that_is() -> None:
    with pytest.raises(ConfigError, match="accepted with it: batching prefill-first:host_room=true"):
        build_policy(find_preset("vllm-s", batching="decode-first"))
    build_policy(find_preset("vllm-s"))


def test_sarathi_computes_512_tokens_a_step_as_published() -> None:
    policy: Any = build_policy(PRESETS["sarathi"])
    assert policy.batching.token_budget == 512
