"""`headway serve --hand-off-threshold`: each pool's own rules, with another threshold where they hand off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.serve_layout import GatewayFlags
from headway.cli.serve_site import ServeRequest, Site, build_site
from headway.engine.servers.instances_command import CORES_VARIABLE
from headway.engine.settings import EngineSettings
from headway.policies.hand_off import rules_with
from tests.cli.conftest import Refused


def site(model: Path, threshold: float | None) -> Site:
    def settings(preset: str) -> EngineSettings:
        return EngineSettings(policy=preset, leaving=rules_with(preset, threshold))

    asked = ServeRequest(str(model), "ascendra", settings, ())
    return build_site(asked, GatewayFlags(pools="lp=1,hp=1"), ("127.0.0.1", 8000))


def leaving(made: Site, name: str, pool: str) -> list[str] | None:
    """The rules that an instance is started with, where they are not its preset's own."""
    assert made.local is not None
    arguments = made.local.prepare(name, pool).arguments
    config = json.loads(arguments[arguments.index("--additional-config") + 1])["headway"]
    found: list[str] | None = config.get("leaving")
    return found


def test_pools_may_have_another_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    made = site(tmp_path, 0.2)
    assert leaving(made, "lp-0", "lp") == ["at-risk:threshold=0.2", "expired"]
    assert leaving(made, "hp-0", "hp") is None
    assert leaving(site(tmp_path, None), "lp-0", "lp") is None


def test_a_threshold_of_who_hands_nobody_off_is_refused_with_all_who_do(refused: Refused) -> None:
    said, names = refused("serve", "demo", "--hand-off-threshold", "nan").split("; accepted: ")
    assert said == "error: --hand-off-threshold is nan, but policy 'vllm' has none"
    accepted = names.strip().split(", ")
    assert {"ascendra", "ascendra-lp", "headway"} <= {*accepted}
    assert not {"vllm", "ascendra-hp", "ascendra-no-hand-off", "ascendra-lp-no-hand-off"} & {*accepted}


def test_a_threshold_that_is_none_is_refused_by_its_flag(refused: Refused) -> None:
    assert refused("serve", "demo", "--policy", "ascendra-lp", "--hand-off-threshold", "nan") == (
        "error: --hand-off-threshold is nan; accepted: a share of the target between -1 and 1\n"
    )


def test_a_threshold_that_would_change_nothing_is_refused(refused: Refused) -> None:
    assert "--hand-off-threshold and --leaving are given" in refused(
        "serve", "demo", "--policy", "ascendra-lp", "--hand-off-threshold", 0.1, "--leaving", "expired"
    )
    assert "--order, --batching, --eviction, --leaving or --tail with --pools" in refused(
        "serve", "demo", "--pools", "lp=1,hp=1", "--leaving", "expired"
    )
