from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import pytest

from headway.core.slo import NO_TARGETS, Slo
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.policies.presets import PRESETS, build_policy


def read(**given: Any) -> EngineSettings:
    return EngineSettings.from_additional_config({"headway": given})


@pytest.mark.parametrize("config", [None, {}, {"headway": {}}, {"other": {"policy": "nope"}}])
def test_nothing_given_is_stock_order_without_targets(config: dict[str, Any] | None) -> None:
    settings = EngineSettings.from_additional_config(config)
    assert settings == EngineSettings()
    assert settings.preset() is PRESETS["vllm"]
    assert settings.default_slo() is NO_TARGETS


def test_every_setting_can_be_given_as_json() -> None:
    given = {
        "policy": "sarathi",
        "order": "edf",
        "batching": "prefill-first",
        "eviction": "recompute",
        "leaving": ["expired", "queue-bound:max_waiting=3"],
        "tail": 0.25,
        "decode_share": 0.6,
        "slo_ttft_s": 1,
        "slo_tbt_s": 0.05,
        "batch_width": 8,
        "host_kv": {"gib": 2.0, "bytes_per_s": 12e9, "blocks": None, "restore_share": 0.25},
        "predictor": "learned",
        "length_model": "lengths.bin",
        "explain": 7,
        "records": "served.jsonl",
        "check": True,
        "strict": True,
    }
    assert set(given) == {field.name for field in fields(EngineSettings)}
    settings = EngineSettings.from_additional_config(json.loads(json.dumps({"headway": given})))
    assert asdict(settings) == {**given, "leaving": ("expired", "queue-bound:max_waiting=3")}
    assert settings.default_slo() == Slo(ttft_s=1.0, tbt_s=0.05)


def test_settings_survive_the_way_through_vllm() -> None:
    settings = EngineSettings(policy="sjf", leaving=("expired",), slo_tbt_s=0.1)
    assert EngineSettings.from_additional_config({"headway": asdict(settings)}) == settings


def test_unknown_settings_are_all_named_with_the_accepted_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        read(polcy="sjf", zeal=1, policy="sjf")
    assert str(raised.value) == (
        "unknown polcy, zeal in additional_config.headway; did you mean policy? accepted: policy, order, batching, "
        "eviction, leaving, tail, decode_share, slo_ttft_s, slo_tbt_s, batch_width, host_kv, predictor, "
        "length_model, explain, records, check, strict"
    )


