"""Every private vLLM name the plug-in touches, and the check that they are what they were."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from functools import cache
from typing import Any

import vllm
from packaging.version import InvalidVersion, Version

from headway.errors import SeamError

TESTED = frozenset({"0.32.0"})
MINIMUM = Version("0.32.0")

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_CONNECTORS = "vllm.distributed.kv_transfer"
SEAMS = {
    f"{_SCHEDULER}.schedule": "da4f2cf2fc39c39e",
    f"{_SCHEDULER}.update_from_output": "85b29db96051135c",
    f"{_SCHEDULER}.get_grammar_bitmask": "a7b91198fb0c42d8",
    f"{_SCHEDULER}.add_request": "fa2b51cd04a90977",
    f"{_SCHEDULER}.finish_requests": "b7a4ef7b8aa588bf",
    f"{_SCHEDULER}._free_request": "1b386dca84e6bb73",
    f"{_SCHEDULER}._preempt_request": "4113f5de8a84ec25",
    f"{_SCHEDULER}._reserve_prefill_lookahead": "c214e49d7610a63a",
    f"{_SCHEDULER}._enqueue_waiting_request": "0afc41b2499cdb13",
    f"{_SCHEDULER}._handle_blocked_waiting_request": "de0c8c7f0b7daa51",
    f"{_SCHEDULER}.make_stats": "8963d2ab6518f994",
    f"{_SCHEDULER}.reset_prefix_cache": "8e03dcc540a25a8f",
    f"{_SCHEDULER}._inflight_prefill_reserved_blocks": "6b1f1791b7f5f1a7",
    f"{_SCHEDULER}._set_kv_fetch_stage": "9c8e14a611115d2d",
    f"{_SCHEDULER}._update_waiting_for_remote_kv": "4f22b55198241f0d",
    f"{_SCHEDULER}._update_from_kv_xfer_finished": "98d49f74d3997d2b",
    f"{_SCHEDULER}._handle_invalid_blocks": "565f7144dcc77627",
    f"{_CONNECTORS}.kv_connector.v1.base:KVConnectorBase_V1": "f20b71a92ddd0230",
    "vllm.v1.worker.kv_connector_model_runner_mixin:"
    "KVConnectorModelRunnerMixin._get_kv_connector_output": "d31c3c5204c3e90f",
    "vllm.v1.simple_kv_offload.cuda_mem_ops:pin_tensor": "195be6fd12fd873a",
    "vllm.v1.core.block_pool:BlockPool.touch": "08fcc52c2ec9e624",
    "vllm.v1.core.block_pool:BlockPool.free_blocks": "f12f94bc787cc15e",
    "vllm.v1.core.block_pool:BlockPool.get_cached_block": "900b7434e95c66f6",
    "vllm.v1.core.sched.request_queue:RequestQueue": "953b423ab7cddf09",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks": "77f434d88d573bfe",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots": "8c60d937fd9eb0c8",
    "vllm.sampling_params:SamplingParams._verify_extra_args": "97380ef36ddc285f",
    "vllm.v1.engine.async_llm:AsyncLLM.__init__": "337e63555ec24df9",
    "vllm.v1.engine.async_llm:AsyncLLM.add_request": "ec36c4501b3260fe",
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": "bdbf42b739a6731d",
    "vllm.v1.engine.output_processor:RequestState.from_new_request": "eaf12c8b6422112b",
    "vllm.v1.engine.output_processor:OutputProcessor._update_stats_from_finished": "611dcabf0c11b4b9",
    "vllm.v1.engine.output_processor:RequestState._new_completion_output": "dec8c8112ea29602",
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs": "9e116796002e75f2",
    "vllm.v1.engine.core:EngineCore.abort_requests": "bd119a43373e4d4d",
    "vllm.v1.engine.core_client:AsyncMPClient._send_input": "026c342109de10c2",
    "vllm.v1.engine.core_client:SyncMPClient._send_input": "d02045b282c67a50",
    "vllm.v1.engine.core_client:InprocClient.abort_requests": "6ed7200bea0d57c8",
    "vllm.v1.engine.core:EngineCoreProc._handle_client_request": "b2026637e79970b6",
    "vllm.v1.engine.core:EngineCoreProc._invoke_utility_method": "705e4c4068f9d2be",
    "vllm.v1.engine.core_client:AsyncMPClient.call_utility_all_async": "477aad87bf49a96d",
    "vllm.utils.ompmultiprocessing:OMPProcessManager.__init__": "b162d126220398dc",
    "vllm.platforms.cpu:CpuPlatform.check_and_update_config": "d2960ad5d1836767",
}
"""Name -> digest of its source in the tested version."""


@cache
def source_digests() -> dict[str, str]:
    """The digest of every seam as it stands in the installed vLLM; SeamError if one is gone."""
    digests = {}
    for name in SEAMS:
        target = _find(name)
        if target is None:
            raise SeamError(f"vLLM {vllm.__version__} has no {name}; tested: {', '.join(sorted(TESTED))}")
        source = inspect.getsource(inspect.unwrap(target))
        digests[name] = hashlib.sha256(source.encode()).hexdigest()[:16]
    return digests


def _find(name: str) -> Any:
    """What a `module:path` names, None if it is not there."""
    module, _, path = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        target = getattr(target, part, None)
    return target


def changed_seams() -> list[str]:
    """Seams whose source differs from the tested version's."""
    digests = source_digests()
    return [name for name, tested in SEAMS.items() if digests[name] != tested]


def is_tested() -> bool:
    """Whether the installed vLLM has the number of a tested one, whatever it was built for."""
    return vllm.__version__.partition("+")[0] in TESTED


def check_version() -> None:
    """Raise SeamError for a vLLM older than the minimum; a build without a version number passes."""
    try:
        version = Version(vllm.__version__.partition("+")[0])
    except InvalidVersion:
        return
    if version < MINIMUM:
        raise SeamError(f"vLLM {vllm.__version__} is too old; accepted: {MINIMUM} or newer")
