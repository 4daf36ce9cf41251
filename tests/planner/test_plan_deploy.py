from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli import _load
from headway.cli.serve_layout import read_layout
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.servers.vllm_flags import parse_vllm_flags, value_of
from headway.errors import ConfigError
from headway.planner.deploy import arguments, as_started, command, flags_here, records_of_engines, script
from headway.planner.machine import Configuration, Machine, Node
from headway.predict.steps.calibration import EngineDefaults
from headway.sim.limits import KvTier
from tests.planner.costs import write_costs
from tests.planner.plans import ask

SINGLE = Configuration(gpus=2, policy="predicted", tp=2, instances=1, seats=64, tokens_a_step=4096)
FULL = replace(SINGLE, host_gib=1.5, predictor="learned")
SEVERAL = replace(SINGLE, policy="edf", gpus=3, tp=1, instances=3)
STORED = replace(SINGLE, predictor="learned", kv_tier=KvTier(gib=100.0))
POOLED = replace(
    SINGLE, policy="ascendra", gpus=4, tp=1, instances=4, lp=3, threshold=0.1, lp_tokens=512, hp_tokens=2048
)
SLO = Slo(ttft_s=0.25, tbt_s=0.05, deadline_s=9.0)


def parsed(configuration: Configuration, slo: Slo) -> dict[str, Any]:
    """The real command line's reading of the command as typed into a shell."""
    words = shlex.split(command(arguments("Qwen/Qwen3-8B", configuration, slo)))
    assert words[:2] == ["headway", "serve"]
    found: dict[str, Any] = _load("serve").make_context("serve", words[2:]).params
    return found


@pytest.mark.parametrize(
    "configuration", [SINGLE, FULL, SEVERAL, STORED, POOLED], ids=lambda each: each.policy
)
@pytest.mark.parametrize("slo", [NO_TARGETS, SLO], ids=["no targets", "targets"])
def test_the_command_says_all_of_the_configuration(configuration: Configuration, slo: Slo) -> None:
    found = parsed(configuration, slo)
    # One instance by itself has no flag for their number.
    instances = None if found["pools"] else found["instances"] or 1
    layout = read_layout(
        instances=str(instances) if instances else None, pools=found["pools"], policy=found["policy"]
    )
    flags = parse_vllm_flags(found["vllm_flags"])
    # vLLM's own flag counts all GPUs of an engine.
    store_gib = float(value_of(flags, "--kv-offloading-size") or 0) / configuration.tp
    said = Configuration(
        gpus=configuration.gpus,
        policy=layout.policy,
        tp=int(value_of(flags, "--tensor-parallel-size") or 1),
        instances=len(layout.launched),
        lp=sum(place.pool == "lp" for place in layout.launched),
        seats=int(value_of(flags, "--max-num-seqs") or 0),
        tokens_a_step=int(value_of(flags, "--max-num-batched-tokens") or 0),
        threshold=found["hand_off_threshold"],
        lp_tokens=found["lp_tokens"],
        hp_tokens=found["hp_tokens"],
        host_gib=found["host_kv_gib"] or 0.0,
        kv_tier=KvTier(gib=store_gib) if store_gib else None,
        predictor=found["predictor"] or "none",
    )
    assert said == configuration
    assert (found["model"], found["slo_ttft_s"], found["slo_tbt_s"]) == (
        "Qwen/Qwen3-8B",
        slo.ttft_s,
        slo.tbt_s,
    )


def test_on_one_machine_the_script_is_the_command() -> None:
    for node in (Node(), Node(gpus=8)):
        assert script("demo", POOLED, SLO, node) == command(arguments("demo", POOLED, SLO))


@pytest.mark.parametrize(
    ("configuration", "gpus", "starts"),
    [
        (
            replace(SEVERAL, gpus=6, tp=2),
            4,
            [("0,1", "edf", 1, 8001), ("2,3", "edf", 1, 8002), ("0,1", "edf", 2, 8001)],
        ),
        (
            POOLED,
            2,
            [
                *(("0", "ascendra-lp", 1, 8001), ("1", "ascendra-lp", 1, 8002)),
                *(("0", "ascendra-lp", 2, 8001), ("1", "ascendra-hp", 2, 8002)),
            ],
        ),
    ],
)
def test_on_several_machines_every_instance_has_gpus_and_a_gateway_joins_them(
    configuration: Configuration, gpus: int, starts: list[tuple[str, str, int, int]]
) -> None:
    *lines, gateway = script("demo", configuration, SLO, Node(gpus=gpus)).splitlines()
    for line, (devices, policy, machine, port) in zip(lines, starts, strict=True):
        visible, *words = shlex.split(line, comments=True)
        assert visible == f"CUDA_VISIBLE_DEVICES={devices}"
        found = _load("serve").make_context("serve", words[2:]).params
        assert (found["policy"], found["port"], found["host"]) == (policy, port, "0.0.0.0")
        assert not found["instances"]
        assert not found["pools"]
        is_lp, is_hp = policy.endswith("-lp"), policy.endswith("-hp")
        assert found["hand_off_threshold"] == (configuration.threshold if is_lp else None)
        assert found["lp_tokens"] == (configuration.lp_tokens if is_lp else None)
        assert found["hp_tokens"] == (configuration.hp_tokens if is_lp or is_hp else None)
        assert line.endswith(f"# on MACHINE{machine}")
    joined = _load("serve").make_context("serve", shlex.split(gateway, comments=True)[2:]).params["join"]
    urls = [f"http://MACHINE{machine}:{port}" for *_, machine, port in starts]
    pools = ["lp=", "lp=", "lp=", "hp="] if configuration.pools else [""] * len(urls)
    assert list(joined) == [f"{pool}{url}" for pool, url in zip(pools, urls, strict=True)]


