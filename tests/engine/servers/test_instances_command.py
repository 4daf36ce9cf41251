from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.engine.host_kv import HostKv
from headway.engine.machine import host_memory_bytes, is_cpu_build
from headway.engine.servers.instances_command import (
    CORES_VARIABLE,
    NIXL_PORT_VARIABLE,
    Binding,
    InstancesPlan,
    LocalInstances,
    Workers,
    bind_instances,
    check_kv_caches,
    check_memory,
    named_file,
)
from headway.engine.servers.server_command import HOST, ServerCommand
from headway.engine.servers.server_process import put_aside
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError

SHOW = "import json, os, sys; print(json.dumps([sys.argv[3:], os.environ.get('VLLM_CPU_OMP_THREADS_BIND')]))"


@pytest.fixture
def plan(tmp_path: Path) -> InstancesPlan:
    settings = {
        pool: EngineSettings(policy=policy, slo_ttft_s=0.5, records=str(tmp_path / "served.jsonl"))
        for pool, policy in {"lp": "edf", "hp": "sarathi"}.items()
    }
    return InstancesPlan(str(tmp_path), settings, ("--max-num-seqs", "8"))


def value(arguments: tuple[str, ...] | list[str], flag: str) -> str:
    assert arguments.count(flag) == 1
    return arguments[arguments.index(flag) + 1]


def config(command: ServerCommand) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(value(command.arguments, "--additional-config"))["headway"]
    return settings


def test_each_instance_has_its_pools_policy_and_files_of_its_own(plan: InstancesPlan, tmp_path: Path) -> None:
    low, high = plan.command("lp-0", "lp"), plan.command("hp-0", "hp")
    assert config(low) == {"policy": "edf", "slo_ttft_s": 0.5, "records": str(tmp_path / "served-lp-0.jsonl")}
    assert config(high)["policy"] == "sarathi"
    assert config(high)["records"] == str(tmp_path / "served-hp-0.jsonl")
    for command in (low, high):
        assert value(command.arguments, "--max-num-seqs") == "8"
        assert value(command.arguments, "--host") == HOST


def two_stages(folder: Path, *flags: str) -> InstancesPlan:
    return InstancesPlan(str(folder), dict.fromkeys(("prefill", "decode"), EngineSettings()), flags)


def transfer_config(plan: InstancesPlan, pool: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        value(plan.command(f"{pool}-0", pool).arguments, "--kv-transfer-config")
    )
    return found


