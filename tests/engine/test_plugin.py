from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import SamplingParams

from headway.engine import register
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import engine_config
from headway.engine.servers.server_command import SCHEDULER
from headway.engine.vllm import plugin as plugin_module
from headway.engine.vllm.metrics import HeadwayStatLogger
from headway.engine.vllm.plugin import CPU_ASYNC_SWITCH, SCHEDULES
from headway.engine.vllm.questions import Endpoint
from headway.engine.vllm.seams import ENDINGS, works

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def plugin(group: str) -> Any:
    """The object that vLLM finds under Headway's name in one of its plug-in groups."""
    (entry,) = entry_points(group=group, name="headway")
    return entry.load()


def test_vllm_finds_all_plugins_without_a_flag() -> None:
    assert plugin("vllm.general_plugins") is register
    assert plugin("vllm.stat_logger_plugins") is HeadwayStatLogger
    assert plugin("vllm.endpoint_plugins") is Endpoint


@pytest.mark.parametrize(
    ("extra_args", "complaint"),
    [
        ({"headway_ttft_ms": -1}, "headway_ttft_ms is -1; accepted: milliseconds in (0, 6.048e+08]"),
        ({"headway_tbt_ms": float("nan")}, "headway_tbt_ms is nan; accepted: milliseconds in (0, 6.048e+08]"),
        (
            {"headway_deadline_ms": True},
            "headway_deadline_ms is True; accepted: milliseconds in (0, 6.048e+08]",
        ),
        ({"headway_length": [5]}, "headway_length is [5]; accepted: 1 or more tokens"),
        ({"headway_tenant": 5}, "headway_tenant is 5; accepted: up to 128 printable characters"),
        ({"headway_ttft": 5}, "unknown headway_ttft in vllm_xargs; accepted: headway_deadline_ms, "),
    ],
)
def test_a_bad_hint_is_vllms_own_validation_error(extra_args: dict[str, Any], complaint: str) -> None:
    with pytest.raises(VLLMValidationError) as raised:
        SamplingParams(extra_args=extra_args)
    assert raised.value.parameter == "vllm_xargs"
    assert str(raised.value).startswith(complaint)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "extra_args",
    [
        None,
        {},
        {"headway_ttft_ms": 500, "headway_tbt_ms": 50.5, "headway_deadline_ms": "9000"},
        {"headway_length": 40, "headway_max_output_tokens": 100, "headway_tenant": "t"},
        {"of_another_plugin": [1, {"deep": None}]},
    ],
)
def test_good_hints_and_those_of_others_pass(extra_args: dict[str, Any] | None) -> None:
    assert SamplingParams(extra_args=extra_args).extra_args == extra_args


def test_vllms_own_check_goes_on() -> None:
    with pytest.raises(VLLMValidationError) as raised:
        SamplingParams(extra_args={"of_another_plugin": 2**64})
    assert raised.value.parameter == "extra_args"


def test_registering_again_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = SamplingParams._verify_extra_args
    settle = CpuPlatform.check_and_update_config.__func__
    for switch in ("", "0"):
        monkeypatch.setenv(CPU_ASYNC_SWITCH, switch)
        register()
    assert SamplingParams._verify_extra_args is check
    assert CpuPlatform.check_and_update_config.__func__ is settle


def test_a_plug_in_that_cannot_be_put_in_leaves_vllm_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin_module, "works", lambda feature: 1 / 0)
    register()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Headway leaves this vLLM process as it is: ZeroDivisionError: division by zero. Hints in vllm_xargs"
    )


def test_what_goes_with_our_scheduler_follows_a_configuration_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(SCHEDULES, raising=False)
    model = str(ensure_demo_random())
    engine_config(model, scheduler_cls=SCHEDULER)
    assert os.environ[SCHEDULES] == "1"  # for the processes that it starts
    assert works(ENDINGS)
    engine_config(model)
    assert SCHEDULES not in os.environ


def test_without_the_switch_a_cpu_schedules_one_step_at_a_time() -> None:
    config = engine_config(str(ensure_demo_random()), async_scheduling=True)
    assert not config.scheduler_config.async_scheduling
    assert config.max_concurrent_batches == 1


PROGRAM = """
import json, sys
from headway.engine import register
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import engine_config
from headway.engine.scheduler import scheduler_class
from headway.engine.vllm.seams import PATCHES, changed

register()
register()
config = engine_config(str(ensure_demo_random()))
print(json.dumps({
    "asynchronous": config.scheduler_config.async_scheduling,
    "steps in flight": config.max_concurrent_batches,
    "scheduler": scheduler_class(config).__name__,
    "changed": [name for patch in PATCHES for name in changed(patch.feature)],
}))
"""


@pytest.mark.engine
def test_the_switch_keeps_asynchronous_scheduling_on_a_cpu() -> None:
    environment = {**os.environ, CPU_ASYNC_SWITCH: "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "asynchronous": True,
        "steps in flight": 2,
        "scheduler": "AsyncPolicyScheduler",
        "changed": [],
    }
