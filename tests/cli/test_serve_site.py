"""What several instances are started with, and what is said of it; nothing is started here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headway.cli.batch_flags import BatchFlags
from headway.cli.serve_layout import GatewayFlags
from headway.cli.serve_site import ServeRequest, Site, build_site, introduction
from headway.core.slo import Slo
from headway.engine.machine import fastest_dtype, is_cpu_build, vllm_version
from headway.engine.servers.instances_command import CORES_VARIABLE
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.gateway.http.options import Cors, GatewayOptions
from headway.policies.batching.elastic import Elastic
from headway.policies.batching.within_budgets import WithinBudgets
from headway.policies.presets import PRESETS, build_policy
from headway.routing.magnus import BatchSettings
from headway.setting import settings_of
from tests.cli.conftest import Refused

ADDRESS = ("127.0.0.1", 8000)


def site(model: str | None, *vllm_flags: str, policy: str | None = None, **flags: object) -> Site:
    def settings(preset: str) -> EngineSettings:
        return EngineSettings(policy=preset, slo_ttft_s=1.0, slo_tbt_s=0.15)

    asked = ServeRequest(model, policy, settings, vllm_flags)
    options = {name: flags.pop(name) for name in [*flags] if name in settings_of(GatewayOptions)}
    return build_site(asked, GatewayFlags(options=options, **flags), ADDRESS)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    return str(tmp_path)


@pytest.mark.skipif(not is_cpu_build(), reason="cores are bound where vLLM computes on the CPU")
def test_the_introduction_says_what_runs_where(model: str) -> None:
    text = introduction(site(model, pools="lp=1,hp=1", join=("hp=http://10.0.0.3:8000",)), "demo")
    lines = text.splitlines()
    assert lines[0].startswith(
        f"headway: model  demo from 3 instances at http://127.0.0.1:8000, vLLM {vllm_version()} on "
    )
    assert f"; chosen here: --dtype {fastest_dtype()}, " in lines[0]
    assert lines[1] == (
        "headway: policy ascendra, router ascendra; targets: first token within 1 s, time between tokens 0.15 s"
    )
    assert lines[2].startswith("headway: look   http://127.0.0.1:8000/dashboard (page), /metrics")
    assert lines[3].startswith(f"  lp-0  ascendra-lp ({PRESETS['ascendra-lp'].summary}), core")
    assert lines[4].startswith(f"  hp-0  ascendra-hp ({PRESETS['ascendra-hp'].summary}), core")
    assert lines[5:] == ["  hp-1  joined at http://10.0.0.3:8000"]


def test_instances_of_pools_are_launched_with_the_budgets_that_follow_from_targets(model: str) -> None:
    local = site(model, pools="lp=1,hp=1").local
    assert local is not None
    low, high = (build_policy(local.prepare(f"{pool}-0", pool).settings.preset()) for pool in ("lp", "hp"))
    assert isinstance(low.batching, WithinBudgets)
    assert isinstance(high.batching, Elastic)
    assert (low.batching.token_budget, high.batching.token_budget) == (None, None)


@pytest.mark.skipif(not is_cpu_build(), reason="cores are bound where vLLM computes on the CPU")
def test_instances_that_share_cores_are_warned_of(model: str) -> None:
    crowd = len(os.sched_getaffinity(0)) + 1
    assert f"Warning: {crowd} workers share" in introduction(site(model, instances=str(crowd)), "m")


@pytest.mark.skipif(not is_cpu_build(), reason="cores are bound where vLLM computes on the CPU")
def test_instances_keep_what_they_learn_of_lengths_each_in_its_own_file(model: str, tmp_path: Path) -> None:
    def settings(preset: str) -> EngineSettings:
        return EngineSettings(policy=preset, length_model=str(tmp_path / "lengths"))

    made = build_site(ServeRequest(model, "headway", settings, ()), GatewayFlags(instances="2"), ADDRESS)
    assert (
        "; each instance predicts lengths of answers, with learned" in introduction(made, "m").splitlines()[1]
    )
    assert made.local is not None
    kept = [made.local.prepare(place.name, place.pool).settings.length_model for place in made.layout.places]
    assert kept == [str(tmp_path / f"lengths-{number}") for number in range(2)]


def test_joined_servers_need_no_model() -> None:
    made = site(None, join=("http://10.0.0.3:8000",))
    assert made.local is None
    lines = introduction(made, None).splitlines()
    assert lines[0] == "headway: model  1 instance at http://127.0.0.1:8000"
    assert lines[1].startswith("headway: policy router cache-aware; targets")
    assert lines[3] == "  0  joined at http://10.0.0.3:8000"


def test_limits_reach_the_gateway(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret team-a\n")
    made = site(
        model,
        instances="1",
        api_keys=keys,
        max_queue=5,
        max_age_s=2.5,
        max_in_flight=3,
        max_per_tenant=4,
        max_body_mib=2,
        access_log=tmp_path / "log",
        resume=False,
        drain_s=7.0,
    )
    options = made.options
    assert options.slo == Slo(ttft_s=1.0, tbt_s=0.15)
    assert (options.max_queue, options.max_age_s, options.max_in_flight, options.max_per_tenant) == (
        5,
        2.5,
        3,
        4,
    )
    assert (options.max_body_bytes, options.access_log, options.resume) == (2 << 20, tmp_path / "log", False)
    assert options.drain_s == made.fleet_options.drain_s == 7.0
    assert options.keys.tenant_of(b"Bearer secret") == "team-a"
    assert site(model, instances="1").options.drain_s == 30.0


def key_and_command(made: Site) -> tuple[str | None, dict[str, str], tuple[str, ...]]:
    """The key that instances are asked with; what one that is launched has of it in environment and arguments."""
    assert made.local is not None
    return made.upstream_key, made.local._key, made.local.prepare("0", "").arguments


def test_instances_here_ask_for_a_key_that_the_gateway_alone_has(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key_and_command(site(model, instances="1"))[:2] == (None, {})
    own = tmp_path / "keys"
    own.write_text("secret\n")
    seen = set()
    for made in (
        site(model, instances="1", api_keys=own),
        site(model, "--api-key", "abc", "--seed", "1", instances="1"),
        site(model, instances="1", join=("http://10.0.0.3:8000",), api_keys=own),
    ):
        key, environment, arguments = key_and_command(made)
        assert key is not None
        assert environment == {"VLLM_API_KEY": key}
        assert len(key) > 40
        assert not {"--api-key", "abc", key} & set(arguments)
        seen.add(key)
    assert len(seen) == 3
    assert "--seed" in key_and_command(site(model, "--seed", "1", "--api-key=abc", instances="1"))[2]


def test_instances_that_are_kept_keep_their_key(model: str, tmp_path: Path) -> None:
    own, kept = tmp_path / "keys", tmp_path / "kept"
    own.write_text("secret\n")
    found = {site(model, instances="1", api_keys=own, keep_instances=kept).upstream_key for _ in range(2)}
    assert len(found) == 1
    assert None not in found
    text = introduction(site(model, instances="1", keep_instances=kept), "demo")
    assert f"Instances go on when the gateway ends; their logs are in {kept}." in text


def test_the_key_of_servers_that_join_is_that_of_all(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "def")
    joined = ("http://10.0.0.3:8000",)
    assert site(None, join=joined).upstream_key == "def"
    assert key_and_command(site(model, instances="1", join=joined))[:2] == ("def", {})
    assert key_and_command(site(model, instances="1"))[1].keys() == {"VLLM_API_KEY"}


def test_https_is_checked_before_anything_starts(model: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for file in (bad, tmp_path / "none.pem"):
        with pytest.raises(ConfigError, match=f"no certificate with its key.*{file.name}"):
            site(model, instances="1", ssl_certfile=file)
    with pytest.raises(ConfigError, match="accepted: with ssl_certfile"):
        site(model, instances="1", ssl_keyfile=bad)
    with pytest.raises(ConfigError, match="before the `--`"):
        site(model, "--ssl-certfile", str(bad), instances="1")


def test_what_vllm_was_told_to_keep_closed_stays_closed_behind_a_gateway(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepted(*vllm_flags: str, api_keys: Path | None = None) -> set[bytes]:
        return {*site(model, *vllm_flags, instances="1", api_keys=api_keys).options.keys.tenants}

    assert accepted() == set()
    assert accepted("--api-key", "old", "--api-key", "abc", "def") == {b"abc", b"def"}
    assert accepted("--api-key", "", "abc") == {b"abc"}
    assert accepted("--api-key", "") == set()
    own = tmp_path / "keys"
    own.write_text("secret\n")
    assert accepted("--api-key", "abc", api_keys=own) == {b"secret"}
    monkeypatch.setenv("VLLM_API_KEY", "def")
    assert accepted() == {b"def"}
    # Joined servers' key is how the gateway gets in, not who may ask it.
    assert not site(None, join=("http://10.0.0.3:8000",)).options.keys


def test_which_pages_may_ask_is_what_vllm_is_told(model: str, tmp_path: Path) -> None:
    def told(*vllm_flags: str) -> Cors | None:
        return site(model, *vllm_flags, instances="1").options.cors

    assert told() is None
    assert told("--allowed-origins", "[]", "--allow-credentials") is None
    assert (
        told("--allowed-origins", '["*"]') == told("--allowed_origins=*".replace("*", '"*"')) == Cors(("*",))
    )
    file = tmp_path / "vllm.yaml"
    file.write_text("allowed-origins: '[\"https://a\"]'\nallow-credentials: true\n")
    assert told("--config", str(file), "--allowed-methods", '["GET", "POST"]') == Cors(
        ("https://a",), allow_methods=("GET", "POST"), allow_credentials=True
    )
    with pytest.raises(ConfigError, match=r"--allowed-headers is 'x-tenant'; accepted: a JSON list of texts"):
        told("--allowed-origins", '["*"]', "--allowed-headers", "x-tenant")
    joined = site(None, "--allowed-origins", '["https://a"]', join=("http://10.0.0.3:8000",))
    assert joined.options.cors == Cors(("https://a",))


def test_moving_between_pools_needs_two(model: str) -> None:
    assert site(model, pools="lp=2,hp=1", rebalance=True).rebalances
    connector = ("--kv-transfer-config", '{"kv_connector": "NixlConnector"}')
    for flags in ({"instances": "3"}, {"pools": "lp=3"}, {"pools": "prefill=2,decode=1"}):
        with pytest.raises(ConfigError, match="--rebalance moves instances between pools"):
            site(model, *connector, rebalance=True, **flags)


def test_shadows_know_of_one_stage(model: str) -> None:
    with pytest.raises(ConfigError, match="take the two stages of a request for two requests"):
        site(None, join=("prefill=http://a:1", "decode=http://b:1"), shadow="sjf")


def test_shadows_need_requests_that_are_followed(model: str) -> None:
    assert site(model, instances="2", shadow="sjf, edf").shadows == ("sjf", "edf")
    with pytest.raises(ConfigError, match="unknown policy 'nope'"):
        site(model, instances="2", shadow="nope")
    with pytest.raises(ConfigError, match="use --explain N"):
        build_site(
            ServeRequest(model, "vllm", lambda policy: EngineSettings(policy=policy, explain=0), ()),
            GatewayFlags(instances="2", shadow="sjf"),
            ADDRESS,
        )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "error: MODEL is missing; name `demo`, a directory or a hub name, or --join URL"),
        (["--pools", "lp=1"], "error: MODEL is missing; write headway serve MODEL"),
        (["--", "--max-num-seqs", "4"], "error: MODEL is missing"),
        (["--instances", "1", "--", "--max-num-seqs", "4"], "error: MODEL is missing"),
        (["demo", "--join", "http://x"], "error: no instance is started here, so 'demo' has no use"),
        (
            ["--join", "http://x", "--", "--seed", "1"],
            "error: no instance is started here, so '--seed 1' has no",
        ),
        (["--join", "http://x", "--records", "r"], "error: settings of an engine (--records, "),
        (
            ["demo", "--pools", "lp=1,hp=1", "--order", "edf"],
            "error: --order, --batching, --eviction, --leaving, --tail or --decode-share",
        ),
        (["demo", "--max-queue", "4"], "error: --max-queue is for several instances behind one address"),
        (["demo", "--no-resume"], "error: --no-resume is for several instances"),
        (["demo", "--trust-tenants"], "error: --trust-tenants is for several instances"),
        (
            ["--join", "http://x", "--shadow", ","],
            "error: --shadow is ','; accepted: names of the preset table",
        ),
        (["demo", "--keep-instances", "x"], "error: --keep-instances is for several instances"),
        (["demo", "--rebalance"], "error: --rebalance is for several instances"),
        (["demo", "--instances", "1", "--max-queue", "0"], "error: --max-queue is 0; accepted: 1 or more"),
        (
            ["demo", "--instances", "1", "--drain-seconds", "-1"],
            "error: --drain-seconds is -1.0; accepted: 0 or more",
        ),
        (
            ["demo", "--instances", "1", "--drain-seconds", "nan"],
            "error: --drain-seconds is nan; accepted: 0 or more",
        ),
        (
            ["demo", "--instances", "1", "--max-body-mib", "0"],
            "error: --max-body-mib is 0; accepted: 1 or more",
        ),
        (
            ["demo", "--instances", "1", "--max-body-mib", "-1"],
            "error: --max-body-mib is -1; accepted: 1 or more",
        ),
        (["demo", "--instances", "1", "--api-keys", "/none"], "error: API keys cannot be read from /none"),
        (["demo", "--instances", "1", "--", "-tp", "x"], "error: --tensor-parallel-size is 'x'; accepted"),
        (["demo", "--instances", "1", "--", "--model", "x"], "error: --model cannot be used under Headway"),
        (["./none", "--instances", "1"], "error: model './none' does not exist"),
        (
            ["demo", "--instances", "2", "--host-kv-gib", "1e9"],
            "error: --host-kv-gib is 2e+09 but this machine has",
        ),
        (
            ["demo", "--instances", "1", "--records", "/proc/none/r.jsonl"],
            "error: --records /proc/none/r-0.jsonl cannot be written",
        ),
        (
            ["demo", "--pools", "lp=1,hp=1", "--records", "/proc/none/r.jsonl"],
            "error: --records /proc/none/r-lp-0.jsonl cannot be written",
        ),
        (
            ["demo", "--instances", "1", "--keep-instances", "/proc/none"],
            "error: --keep-instances is /proc/none (No such file or directory); accepted: a folder",
        ),
        (
            ["--join", "http://x", "--keep-instances", "/proc/none"],
            "error: --keep-instances is /proc/none; use it with --instances N or --pools, and without --rebalance",
        ),
        (["demo", "--instances", "1", "--port", "80"], "error: --port is 80; accepted: 1024 to 65535"),
        (
            ["demo", "--policy", "ascendra"],
            "error: policy 'ascendra' serves pools; add --pools",
        ),
        (["demo", "--instances", "1", "--policy", "tea"], "error: unknown policy 'tea'; accepted: "),
    ],
)
def test_flags_are_checked_before_anything_starts(
    refused: Refused, arguments: list[str], complaint: str
) -> None:
    assert refused("serve", *arguments).startswith(complaint)


def test_a_central_queue_predicts_itself_and_its_instances_hand_back(model: str, tmp_path: Path) -> None:
    batches = BatchFlags(batches="magnus", wma_limit=7, kv_tokens=900)
    made = site(model, policy=None, instances="2", central=batches)
    assert (made.layout.policy, made.layout.router) == ("batched", "least-work")
    assert made.central.predictor == "learned"
    assert made.central.batches.settings() == BatchSettings(capacity_tokens=900, wma_limit=7)
    assert made.local is not None
    settings = made.local.prepare("0", "").settings
    assert (settings.preset().leaving, settings.length_predictor()) == (("out-of-memory",), None)
    assert (
        "; one queue of batches, 'magnus'; lengths of answers are predicted with learned\n"
        in introduction(made, model)
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"instances": "1", "max_in_flight": 3}, "--max-in-flight with --batches"),
        ({"instances": "1", "router": "least-work"}, "--batches with --router least-work"),
        ({"pools": "lp=1,hp=1"}, "--batches with pools"),
    ],
)
def test_what_tells_instances_apart_is_refused_beside_batches(
    model: str, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        site(model, central=BatchFlags(batches="vs"), **flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"batches": "ccb"}, "unknown batches 'ccb'; accepted: vs, vsq, glp, abp, magnus"),
        ({"batches": "vsq"}, "batches 'vsq' exist in the simulator alone"),
        ({"batches": "vs", "kv_tokens": 0}, "capacity_tokens is 0; accepted: 1 or more tokens"),
        ({"wma_limit": 5}, "--wma-limit is accepted with --batches alone"),
    ],
)
def test_settings_of_batches_are_checked(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchFlags(**flags).check()