def test_unknown_settings_of_host_memory_are_named_too() -> None:
    with pytest.raises(ConfigError) as raised:
        read(host_kv={"gib": 8, "restor_share": 0.9})
    assert str(raised.value) == (
        "unknown restor_share in additional_config.headway.host_kv; did you mean restore_share? "
        "accepted: gib, blocks, bytes_per_s, restore_share"
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("policy", None),
        ("policy", ["sjf"]),
        ("order", 3),
        ("batching", True),
        ("eviction", {}),
        ("leaving", "expired"),
        ("leaving", [3]),
        ("leaving", {"expired": 1}),
        ("slo_ttft_s", "0.5"),
        ("slo_ttft_s", True),
        ("slo_ttft_s", 10**400),
        ("slo_tbt_s", [1]),
        ("batch_width", "8"),
        ("batch_width", 2.5),
        ("batch_width", True),
        ("host_kv", 3),
        ("host_kv", {"gib": "2"}),
        ("host_kv", {"blocks": 2.5}),
        ("predictor", True),
        ("length_model", 3),
        ("explain", "9"),
        ("records", 3),
        ("check", "no"),
        ("check", 1),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^additional_config\.headway: .*\$\.{setting}"):
        read(**{setting: value})


@pytest.mark.parametrize("given", ["sjf", 3, None, ["policy"]])
def test_settings_that_are_no_object_are_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"^additional_config\.headway: Expected `object`"):
        EngineSettings.from_additional_config({"headway": given})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"policy": "nope"}, "^unknown policy 'nope'; accepted: vllm, "),
        ({"batch_width": 0}, "^batch_width is 0; accepted: 1 or more$"),
        ({"batch_width": -3}, "^batch_width is -3; accepted"),
        ({"explain": -1}, "^explain is -1; accepted: 0"),
        ({"explain": 10**20}, f"^explain is {10**20}; accepted: 0 .* to 1,000,000 requests"),
        ({"slo_ttft_s": 0}, "^ttft_s is 0.0; accepted"),
        ({"slo_ttft_s": -1}, "^ttft_s is -1.0; accepted"),
        ({"slo_tbt_s": float("nan")}, "^tbt_s is nan; accepted"),
        ({"slo_tbt_s": float("inf")}, "^tbt_s is inf; accepted"),
        ({"slo_ttft_s": 604_801}, "^ttft_s is 604801.0; accepted"),
    ],
)
def test_values_out_of_range_say_what_is_accepted(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(**given)
    with pytest.raises(ConfigError):
        EngineSettings(**given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "^host_kv.gib is None and host_kv.blocks None; accepted: one of them$"),
        ({"gib": 0}, "^host_kv.gib is 0.0; accepted: more than 0$"),
        ({"blocks": 5, "gib": 1}, "^host_kv.gib is 1.0 and host_kv.blocks 5; accepted: one of them$"),
    ],
)
def test_host_memory_out_of_range_says_what_is_accepted(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(host_kv=given)


def test_parts_take_the_place_of_the_presets_own() -> None:
    stock, changed = PRESETS["vllm"], read(order="edf", leaving=["expired"]).preset()
    assert (changed.name, changed.batching, changed.eviction) == ("vllm", stock.batching, stock.eviction)
    assert (changed.order, changed.leaving) == ("edf", ("expired",))
    assert read(leaving=[]).preset().leaving == ()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"order": "nope"}, "unknown order 'nope'; accepted: arrival, "),
        ({"batching": "nope"}, "unknown batching 'nope'; accepted: decode-first, "),
        ({"eviction": "nope"}, "unknown eviction 'nope'; accepted: cheapest, proactive, recompute, swap"),
        ({"leaving": ["expired", "nope"]}, "unknown leaving 'nope'; accepted: at-risk, expired, "),
        ({"order": ""}, "unknown order ''"),
        (
            {"batching": "decode-first:colour=red"},
            "has no setting 'colour=red'; accepted: head_room=..., token_budget=...",
        ),
        ({"batching": "decode-first:token_budget"}, "has no setting 'token_budget'"),
        (
            {"batching": "decode-first:token_budget=many"},
            "token_budget is 'many'; accepted: a value of type int",
        ),
        ({"batching": "decode-first:token_budget=0"}, "token_budget is 0; accepted: 1 or more"),
        ({"leaving": ["queue-bound"]}, "queue-bound needs at least one of max_waiting"),
        ({"leaving": ["expired:after=1"]}, "has no setting 'after=1'; accepted: none"),
    ],
)
def test_part_specs_are_refused_where_the_policy_is_built(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_policy(read(**given).preset())


def test_the_dial_goes_to_an_order_that_has_one() -> None:
    assert EngineSettings(policy="headway", tail=0.7).preset().order == "on-time:tail=0.7"
    row = EngineSettings(policy="headway", order="on-time:patience_s=5", tail=0.25).preset()
    assert row.order == "on-time:patience_s=5,tail=0.25"
    shared = EngineSettings(policy="headway", batching="paced:share=1", decode_share="0.6").preset()
    assert shared.batching == "paced:share=1,decode_share=0.6"
    assert EngineSettings(policy="headway", decode_share="auto").preset().batching == "paced"
    with pytest.raises(
        ConfigError, match="batching 'paced', decode_share is 'half'; accepted: a value of type float"
    ):
        build_policy(EngineSettings(policy="headway", decode_share="half").preset())
    with pytest.raises(ConfigError, match=r"order 'arrival' has no setting 'tail=0\.7'"):
        build_policy(EngineSettings(policy="vllm", tail=0.7).preset())


def test_part_specs_carry_their_settings() -> None:
    policy: Any = build_policy(
        read(
            batching="decode-first:token_budget=64", leaving=["queue-bound:max_waiting=3,max_age_s=0.5"]
        ).preset()
    )
    assert policy.batching.token_budget == 64
    assert (policy.leaving[0].max_waiting, policy.leaving[0].max_age_s) == (3, 0.5)


def test_one_default_target_leaves_the_others_open() -> None:
    assert read(slo_tbt_s=0.05).default_slo() == Slo(tbt_s=0.05)


def test_a_file_for_lengths_is_of_no_use_where_nobody_predicts_them() -> None:
    unpredicted: tuple[dict[str, Any], ...] = ({}, {"policy": "headway", "predictor": "none"})
    for settings in unpredicted:
        with pytest.raises(
            ConfigError, match=r"length_model is 'x\.npz' but no lengths are predicted; accepted: "
        ):
            EngineSettings(length_model="x.npz", **settings).length_predictor()
    assert EngineSettings(length_model="x.npz", predictor="learned").length_predictor() == "learned"
    assert EngineSettings(length_model="x.npz", policy="headway").length_predictor() == "learned"


@pytest.mark.parametrize(
    ("settings", "predictor"),
    [
        ({}, None),
        ({"policy": "fastserve"}, None),
        ({"policy": "headway"}, "learned"),
        ({"policy": "headway", "predictor": "none"}, None),
        ({"policy": "headway", "predictor": "learned"}, "learned"),
        ({"predictor": "learned"}, "learned"),
        ({"order": "on-time"}, "learned"),
        ({"policy": "headway", "order": "arrival", "batching": "decode-first"}, None),
    ],
)
def test_lengths_are_predicted_for_policies_that_go_by_them(
    settings: dict[str, Any], predictor: str | None
) -> None:
    assert EngineSettings(**settings).length_predictor() == predictor
