"""Headway beside the KV connector of another package: a scripted one, under vLLM's real scheduler without a model."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from headway.core.plan import Reason
from headway.core.record import Outcome
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import ScriptedRequest, StepLog, engine_config, headway_builder, make_scheduler
from headway.engine.self_check import compare_logs, stock_builder
from headway.policies.presets import PRESETS
from tests.engine.scripted_connector import OffloadingEngine, Script, TransferringEngine, transfer_config
from tests.engine.scripts import NUM_BLOCKS, HearingEngine, assert_empty, stream

pytestmark = pytest.mark.vllm

SCRIPTS = {
    "mixed": Script(),
    "beside": Script(hits=1.0, beside=1.0, fails=0.0),
    "serial": Script(hits=0.9, beside=0.0, undecided=0.2),
    "undecided": Script(undecided=1.0, most_steps=40),
    "held": Script(held=1.0, most_steps=40),
    "pending": Script(pending_frees=0.3),
    "failing": Script(hits=1.0, fails=0.7),
}
MOST_STEPS = 20_000


def config_of(script: Script, *, asynchronous: bool, on_failure: str = "recompute", **vllm: Any) -> Any:
    """An engine with the scripted connector. vLLM loses track of answers if loads fail under a step in flight."""
    if asynchronous and on_failure == "recompute" and script.beside < 1.0:
        script = replace(script, fails=0.0)
    options = {"max_num_seqs": 12, "max_num_batched_tokens": 512, **vllm}
    config = engine_config(
        str(ensure_demo_random()),
        kv_transfer_config=transfer_config(script, on_failure=on_failure),
        **options,
    )
    config.scheduler_config.async_scheduling = asynchronous
    return config


def run(
    build: Any, config: Any, script: list[ScriptedRequest], kind: type[HearingEngine] = TransferringEngine
) -> tuple[Any, list[StepLog]]:
    """Serve the script until the connector lets go of the last block."""
    engine = kind(make_scheduler(build, copy.deepcopy(config), NUM_BLOCKS))
    pending = sorted(script, key=lambda scripted: scripted.arrival_step, reverse=True)
    log: list[StepLog] = []
    while (pending or engine.scheduler.has_requests()) and len(log) < MOST_STEPS:
        while pending and pending[-1].arrival_step <= len(log):
            engine.add(pending.pop())
        log.append(engine.step())
    engine.drain()
    return engine, log


@pytest.mark.parametrize("on_failure", ["recompute", "fail"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", SCRIPTS)
def test_preset_vllm_decides_as_stock_beside_a_connector(
    name: str, asynchronous: bool, on_failure: str
) -> None:
    steps = 0
    seen: Counter[Reason] = Counter()
    for seed, caching in ((0, False), (1, True)):
        config = config_of(
            replace(SCRIPTS[name], seed=seed),
            asynchronous=asynchronous,
            on_failure=on_failure,
            enable_prefix_caching=caching,
        )
        # So few wait at once that no look-ahead ends before the first that the connector has decided on.
        script = stream(30, seed=seed, mean_gap_steps=8)
        stock, expected = run(stock_builder(asynchronous), config, script)
        ours, actual = run(headway_builder(check=True), config, script)
        parity = compare_logs(expected, actual)
        assert parity.first_difference is None, seed
        assert stock.scheduler.connector.log == ours.scheduler.connector.log
        assert ours.scheduler.counters.watchdog_faults == ours.scheduler.counters.policy_faults == 0
        assert_empty(ours.scheduler)
        steps += parity.steps
        seen += ours.scheduler.counters.differences
    assert steps > 500  # 28 cases: more than 14,000 in all
    assert seen[Reason.REMOTE_KV] or name == "serial"
    assert seen[Reason.REMOTE_LOOKUP] or name == "beside"


@pytest.mark.parametrize(
    ("policy", "asynchronous"), [(name, number % 2 == 1) for number, name in enumerate(PRESETS)]
)
def test_every_preset_serves_every_request_once_beside_a_connector(policy: str, asynchronous: bool) -> None:
    for name, on_failure in (("mixed", "recompute"), ("failing", "fail")):
        config = config_of(
            SCRIPTS[name], asynchronous=asynchronous, on_failure=on_failure, enable_prefix_caching=True
        )
        script = stream(15, mean_gap_steps=1)
        engine, log = run(headway_builder(policy=policy, check=True, batch_width=6), config, script)
        built = engine.scheduler
        assert len(log) < MOST_STEPS
        assert len(engine.endings()) == len(script)
        assert built.counters.differences["unexplained"] == 0
        assert built.counters.watchdog_faults == built.counters.policy_faults == 0
        assert_empty(built)
        ends = built.ledger.ended
        assert ends[Outcome.FINISHED] + ends[Outcome.FAILED] + ends[Outcome.EXPIRED] == len(script)
        if on_failure == "recompute":
            assert not ends[Outcome.FAILED]


# ---- vLLM's own offloading -------------------------------------------------------------------------


def offloading_config(*, asynchronous: bool) -> Any:
    """The configuration that `--kv-offloading-size` makes."""
    config = engine_config(
        str(ensure_demo_random()),
        kv_offloading_size=0.125,
        max_num_seqs=12,
        max_num_batched_tokens=512,
        enable_prefix_caching=True,
    )
    config.scheduler_config.async_scheduling = asynchronous
    assert config.kv_transfer_config.kv_connector == "OffloadingConnector"
    return config


@pytest.mark.parametrize("asynchronous", [False, True])
def test_preset_vllm_decides_as_stock_beside_vllms_own_offloading(asynchronous: bool) -> None:
    config, script = offloading_config(asynchronous=asynchronous), stream(60)
    stock, expected = run(stock_builder(asynchronous), config, script, OffloadingEngine)
    ours, actual = run(headway_builder(check=True), config, script, OffloadingEngine)
    assert compare_logs(expected, actual).first_difference is None
    assert stock.loads == ours.loads > 0
    assert_empty(ours.scheduler)


@pytest.mark.parametrize("policy", ["vllm-v0", "static", "sjf", "fastserve", "adaptivellm", "headway"])
def test_presets_serve_every_request_beside_vllms_own_offloading(policy: str) -> None:
    script = stream(40, mean_gap_steps=1)
    build = headway_builder(policy=policy, check=True, batch_width=6)
    engine, _ = run(build, offloading_config(asynchronous=False), script, OffloadingEngine)
    assert len(engine.endings()) == len(script)
    counters = engine.scheduler.counters
    assert counters.watchdog_faults == counters.policy_faults == 0
    assert_empty(engine.scheduler)


# ---- loads that never come -------------------------------------------------------------------------


class SlowEngine(TransferringEngine):
    """Steps of half a second, busy or not."""

    def step_s(self, output: Any) -> float:
        return 0.5


def test_a_load_that_never_comes_is_reported_once_and_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of(Script(fails=0.0, never=("3",), hits=1.0), asynchronous=False)
    engine = SlowEngine(make_scheduler(headway_builder(policy="headway", check=True), config, NUM_BLOCKS))
    for scripted in stream(12, mean_gap_steps=0):
        engine.add(scripted)
    for _ in range(600):
        engine.step()
    built = engine.scheduler
    assert set(engine.endings()) == {str(index) for index in range(12)} - {"3"}
    assert built.counters.late_transfers == 1
    (told,) = [line for line in caplog.messages if "KV connector has not finished" in line]
    assert "its load for request 3 after 60 s" in told
    assert built.counters.watchdog_faults == 0  # no policy could do anything about it
    assert [request.request_id for request in built.kv_holding_waiting] == ["3"]


def test_a_client_that_leaves_during_a_load_costs_no_block() -> None:
    config = config_of(Script(hits=1.0, beside=1.0, undecided=0.0, fails=0.0), asynchronous=False)
    engine = TransferringEngine(make_scheduler(headway_builder(check=True), config, NUM_BLOCKS))
    engine.add(ScriptedRequest("a", 0, range(300), 5))
    engine.step()
    built = engine.scheduler
    held = built.view.total_blocks - built.kv_cache_manager.block_pool.get_num_free_blocks()
    assert held > 0
    built.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert built.ledger.ended == {Outcome.CANCELLED: 1}
    engine.step()
    # The connector still writes them: nobody may count on them.
    assert built.view.total_blocks == NUM_BLOCKS - 1 - held
    assert built.view.free_blocks == built.view.total_blocks
    while built.has_requests():
        engine.step()
    assert_empty(built)