def test_one_instance_by_itself_needs_no_gateway() -> None:
    words = arguments("demo", SINGLE, NO_TARGETS)
    assert "--instances" not in words
    assert words[-7:] == (
        *("--", "--max-num-seqs", "64", "--max-num-batched-tokens", "4096", "--tensor-parallel-size", "2"),
    )


H100 = Machine("h100", "Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("seats", "tokens", "flags"), [(64, 4096, ["512"]), (64, 256, ["256"]), (256, 4096, []), (64, 128, [])]
)
def test_few_seats_keep_their_cuda_graphs(seats: int, tokens: int, flags: list[str]) -> None:
    given = replace(SINGLE, seats=seats, tokens_a_step=tokens)
    assert list(flags_here(H100, given)) == ["--max-cudagraph-capture-size"][: len(flags)] + flags
    assert H100.limits(given).graphed_tokens == min(512, tokens)


@pytest.mark.parametrize(("graphed", "flags"), [(0, ()), (512, ("--max-cudagraph-capture-size", "512"))])
def test_a_measured_machine_keeps_those_that_it_had(
    tmp_path: Path, graphed: int, flags: tuple[str, ...]
) -> None:
    file = write_costs(tmp_path / "cost.json", jobs=64, tokens=4096, graphed_tokens=graphed)
    assert flags_here(Machine(str(file), "demo"), replace(SINGLE, tp=1)) == flags


def test_a_measured_engine_is_served_as_it_was_measured(tmp_path: Path) -> None:
    flags = ("--block-size", "64", "--no-async-scheduling")
    engine = EngineDefaults(
        max_num_seqs=1024, max_num_batched_tokens=8192, asynchronous=False, vllm_flags=flags
    )
    file = write_costs(tmp_path / "cost.json", jobs=1024, tokens=8192, engine=engine)
    assert flags_here(Machine(str(file), "demo"), replace(SINGLE, tp=1)) == flags
    stock = Machine(str(file), "demo").default_limits(1)
    assert (stock.max_num_seqs, stock.max_num_batched_tokens, stock.asynchronous) == (1024, 8192, False)


@pytest.mark.parametrize(
    ("machine", "tp", "shortens"),
    [
        # 140 GB of weights leave two H100 room for 42,572 tokens, of the 131,072 that the model reads.
        (Machine("h100", "meta-llama/Llama-3.1-70B"), 2, True),
        (Machine("h100", "meta-llama/Llama-3.1-70B"), 4, False),
        (Machine("rtx-4090", "Qwen/Qwen3-8B"), 1, True),
        (H100, 1, False),
    ],
)
def test_where_memory_holds_less_than_the_model_reads_vllm_is_told_to_read_less(
    machine: Machine, tp: int, shortens: bool
) -> None:
    flags = flags_here(machine, replace(SINGLE, tp=tp, seats=256))
    assert flags == (("--max-model-len", "auto") if shortens else ())


def test_a_port_and_records_are_put_before_vllms_own_flags(tmp_path: Path) -> None:
    words = as_started(
        ("headway", "serve", "demo", "--", "--max-num-seqs", "4"), 8123, ("--records", f"{tmp_path}/r.jsonl")
    )
    records = f"{tmp_path / 'r.jsonl'}"
    assert words == ["serve", "demo", "--port", "8123", "--records", records, "--", "--max-num-seqs", "4"]


def test_each_instance_of_a_deployment_has_a_file_of_records(tmp_path: Path) -> None:
    for name in ("r-hp-0.jsonl", "r-lp-0.jsonl", "r.log", "other.jsonl"):
        (tmp_path / name).touch()
    assert [file.name for file in records_of_engines(tmp_path / "r.jsonl")] == [
        "r-hp-0.jsonl",
        "r-lp-0.jsonl",
    ]


def test_other_attention_kernels_are_asked_of_vllm_too() -> None:
    machine = Machine("h100", "Llama-3.1-8B", attention="flashinfer")
    assert machine.attention_flags() == ("--attention-backend", "FLASHINFER")
    assert machine.attention_flags() == flags_here(machine, replace(SINGLE, seats=1024))[-2:]
    assert Machine("h100", "Llama-3.1-8B").attention_flags() == ()


@pytest.mark.parametrize("attention", ["vllm-v0", "sarathi-serve"])
def test_kernels_that_no_vllm_of_today_has_are_not_planned_with(attention: str) -> None:
    with pytest.raises(
        ConfigError, match="which today's vLLM does not have; accepted: flash-attn, flashinfer"
    ):
        ask(attention=attention).check()


def test_kernels_decide_what_a_plan_costs() -> None:
    one, other = (
        Machine("a100-80g", "Llama-3.1-8B", attention=name) for name in ("flash-attn", "flashinfer")
    )
    assert one.fingerprint(1) != other.fingerprint(1)
    assert "a kernel each" in other.costs(1).provenance
