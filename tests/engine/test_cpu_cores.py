from __future__ import annotations

import inspect

import pytest
from vllm.config import KVTransferConfig, VllmConfig
from vllm.utils.ompmultiprocessing import OMPProcessManager

from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import engine_config
from headway.engine.vllm.plugin import overlooks_connector

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    # Over vLLM's own, whether or not another test has installed the plug-in.
    own = inspect.unwrap(OMPProcessManager.__init__)
    monkeypatch.setattr(OMPProcessManager, "__init__", overlooks_connector(own))
    monkeypatch.delenv("VLLM_CPU_NUM_OF_RESERVED_CPU", raising=False)


def reserved(config: VllmConfig) -> int:
    manager = OMPProcessManager(config)
    return int(manager.reserve_cpu_num)


def test_host_memory_costs_no_core() -> None:
    model = str(ensure_demo_random())
    config = engine_config(model, host_kv=HostKv(blocks=8))
    transfer = config.kv_transfer_config
    assert reserved(config) == reserved(engine_config(model))
    assert config.kv_transfer_config is transfer


def test_for_the_connectors_of_others_vllm_reserves_as_ever() -> None:
    model = str(ensure_demo_random())
    config = engine_config(model)
    config.kv_transfer_config = KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_both")
    assert reserved(config) == reserved(engine_config(model)) + 1
