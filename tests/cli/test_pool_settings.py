"""Settings of pools as flags of `headway serve`: each pool's own parts, with other numbers where those are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.cli.serve import ServeFlags
from headway.cli.serve_layout import GatewayFlags
from headway.cli.serve_site import ServeRequest, Site, build_site
from headway.engine.servers.instances_command import CORES_VARIABLE
from headway.engine.servers.server_command import server_command
from headway.engine.settings import EngineSettings
from headway.policies.pool_settings import PoolSettings
from tests.cli.conftest import Refused


def site(model: Path, pools: PoolSettings) -> Site:
    def settings(preset: str) -> EngineSettings:
        return EngineSettings(policy=preset, leaving=pools.leaving(preset), batching=pools.batching(preset))

    asked = ServeRequest(str(model), "ascendra", settings, ())
    return build_site(asked, GatewayFlags(pools="lp=1,hp=1"), ("127.0.0.1", 8000))


def parts(made: Site, pool: str) -> tuple[list[str] | None, str | None]:
    """The leaving rules and the batching that an instance is started with, where they are not its preset's own."""
    assert made.local is not None
    arguments = made.local.prepare(f"{pool}-0", pool).arguments
    config: dict[str, Any] = json.loads(arguments[arguments.index("--additional-config") + 1])["headway"]
    return config.get("leaving"), config.get("batching")


@pytest.mark.parametrize(
    ("pools", "lp", "hp"),
    [
        (PoolSettings(), (None, None), (None, None)),
        (PoolSettings(hand_off_threshold=0.2), (["at-risk:threshold=0.2", "expired"], None), (None, None)),
        (PoolSettings(lp_tokens=512), (None, "within-budgets:token_budget=512"), (None, None)),
        (
            PoolSettings(hp_tokens=4096),
            (["at-risk:hp_tokens=4096", "expired"], None),
            (None, "elastic:token_budget=4096"),
        ),
    ],
)
def test_pools_may_have_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: PoolSettings, lp: object, hp: object
) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    made = site(tmp_path, pools)
    assert (parts(made, "lp"), parts(made, "hp")) == (lp, hp)


@pytest.mark.parametrize(
    ("policy", "given", "rules"),
    [
        ("ascendra-lp", {"late": "serve"}, ["at-risk"]),
        ("ascendra-hp", {"late": "serve"}, []),
        ("ascendra-hp", {"late": "refuse"}, ["expired"]),
        ("sjf", {"late": "refuse"}, ["expired"]),
        (
            "ascendra-lp",
            {"late": "serve", "pools": PoolSettings(hand_off_threshold=0.2)},
            ["at-risk:threshold=0.2"],
        ),
    ],
)
def test_late_requests_are_served_or_refused_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, given: dict[str, Any], rules: list[str]
) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    asked = {"engine": {}, "host_kv": {}, "pools": PoolSettings(), "gateway": GatewayFlags(), "model": "demo"}
    settings = ServeFlags(**{**asked, **given}).settings(policy)
    arguments = server_command(str(tmp_path), settings, ("127.0.0.1", 8000)).arguments
    config = json.loads(arguments[arguments.index("--additional-config") + 1])
    assert config["headway"]["leaving"] == rules
    assert EngineSettings.from_additional_config(config).preset().leaving == tuple(rules)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("demo", "--late", "never"), "--late is never; accepted: serve or refuse"),
        (
            ("demo", "--late", "serve", "--leaving", "expired"),
            "--late and --leaving are given; accepted: one",
        ),
        (
            ("--join", "http://127.0.0.1:9", "--late", "serve"),
            "no instance is started here; name a MODEL",
        ),
    ],
)
def test_what_to_do_with_late_requests_is_said_once_to_an_instance_that_is_started(
    refused: Refused, words: tuple[str, ...], complaint: str
) -> None:
    assert complaint in refused("serve", *words)


@pytest.mark.parametrize(
    ("flag", "heeding", "other"),
    [
        (
            "--hand-off-threshold",
            {"ascendra", "ascendra-lp"},
            {"ascendra-hp", "ascendra-lp-no-hand-off", "headway"},
        ),
        ("--lp-tokens", {"ascendra", "ascendra-lp", "ascendra-lp-no-hand-off"}, {"ascendra-hp", "headway"}),
        ("--hp-tokens", {"ascendra", "ascendra-hp", "ascendra-lp"}, {"headway", "ascendra-lp-no-hand-off"}),
    ],
)
def test_a_setting_that_a_policy_does_not_heed_is_refused_with_all_that_do(
    refused: Refused, flag: str, heeding: set[str], other: set[str]
) -> None:
    said, names = refused("serve", "demo", flag, 1 if "tokens" in flag else 0.5).split("; accepted with: ")
    assert said.startswith(f"error: {flag} is ")
    assert said.endswith(", which makes no difference to policy 'headway'")
    accepted = {*names.strip().split(", ")}
    assert heeding <= accepted
    assert not (other | {"vllm"}) & accepted


@pytest.mark.parametrize(
    ("flag", "value", "accepted"),
    [
        ("--hand-off-threshold", "nan", "a share of the target between -1 and 1"),
        ("--lp-tokens", "0", "1 or more"),
        ("--hp-tokens", "-5", "1 or more"),
    ],
)
def test_a_number_that_is_none_is_refused_by_its_flag(
    refused: Refused, flag: str, value: str, accepted: str
) -> None:
    said = refused("serve", "demo", "--policy", "ascendra-lp", flag, value)
    assert said == f"error: {flag} is {value}; accepted: {accepted}\n"


def test_a_number_beside_the_part_it_is_of_is_refused(refused: Refused) -> None:
    for flag, value, part, spec in [
        ("--hand-off-threshold", 0.1, "--leaving", "expired"),
        ("--lp-tokens", 512, "--batching", "within-budgets"),
    ]:
        said = refused("serve", "demo", "--policy", "ascendra-lp", flag, value, part, spec)
        assert f"{flag} and {part} are given; accepted: one of the two" in said
    assert "--order, --batching, --eviction, --leaving, --tail or --decode-share with --pools" in refused(
        "serve", "demo", "--pools", "lp=1,hp=1", "--leaving", "expired"
    )


def test_settings_are_of_the_parts_that_have_them() -> None:
    assert PoolSettings(hand_off_threshold=0.1).leaving("ascendra-lp") == ("at-risk:threshold=0.1", "expired")
    assert PoolSettings(hand_off_threshold=0.1).leaving("vllm") is None
    assert PoolSettings(lp_tokens=512).preset("ascendra-lp").batching == "within-budgets:token_budget=512"
    assert PoolSettings(lp_tokens=512).preset("vllm").batching == "decode-first"