def test_a_stage_is_the_connectors_role(tmp_path: Path) -> None:
    own = '{"kv_connector": "NixlConnector", "kv_connector_extra_config": {"x": 1}}'
    plan = two_stages(tmp_path, "--kv-transfer-config", own, "--max-num-seqs", "8")
    assert transfer_config(plan, "prefill") == {**json.loads(own), "kv_role": "kv_producer"}
    decode = {"kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}
    assert transfer_config(plan, "decode") == {**json.loads(own), **decode}
    assert value(plan.command("decode-0", "decode").arguments, "--max-num-seqs") == "8"
    named = two_stages(tmp_path, '--kv_transfer_config={"kv_connector": "A", "kv_role": "kv_both"}')
    assert {transfer_config(named, pool)["kv_role"] for pool in ("prefill", "decode")} == {"kv_both"}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "pools prefill and decode need a KV connector between them"),
        (("--kv-transfer-config", "[]"), "accepted: one JSON object"),
        (("--kv-transfer-config", "{"), "accepted: one JSON object"),
        (
            ("--kv-transfer-config", '{"kv_connector": "MooncakeConnector"}'),
            "MooncakeConnector wants more of a gateway",
        ),
    ],
)
def test_stages_need_a_connector_between_them(tmp_path: Path, flags: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        two_stages(tmp_path, *flags).command("prefill-0", "prefill")


def test_instances_of_two_stages_listen_on_ports_of_their_own(
    tmp_path: Path, plan: InstancesPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NIXL_PORT_VARIABLE, raising=False)
    stages = two_stages(tmp_path, "--data-parallel-size", "2")
    assert [stages.environment(index)[NIXL_PORT_VARIABLE] for index in range(3)] == ["5600", "5602", "5604"]
    monkeypatch.setenv(NIXL_PORT_VARIABLE, "7000")
    assert stages.environment(1)[NIXL_PORT_VARIABLE] == "7002"
    assert plan.environment(1) == {}


def test_the_gateways_health_checks_are_not_logged_unless_the_user_says_what_is(plan: InstancesPlan) -> None:
    flag = "--disable-access-log-for-endpoints"
    assert value(plan.command("lp-0", "lp").arguments, flag) == "/health"
    own = InstancesPlan(plan.model, plan.settings, (flag, "/metrics"))
    assert value(own.command("lp-0", "lp").arguments, flag) == "/metrics"


def test_a_command_moves_to_another_port(plan: InstancesPlan) -> None:
    command = plan.command("lp-0", "lp")
    moved = command.on_port(1234)
    assert value(moved.arguments, "--port") == "1234"
    assert moved.on_port(0) == command


@pytest.mark.parametrize(
    ("flags", "each", "shares"),
    [
        ((), 1, False),
        (("-tp", "2"), 2, False),
        (("--tensor_parallel_size=2", "--pipeline-parallel-size", "3"), 6, False),
        (("-pp=2", "--data-parallel-size", "2", "-pcp", "2"), 8, False),
        (("-tp", "2", "-tp", "4"), 4, False),
        (("--gpu-memory-utilization", "0.4"), 1, True),
    ],
)
def test_workers_are_counted(plan: InstancesPlan, flags: tuple[str, ...], each: int, shares: bool) -> None:
    counted = InstancesPlan(plan.model, plan.settings, flags).workers(3)
    assert counted == Workers(3, each, shares_memory=shares)
    assert counted.total == 3 * each


def test_a_size_that_is_no_number_is_refused(plan: InstancesPlan) -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size is 'two'; accepted: 1 or more"):
        InstancesPlan(plan.model, plan.settings, ("-tp", "two")).workers(1)


@pytest.mark.skipif(not is_cpu_build(), reason="cores are bound where vLLM computes on the CPU")
def test_cores_are_bound_unless_the_user_did(plan: InstancesPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    assert len(bind_instances(plan, 2).environments) == 2
    monkeypatch.setenv(CORES_VARIABLE, "0")
    assert bind_instances(plan, 2) == Binding()
    assert Binding().environment(1) == {}


def test_what_was_prepared_is_started_with_its_name_port_and_cores(
    plan: InstancesPlan, capfd: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    binding = Binding(({CORES_VARIABLE: "0"}, {CORES_VARIABLE: "1"}))
    local = LocalInstances(plan, binding, unused_tcp_port, program=(sys.executable, "-c", SHOW))
    assert local.prepare("lp-0", "lp") is local.prepare("lp-0", "lp")
    started = [
        local.start(index, name, pool) for index, (name, pool) in enumerate((("lp-0", "lp"), ("hp-0", "hp")))
    ]
    ports = [process.address[1] for process in started]
    assert ports[0] >= unused_tcp_port
    assert ports[1] > ports[0]
    for process in started:
        assert process.wait() == 0
        process.last_words()
    lines = dict(line.split("] ", 1) for line in capfd.readouterr().err.splitlines())
    for index, name in enumerate(("lp-0", "hp-0")):
        arguments, cores = json.loads(lines[f"[{name}"])
        assert (value(arguments, "--port"), cores) == (str(ports[index]), str(index))


def test_an_instance_keeps_its_port_unless_somebody_has_it(plan: InstancesPlan, unused_tcp_port: int) -> None:
    local = LocalInstances(plan, Binding(), unused_tcp_port, program=(sys.executable, "-c", ""))

    def started() -> int:
        process = local.start(0, "lp-0", "lp")
        process.wait()
        return process.address[1]

    first = started()
    assert started() == first
    with socket.socket() as taken:
        taken.bind((HOST, first))
        taken.listen()
        assert started() > first


def test_what_was_recorded_is_kept_when_an_instance_is_started(
    plan: InstancesPlan, tmp_path: Path, unused_tcp_port: int
) -> None:
    local = LocalInstances(plan, Binding(), unused_tcp_port, program=(sys.executable, "-c", ""))
    file = tmp_path / "served-lp-0.jsonl"
    for life in ("before", "first", "second"):
        file.write_text(life)
        (tmp_path / "served-lp-0-dp1.jsonl").write_text(life)
        local.start(0, "lp-0", "lp").wait()
    kept = {each.name: each.read_text() for each in tmp_path.glob("*.jsonl")}
    assert kept == {
        "served-lp-0.1.jsonl": "before",
        "served-lp-0.2.jsonl": "first",
        "served-lp-0.3.jsonl": "second",
        "served-lp-0-dp1.1.jsonl": "before",
        "served-lp-0-dp1.2.jsonl": "first",
        "served-lp-0-dp1.3.jsonl": "second",
    }


def test_a_link_to_records_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "far").write_text("before")
    link = tmp_path / "served.jsonl"
    link.symlink_to(tmp_path / "far")
    put_aside(str(link))
    assert link.is_symlink()


def test_what_is_not_accepted_is_said_before_anything_starts(plan: InstancesPlan) -> None:
    with pytest.raises(ConfigError, match="--scheduler-cls cannot be used"):
        InstancesPlan(plan.model, plan.settings, ("--scheduler-cls", "x")).command("lp-0", "lp")


def test_the_memory_of_all_instances_is_counted() -> None:
    whole = host_memory_bytes() / (1 << 30)
    settings = EngineSettings(policy="adaptivellm-plus", host_kv=HostKv(gib=whole / 3))
    check_memory(settings, 2)
    check_memory(EngineSettings(), 1000)
    with pytest.raises(ConfigError, match="but this machine has"):
        check_memory(settings, 4)


@pytest.mark.skipif(not is_cpu_build(), reason="a GPU has memory of its own")
def test_the_kv_caches_of_all_instances_fit_the_machine(
    plan: InstancesPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    most = host_memory_bytes() // (1 << 30)  # those chosen here have 1 GiB each
    check_kv_caches(plan, most)
    with pytest.raises(
        ConfigError, match=f"^{most + 1} instances would have {most + 1} KV caches of 1 GiB, and this"
    ):
        check_kv_caches(plan, most + 1)
    small = InstancesPlan(plan.model, plan.settings, ("--kv-cache-memory-bytes", "1000000"))
    check_kv_caches(small, most + 1)
    wide = InstancesPlan(plan.model, plan.settings, ("-tp", "2"))
    with pytest.raises(ConfigError, match="accepted: fewer instances, or less for each"):
        check_kv_caches(wide, most)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    check_kv_caches(plan, most + 1)


@pytest.mark.parametrize(
    ("file", "own"),
    [("/a/served.jsonl", "/a/served-lp-0.jsonl"), ("/a.b/served", "/a.b/served-lp-0"), (None, None)],
)
def test_files_are_named_after_their_instance(file: str | None, own: str | None) -> None:
    assert named_file(file, "lp-0") == own
