from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from headway.cli import serve
from headway.cli.options import host_memory
from headway.cli.serve import check_address, introduction
from headway.engine.demo_model import resolve_model
from headway.engine.host_kv import HostKv
from headway.engine.machine import fastest_dtype, host_memory_bytes, is_cpu_build, vllm_version
from headway.engine.servers.server_command import CPU_KV_CACHE_BYTES, ServerCommand, server_command
from headway.engine.servers.vllm_flags import parse_vllm_flags, value_of
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.policies.presets import PRESETS
from tests.cli.conftest import Headway, Refused

ADDRESS = ("127.0.0.1", 8000)

cpu_only = pytest.mark.skipif(not is_cpu_build(), reason="defaults for the CPU build of vLLM")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(tmp_path)


def command(model: str, *vllm_flags: str, **settings: Any) -> ServerCommand:
    return server_command(model, EngineSettings(**settings), ADDRESS, vllm_flags)


def value(arguments: tuple[str, ...], flag: str) -> str:
    """The value of a flag that is given exactly once."""
    assert arguments.count(flag) == 1, arguments
    return arguments[arguments.index(flag) + 1]


def headway_config(made: ServerCommand) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(value(made.arguments, "--additional-config"))["headway"]
    return config


def test_vllm_gets_the_scheduler_the_address_and_the_settings(model: str) -> None:
    made = command(model, policy="sarathi", slo_ttft_s=0.5, batch_width=8, leaving=("expired",))
    assert made.arguments[:2] == ("serve", model)
    assert value(made.arguments, "--scheduler-cls") == "headway.engine.HeadwayScheduler"
    assert (value(made.arguments, "--host"), value(made.arguments, "--port")) == ("127.0.0.1", "8000")
    assert headway_config(made) == {
        "policy": "sarathi",
        "slo_ttft_s": 0.5,
        "batch_width": 8,
        "leaving": ["expired"],
    }


def test_every_vllm_flag_is_passed_on_as_it_was_written(model: str) -> None:
    flags = (
        "--max_num_batched_tokens=512",
        "--seed",
        "3",
        "-tp",
        "2",
        "--middleware",
        "a",
        "b",
        "--gdn",
        "-1",
    )
    arguments = command(model, *flags).arguments
    start = arguments.index(flags[0])
    assert arguments[start : start + len(flags)] == flags


def test_a_users_additional_config_is_merged(model: str) -> None:
    given = '{"other": 1, "headway": {"check": true, "policy": "orca"}}'
    made = command(model, f"--additional-config={given}", policy="sarathi")
    config = json.loads(value(made.arguments, "--additional-config"))
    assert config == {"other": 1, "headway": {"check": True, "policy": "sarathi"}}
    assert made.settings.check


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--additional-config", "{"], "is not JSON"),
        (["--additional-config", "[1]"], "accepted: one JSON object"),
        (["--additional-config", '{"headway": 3}'], "accepted: one JSON object"),
        (["--additional-config.headway.policy", "orca"], "accepted: --additional-config with one JSON"),
        (["--additional-config", '{"headway": {"polcy": "orca"}}'], "unknown polcy"),
        (["--scheduler-cls", "my.Scheduler"], "Headway is the scheduler"),
        (["--scheduler_cls=my.Scheduler"], "Headway is the scheduler"),
        (["--scheduler-c", "my.Scheduler"], "Headway is the scheduler"),
        (["--port", "9000"], "give it before the `--`"),
        (["--host", "0.0.0.0"], "give it before the `--`"),
        (["--model", "x"], "first argument"),
        (["--no-enable-chunked-prefill"], "leave chunked prefill on"),
        (["stray"], "unexpected argument 'stray'"),
    ],
)
def test_flags_that_headway_controls_are_refused(model: str, flags: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        command(model, *flags)


@pytest.mark.parametrize(
    "flags", [["--kv-transfer-config", '{"kv_connector": "NixlConnector"}'], ["--kv-offloading-size", "4"]]
)
def test_the_connector_of_another_package_is_vllms_to_start(model: str, flags: list[str]) -> None:
    assert value(command(model, *flags).arguments, flags[0]) == flags[1]


FILE_OF_FLAGS = """
additional-config: {other: 1, headway: {check: true, policy: orca}}
max_num_seqs: 4
dtype: float32
enforce-eager: false
middleware: [a, b]
disable-log-stats: true
"""


def test_a_file_of_flags_counts_as_if_they_were_written_and_is_left_to_vllm(
    model: str, tmp_path: Path
) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text(FILE_OF_FLAGS)
    flags = parse_vllm_flags(["--config", str(file), "--dtype=auto"])
    assert [(flag.name, flag.values) for flag in flags[1:6]] == [
        ("--max-num-seqs", ("4",)),
        ("--dtype", ("float32",)),
        ("--no-enforce-eager", ()),
        ("--middleware", ("a", "b")),
        ("--disable-log-stats", ()),
    ]
    assert value_of(flags, "--dtype") == "auto"
    made = command(model, "--config", str(file), policy="sarathi")
    config = json.loads(value(made.arguments, "--additional-config"))
    assert config == {"other": 1, "headway": {"check": True, "policy": "sarathi"}}
    assert value(made.arguments, "--config") == str(file)
    assert not {"--max-num-seqs", "--dtype", "--enforce-eager"} & set(made.arguments)
    with pytest.raises(ConfigError, match="--batch-width is 8 but --max-num-seqs leaves 4"):
        command(model, "--config", str(file), batch_width=8)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "scheduler-cls: my.Scheduler",
            "--scheduler-cls in the file of --config cannot be used under Headway",
        ),
        ("enable-chunked-prefill: false", "leave chunked prefill on"),
        ("additional-config: {headway: {polcy: orca}}", "unknown polcy"),
        ("- a list", "holds no flags; accepted: YAML with a line `flag: value` for each"),
        ("a: [", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_what_a_file_of_flags_may_not_say(
    model: str, tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "flags.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        command(model, f"--config={file}")


@pytest.mark.parametrize(
    "flags",
    [
        ["--scheduling-policy", "fcfs"],
        ["--scheduling-policy", "priority"],
        ["--runner", "pooling"],
        ["--runner", "auto"],
        ["--enable-chunked-prefill"],
        ["--hf-token", "x"],
    ],
)
def test_harmless_neighbours_of_refused_flags_pass(model: str, flags: list[str]) -> None:
    assert set(flags) < set(command(model, *flags).arguments)


def test_batch_width_and_worker_slots_are_two_numbers(model: str) -> None:
    made = command(model, batch_width=8)
    assert (headway_config(made)["batch_width"], value(made.arguments, "--max-num-seqs")) == (8, "256")
    assert value(command(model, batch_width=300).arguments, "--max-num-seqs") == "300"
    assert value(command(model, "--max-num-seqs", "16", batch_width=8).arguments, "--max-num-seqs") == "16"
    assert "--max-num-seqs" not in command(model).arguments
    with pytest.raises(ConfigError, match="--batch-width is 8 but --max-num-seqs leaves 4 worker slots"):
        command(model, "--max-num-seqs", "4", batch_width=8)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"policy": "nope"}, "unknown policy 'nope'; accepted: vllm, "),
        ({"order": "nope"}, "unknown order 'nope'; accepted: arrival, "),
        ({"batching": "decode-first:colour=red"}, "has no setting 'colour=red'"),
        ({"slo_ttft_s": 0.0}, "ttft_s is 0.0; accepted"),
        ({"slo_tbt_s": float("nan")}, "tbt_s is nan; accepted"),
        ({"slo_ttft_s": 1e9}, "ttft_s is 1000000000.0; accepted"),
        ({"batch_width": 0}, "batch_width is 0; accepted"),
    ],
)
def test_settings_that_are_not_accepted_say_what_is(
    model: str, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        command(model, **settings)


@cpu_only
def test_a_cpu_gets_what_it_needs_to_start_quickly(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert command(model).chosen == (
        f"--dtype {fastest_dtype()}",
        "--max-model-len auto",
        "--enforce-eager",
        f"--kv-cache-memory-bytes {CPU_KV_CACHE_BYTES}",
    )


@cpu_only
def test_what_the_user_gives_is_not_chosen_again(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    flags = ("--dtype=float32", "--max_model_len", "512", "--no-enforce-eager")
    assert command(model, *flags).chosen == ()


@cpu_only
@pytest.mark.parametrize("name", ["demo", "demo-random"])
def test_the_demo_models_are_served_under_their_names(name: str) -> None:
    made = command(name)
    assert made.arguments[1] == resolve_model(name)
    assert value(made.arguments, "--served-model-name") == name
    assert value(command("demo", "--served-model-name", "x").arguments, "--served-model-name") == "x"


# ---- host memory ---------------------------------------------------------------------------------------


def transfer_config(made: ServerCommand) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(value(made.arguments, "--kv-transfer-config"))
    return config


def test_host_memory_starts_the_connector_and_reaches_the_scheduler(model: str) -> None:
    made = command(model, policy="adaptivellm-plus", host_kv=HostKv(gib=0.5, bytes_per_s=12e9))
    assert transfer_config(made) == HostKv(gib=0.5, bytes_per_s=12e9).transfer_config()
    assert made.settings.host_kv == HostKv(gib=0.5, bytes_per_s=12e9)
    assert EngineSettings.from_additional_config({"headway": headway_config(made)}) == made.settings


@pytest.mark.parametrize(
    ("flags", "each"),
    [
        (("--data-parallel-size", "4"), 2.0),
        (("-dp=8",), 1.0),
        (("-dp", "8", "--data-parallel-size-local", "2"), 4.0),
        (("--tensor-parallel-size", "4"), 8.0),  # the workers of one engine share what it has
    ],
)
def test_data_parallel_engines_share_the_host_memory(model: str, flags: tuple[str, ...], each: float) -> None:
    """vLLM starts a connector in each engine."""
    made = command(model, *flags, policy="fastserve", host_kv=HostKv(gib=8.0))
    assert transfer_config(made)["kv_connector_extra_config"]["gib"] == each


def test_host_memory_can_be_a_setting_of_the_users_own_config(model: str) -> None:
    given = '{"headway": {"host_kv": {"blocks": 40}}}'
    made = command(model, f"--additional-config={given}")
    assert transfer_config(made)["kv_connector_extra_config"] == {"blocks": 40, "restore_share": 0.5}


def test_without_host_memory_there_is_no_connector(model: str) -> None:
    assert "--kv-transfer-config" not in command(model, policy="adaptivellm-plus").arguments


def test_more_memory_than_the_machine_has_is_refused(model: str) -> None:
    whole = host_memory_bytes() / (1 << 30)
    command(model, host_kv=HostKv(gib=whole / 2))
    with pytest.raises(ConfigError, match=f"but this machine has {whole:.1f} GiB of memory in all"):
        command(model, host_kv=HostKv(gib=whole + 1))


@pytest.mark.parametrize(
    ("gib", "bytes_per_s", "memory"),
    [
        (None, None, None),
        (0.0, None, None),
        (2.0, None, HostKv(gib=2.0)),
        (0.5, 1e9, HostKv(gib=0.5, bytes_per_s=1e9)),
    ],
)
def test_flags_of_host_memory(gib: float | None, bytes_per_s: float | None, memory: HostKv | None) -> None:
    assert host_memory(gib, bytes_per_s) == memory


def test_the_introduction_says_what_memory_is_taken(model: str) -> None:
    made = command(model, host_kv=HostKv(gib=0.5, bytes_per_s=12e9))
    says = (
        "; KV of requests that are swapped out: 0.5 GiB of host memory, at 1.2e+10 bytes/s at most each way\n"
    )
    assert says in introduction("m", "u", made)
    assert "40 KV blocks of host memory\n" in introduction(
        "m", "u", command(model, host_kv=HostKv(blocks=40))
    )
    assert "host memory" not in introduction("m", "u", command(model))


def test_a_length_predictor_is_passed_on_and_introduced(model: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    made = command(model, policy="predicted", predictor="learned", length_model=str(file))
    assert headway_config(made) == {"policy": "predicted", "predictor": "learned", "length_model": str(file)}
    says = introduction("m", "u", made)
    assert f"; lengths of answers are predicted with learned; what is learned is kept in {file}\n" in says
    forgetful = introduction("m", "u", command(model, predictor="learned"))
    assert "predicted with learned; what is learned is forgotten at the end" in forgetful
    unasked = command(model, policy="headway")
    assert headway_config(unasked) == {"policy": "headway"}
    assert "predicted with learned; what is learned is forgotten at the end" in introduction(
        "m", "u", unasked
    )
    for without in (command(model), command(model, policy="headway", predictor="none")):
        assert "lengths of answers" not in introduction("m", "u", without)


def test_a_length_model_that_cannot_be_read_is_refused_before_anything_starts(
    model: str, tmp_path: Path
) -> None:
    file = tmp_path / "lengths.npz"
    file.write_bytes(b"not one")
    with pytest.raises(ConfigError, match=r"lengths\.npz is damaged"):
        command(model, predictor="learned", length_model=str(file))


def test_the_time_to_drain_is_the_users(model: str) -> None:
    assert command(model).drain_s == 0
    assert command(model, "--shutdown-timeout", "45").drain_s == 45
    assert command(model, "--shutdown_timeout=0").drain_s == 0


def test_the_introduction_is_three_lines(model: str) -> None:
    made = command(model, policy="sarathi", slo_tbt_s=0.05, order="edf")
    first, second, third = introduction("m", "http://127.0.0.1:8000", made).splitlines()
    assert first.startswith(f"headway: model  m at http://127.0.0.1:8000, vLLM {vllm_version()} on ")
    assert second == (
        f"headway: policy sarathi ({PRESETS['sarathi'].summary}) with order edf; "
        "targets: time between tokens 0.05 s"
    )
    assert third.startswith(
        "headway: look   http://127.0.0.1:8000/metrics (Prometheus), headway explain --url "
    )
    assert "; no latency targets" in introduction("m", "u", command(model)).splitlines()[1]
    by_default = introduction("m", "u", command(model, policy="headway")).splitlines()[1]
    assert by_default.endswith("; stock order: --policy vllm")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--policy", "nope"], "error: unknown policy 'nope'"),
        (["demo", "--slo-ttft", "-1"], "error: --slo-ttft is -1.0"),
        (["demo", "--port", "80"], "error: --port is 80; accepted: 1024 to 65535"),
        (["demo", "--host", "203.0.113.7"], "error: cannot serve on 203.0.113.7"),
        (["demo", "--predictor", "tea"], "error: unknown length predictor 'tea'; accepted: learned"),
        (["demo", "--policy", "vllm", "--length-model", "x"], "error: --length-model is "),
        (["demo", "--predictor", "none", "--length-model", "x"], "error: --length-model is "),
        (["demo", "--host-kv-gib", "-1"], "error: --host-kv-gib is -1.0; accepted: more than 0"),
        (["demo", "--host-kv-gib", "nan"], "error: --host-kv-gib is nan; accepted: more than 0"),
        (["demo", "--host-kv-gib", "1e9"], "error: --host-kv-gib is 1e+09 but this machine has"),
        (
            ["demo", "--host-kv-bytes-per-s", "1e9"],
            "error: --host-kv-bytes-per-s is 1000000000.0 without host memory; add --host-kv-gib",
        ),
        (
            ["demo", "--host-kv-gib", "1", "--host-kv-bytes-per-s", "0"],
            "error: --host-kv-bytes-per-s is 0.0; accepted: more than 0",
        ),
        (
            ["demo", "--host-kv-gib", "1", "--", "--kv-transfer-config", "{}"],
            "error: --kv-transfer-config starts a KV connector, and so does --host-kv-gib",
        ),
        (
            ["demo", "--host-kv-gib", "1", "--", "--kv_transfer_config.kv_role", "kv_both"],
            "error: --kv-transfer-config starts a KV connector, and so does --host-kv-gib",
        ),
        (
            ["demo", "--host-kv-gib", "1", "--", "--kv-offloading-size", "4"],
            "error: --kv-offloading-size starts a KV connector, and so does --host-kv-gib",
        ),
        (["demo", "--records", "/proc/none/r"], "error: --records /proc/none/r cannot be written"),
        (
            ["demo", "--predictor", "learned", "--length-model", "/proc/l"],
            "error: --length-model /proc/l cannot be written",
        ),
        (["./no-such-model"], "error: model './no-such-model' does not exist"),
        (["demo", "stray"], "error: unexpected argument 'stray'; vLLM's own flags come after `--`"),
        (
            ["demo", "--", "--shutdown-timeout", "soon"],
            "error: --shutdown-timeout is 'soon'; accepted: 0 or more whole seconds",
        ),
        (["demo", "--", "--scheduler-cls", "x"], "error: --scheduler-cls cannot be used under Headway"),
    ],
)
def test_flags_are_checked_before_vllm_starts(refused: Refused, arguments: list[str], complaint: str) -> None:
    err = refused("serve", *arguments)
    assert err.startswith(complaint)


def test_a_port_in_use_is_refused(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        err = refused("serve", "demo", "--port", str(port))
    assert err.startswith(f"error: cannot serve on 127.0.0.1:{port} (Address already in use)")
    check_address("127.0.0.1", port)


def test_no_host_is_not_every_address(refused: Refused) -> None:
    err = refused("serve", "demo", "--host", "")
    assert err == "error: --host is empty; accepted: an address of this machine, 0.0.0.0 for all\n"


def test_an_unknown_flag_before_the_dashes_is_a_usage_error(refused: Refused) -> None:
    err = refused("serve", "demo", "--max-num-seqs", "4")
    assert "No such option" in err


def test_strict_reaches_the_engine(headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ServerCommand] = []

    def run(made: ServerCommand, address: tuple[str, int]) -> int:
        started.append(made)
        return 0

    monkeypatch.setattr(serve, "_run", run)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert headway("serve", "demo", "--policy", "sjf", "--strict", "--port", port).code == 0
    assert headway_config(started[0]) == {"policy": "sjf", "strict": True}
