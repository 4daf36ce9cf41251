"""Every private vLLM name that Headway replaces or uses: one table, by which names are both patched and checked.

A name that is gone, or whose source is not a tested version's, costs the feature that needs it. The scheduler itself is
the exception (`SCHEDULING`): it starts with a changed name if the self-check passes, and refuses to without one.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

import vllm

logger = logging.getLogger(__name__)

TESTED = frozenset({"0.32.0", "0.33.0"})
"""The versions that the tests ran on (`bench/right/versions.py`). Any other is accepted if the self-check passes."""

LEFT_OUT = "HEADWAY_LEFT_OUT"
"""Names, to all processes of one server, the features of which one of them has warned."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that Headway adds to vLLM, and what an operator has `without` it, as a sentence.

    `on_cpu`: vLLM's CPU backend alone needs it.
    """

    name: str
    without: str
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """One vLLM name, as `module:path`, what Headway `adds` there or does with it, and the feature that needs it.

    `digests` are those of its source in tested versions, and in others in which it means the same here, with a space
    between. Without any, the name only has to exist. `by` names the function that makes the replacement of the
    original, if one is made. A name that is `not_everywhere` is missing from a tested version, whose behaviour without
    it is known: its absence costs nothing.
    """

    target: str
    adds: str
    feature: Feature
    digests: str = ""
    by: str | None = None
    not_everywhere: bool = False


SCHEDULING = Feature("its scheduler", "Headway's scheduler does not start.")
NOTICING = Feature(
    "what it adds to the front end",
    "Lengths are predicted in the engine, a stream that a policy ended before its first token closes without a reason, "
    "and an answer that ended on a stop string counts as cancelled.",
)
HINTS = Feature(
    "the check of hints where requests arrive",
    "A request with a bad hint in vllm_xargs fails in the engine, with status 500 instead of 400.",
)
LENGTHS = Feature(
    "lengths predicted in the front end",
    "The engine predicts them beside its steps, so a request is queued before its length is known.",
)
ENDINGS = Feature(
    "the reason at the end of a stream without tokens",
    "A streaming client whose request was shed, expired or handed off before its first token sees its stream close "
    "without a finish reason; a gateway cannot tell these apart from failures.",
)
STOP_STRINGS = Feature(
    "answers that end on a stop string counted as finished",
    "They count as cancelled in records and metrics, and no length is learned from them.",
)
EXPLAIN = Feature(
    "questions about requests", "`headway explain` and `headway shadow` get no answer from this server."
)
METRICS = Feature("its own metrics", "The headway_* totals on /metrics stay empty.")
SWAPS = Feature(
    "KV swapped to host memory", "Preempted requests are recomputed, and --host-kv-gib has no effect."
)
CONNECTORS = Feature(
    "KV connectors of other packages",
    "A server with --kv-transfer-config or --kv-offloading-size does not start.",
)
CPU_WAITS = Feature(
    "waiting asleep on a CPU",
    "vLLM's processes spin on the core that the HTTP server needs, which may stall for seconds.",
    on_cpu=True,
)
CPU_CORES = Feature(
    "all cores on a CPU with host memory for KV",
    "With host memory the engine computes on one core less than without.",
    on_cpu=True,
)
CPU_TILES = Feature(
    "AMX tiles", "On a processor with AMX a short prompt in bfloat16 may end the process.", on_cpu=True
)
CPU_ASYNC = Feature(
    "asynchronous scheduling on a CPU",
    "HEADWAY_CPU_ASYNC has no effect: the CPU backend schedules synchronously.",
    on_cpu=True,
)

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REQUEST = "vllm.v1.request:Request"
_ENTRY = "headway.engine.lengths.entry"
_STOPS = "headway.engine.step.stop_strings"
_CORE = "vllm.v1.engine.core"
_CLIENT = "vllm.v1.engine.core_client"
_OUTPUTS = "vllm.v1.engine.output_processor"
_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1.base"
_SPIN = "vllm.distributed.device_communicators.shm_broadcast:SpinCondition"
_SHAPED = (
    "connector kv_holding_waiting max_num_active_reqs max_num_running_reqs max_num_scheduled_tokens requests "
    "requires_kv_delivery running waiting"
)
_READ = (
    "kv_cache_config kv_cache_manager lora_config max_model_len need_mamba_block_aligned_split needs_kv_cache_zeroing "
    "num_sampled_tokens_per_step num_spec_tokens prefill_capacity_bound scheduler_config scheduler_reserve_full_isl"
)
_CADENCE = "last_prefill_step local_prefill_interval num_executed_steps"
_OF_CONNECTORS = "_spec_decode_step_blocks deferred_frees num_lookahead_tokens"
_OF_A_REQUEST = (
    "arrival_time block_hashes client_index drop_stale_output has_encoder_inputs is_prefill_chunk lora_request "
    "max_tokens mm_features num_computed_tokens num_in_flight_tokens num_output_placeholders num_output_tokens "
    "num_preemptions num_prompt_tokens num_stale_output_tokens num_tokens num_tokens_with_spec resumable "
    "skip_reading_prefix_cache status structured_output_request take_events trace_headers"
)

PATCHES = (
    # ---- the scheduler -----------------------------------------------------------------------------
    Patch(
        f"{_SCHEDULER}.schedule",
        "a plan before, its outcome after",
        SCHEDULING,
        "da4f2cf2fc39c39e fa34c8a13c0a8936",
    ),
    Patch(
        f"{_SCHEDULER}.update_from_output", "follows tokens", SCHEDULING, "85b29db96051135c 8067d98a98b620cb"
    ),
    Patch(f"{_SCHEDULER}.get_grammar_bitmask", "follows the step", SCHEDULING, "a7b91198fb0c42d8"),
    Patch(f"{_SCHEDULER}.add_request", "a job for each request", SCHEDULING, "fa2b51cd04a90977"),
    Patch(f"{_SCHEDULER}.finish_requests", "follows aborts", SCHEDULING, "b7a4ef7b8aa588bf 3649baeb4794f17f"),
    Patch(f"{_SCHEDULER}._free_request", "ends the job", SCHEDULING, "1b386dca84e6bb73 a2e0937699dc54a6"),
    Patch(
        f"{_SCHEDULER}._preempt_request",
        "settles what becomes of the KV",
        SCHEDULING,
        "4113f5de8a84ec25 8d67cc4e85688724",
    ),
    Patch(f"{_SCHEDULER}._reserve_prefill_lookahead", "caps grants", SCHEDULING, "c214e49d7610a63a"),
    Patch(f"{_SCHEDULER}._enqueue_waiting_request", "finds our queues", SCHEDULING, "0afc41b2499cdb13"),
    Patch(
        f"{_SCHEDULER}._handle_blocked_waiting_request",
        "is foretold",
        SCHEDULING,
        "de0c8c7f0b7daa51 c243cbb7e73e5803",
    ),
    Patch(f"{_SCHEDULER}.reset_prefix_cache", "voids host copies", SCHEDULING, "8e03dcc540a25a8f"),
    Patch(f"{_SCHEDULER}._pause_state", "is read", SCHEDULING, "8ac62bf3730d8574"),
    Patch(f"{_SCHEDULER}._inflight_prefills", "is read", SCHEDULING, "8383b8005283a9de"),
    *(Patch(f"{_SCHEDULER}.{name}", "is read and set", SCHEDULING) for name in _SHAPED.split()),
    *(Patch(f"{_SCHEDULER}.{name}", "is read", SCHEDULING) for name in _READ.split()),
    *(Patch(f"{_REQUEST}.{name}", "is read", SCHEDULING) for name in _OF_A_REQUEST.split()),
    *(Patch(f"{_SCHEDULER}.{name}", "is read", SCHEDULING, not_everywhere=True) for name in _CADENCE.split()),
    Patch(
        "vllm.v1.core.sched.output:SchedulerOutput.skip_drafts", "is read", SCHEDULING, not_everywhere=True
    ),
    Patch("vllm.v1.core.sched.async_scheduler:AsyncScheduler", "is the base where steps overlap", SCHEDULING),
    Patch("vllm.v1.core.sched.interface:PauseState", "is read", SCHEDULING),
    Patch(
        "vllm.v1.core.sched.request_queue:RequestQueue",
        "shows what a plan admits",
        SCHEDULING,
        "953b423ab7cddf09",
    ),
    Patch(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks",
        "is asked",
        SCHEDULING,
        "77f434d88d573bfe ae0e67c0720ab760",
    ),
    Patch(
        "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots",
        "is foretold",
        SCHEDULING,
        "8c60d937fd9eb0c8",
    ),
    Patch(
        "vllm.v1.core.block_pool:BlockPool.get_cached_block",
        "is asked of the waiting",
        SCHEDULING,
        "900b7434e95c66f6",
    ),
    Patch("vllm.v1.core.block_pool:BlockPool.get_num_free_blocks", "is asked", SCHEDULING),
    Patch("vllm.v1.kv_cache_interface:FullAttentionSpec", "is recognised", SCHEDULING),
    Patch("vllm.v1.core.sched.output:SchedulerOutput.has_sync_kv_loads", "is read", SCHEDULING),
    Patch("vllm.v1.request:RequestStatus", "is read and set", SCHEDULING),
    Patch("vllm.v1.engine:EngineCoreOutput", "tells of requests that a policy ended", SCHEDULING),
    # ---- KV on the host ----------------------------------------------------------------------------
    Patch(
        f"{_CONNECTORS}:KVConnectorBase_V1", "is the base of ours", SWAPS, "f20b71a92ddd0230 e276d41a1a6fe44a"
    ),
    Patch(f"{_CONNECTORS}:SupportsHMA", "is the base of ours", SWAPS),
    Patch(
        "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin._get_kv_connector_output",
        "starts copies and reports them",
        SWAPS,
        "d31c3c5204c3e90f",
    ),
    Patch(f"{_SCHEDULER}._set_kv_fetch_stage", "is told of copies", SWAPS, "9c8e14a611115d2d"),
    Patch(f"{_SCHEDULER}._inflight_prefill_reserved_blocks", "is asked", SWAPS, "6b1f1791b7f5f1a7"),
    Patch(f"{_SCHEDULER}._spec_decode_step_blocks", "is read", SWAPS),
    Patch(f"{_SCHEDULER}._update_waiting_for_remote_kv", "resumes", SWAPS, "4f22b55198241f0d"),
    Patch(f"{_SCHEDULER}._update_from_kv_xfer_finished", "is passed by", SWAPS, "98d49f74d3997d2b"),
    Patch(f"{_SCHEDULER}._handle_invalid_blocks", "is passed by", SWAPS, "565f7144dcc77627"),
    Patch(f"{_SCHEDULER}.finished_recving_kv_req_ids", "is told of copies", SWAPS, "36e46128ff55d4dd"),
    Patch(f"{_SCHEDULER}.deferred_waiting", "forgets requests put back", SWAPS, "a3526cfddf147801"),
    Patch("vllm.v1.metrics.stats:KV_FETCH_IN_PROGRESS", "names a stage", SWAPS),
    Patch("vllm.v1.metrics.stats:KV_FETCH_COMPLETED_WAITING", "names a stage", SWAPS),
    Patch(
        "vllm.v1.core.block_pool:BlockPool.touch",
        "holds blocks that copies use",
        SWAPS,
        "08fcc52c2ec9e624 630a6f7d973444df",
    ),
    Patch(
        "vllm.v1.core.block_pool:BlockPool.free_blocks",
        "lets them go",
        SWAPS,
        "f12f94bc787cc15e 87ff3df95dae11de",
    ),
    Patch("vllm.v1.core.kv_cache_manager:KVCacheManager.evict_blocks", "drops void KV", SWAPS),
    Patch("vllm.v1.simple_kv_offload.cuda_mem_ops:pin_tensor", "pins host memory", SWAPS, "195be6fd12fd873a"),
    # ---- KV that another's connector moves ---------------------------------------------------------
    *(Patch(f"{_SCHEDULER}.{name}", "is read", CONNECTORS) for name in _OF_CONNECTORS.split()),
    Patch(f"{_SCHEDULER}._inflight_prefill_reserved_blocks", "is asked", CONNECTORS, "6b1f1791b7f5f1a7"),
    Patch(f"{_SCHEDULER}._request_blocks_can_be_freed", "is foretold", CONNECTORS, "d3dd6fc13e67f3f1"),
    Patch(f"{_SCHEDULER}._holds_kv_blocks", "is foretold", CONNECTORS, "4fb86dcf349be3cf"),
    Patch(f"{_SCHEDULER}._update_waiting_for_remote_kv", "is followed", CONNECTORS, "4f22b55198241f0d"),
    Patch(
        f"{_SCHEDULER}._update_requests_with_invalid_blocks", "is followed", CONNECTORS, "fabb42baf27e4c74"
    ),
    Patch(f"{_CONNECTORS}:KVConnectorBase_V1", "is listened to", CONNECTORS),
    Patch(f"{_CONNECTORS}:KVConnectorBase_V1.has_pending_block_frees", "is asked", CONNECTORS),
    # ---- the front end -----------------------------------------------------------------------------
    Patch(
        "vllm.engine.arg_utils:EngineArgs.create_engine_config",
        "notices Headway's scheduler",
        NOTICING,
        by="headway.engine.vllm.plugin:notices_scheduler",
    ),
    Patch(
        "vllm.sampling_params:SamplingParams._verify_extra_args",
        "refuses bad hints",
        HINTS,
        "97380ef36ddc285f",
        "headway.engine.vllm.plugin:checks_hints",
    ),
    Patch("vllm.exceptions:VLLMValidationError", "answers with status 400", HINTS),
    Patch(
        "vllm.v1.serial_utils:MsgpackDecoder.decode",
        "leaves hints to the scheduler",
        HINTS,
        by="headway.engine.vllm.plugin:leaves_hints",
    ),
    Patch(
        "vllm.v1.engine.async_llm:AsyncLLM.__init__",
        "opens the predictor",
        LENGTHS,
        "337e63555ec24df9",
        f"{_ENTRY}:opens_predictor",
    ),
    Patch(
        "vllm.v1.engine.async_llm:AsyncLLM.shutdown",
        "closes the predictor",
        LENGTHS,
        "bdbf42b739a6731d",
        f"{_ENTRY}:closes_predictor",
    ),
    Patch(
        "vllm.v1.engine.async_llm:AsyncLLM.add_request",
        "predicts a request's length",
        LENGTHS,
        "ec36c4501b3260fe",
        f"{_ENTRY}:predicts_lengths",
    ),
    Patch(
        f"{_OUTPUTS}:RequestState.from_new_request",
        "keeps what was predicted",
        LENGTHS,
        "eaf12c8b6422112b",
        f"{_ENTRY}:keeps_arrival",
    ),
    Patch(
        f"{_OUTPUTS}:OutputProcessor._update_stats_from_finished",
        "teaches the predictor",
        LENGTHS,
        "611dcabf0c11b4b9",
        f"{_ENTRY}:teaches_predictor",
    ),
    Patch(
        f"{_OUTPUTS}:RequestState._new_completion_output",
        "lets an empty end count as news",
        ENDINGS,
        "dec8c8112ea29602",
        "headway.engine.step.stream_endings:shows_endings",
    ),
    Patch(
        f"{_OUTPUTS}:OutputProcessor.process_outputs",
        "notes answers that ended on a stop string",
        STOP_STRINGS,
        "9e116796002e75f2 06811284749d457d",
        f"{_STOPS}:notes_stopped",
    ),
    Patch(
        f"{_CLIENT}:AsyncMPClient._send_input",
        "marks aborts",
        STOP_STRINGS,
        "026c342109de10c2",
        f"{_STOPS}:marks_sent",
    ),
    Patch(
        f"{_CLIENT}:SyncMPClient._send_input",
        "marks aborts",
        STOP_STRINGS,
        "d02045b282c67a50",
        f"{_STOPS}:marks_sent",
    ),
    Patch(
        f"{_CLIENT}:InprocClient.abort_requests",
        "marks aborts",
        STOP_STRINGS,
        "6ed7200bea0d57c8",
        f"{_STOPS}:marks_handed_over",
    ),
    Patch(f"{_CORE}:EngineCore.abort_requests", "passes marks on", STOP_STRINGS, "bd119a43373e4d4d"),
    Patch(
        f"{_CORE}:EngineCoreProc._handle_client_request",
        "passes marks on",
        STOP_STRINGS,
        "b2026637e79970b6 3106e8610d8b4d46",
    ),
    Patch(
        f"{_CORE}:EngineCore",
        "a method that asks the scheduler",
        EXPLAIN,
        by="headway.engine.vllm.questions:answers_questions",
    ),
    Patch(f"{_CORE}:EngineCoreProc._invoke_utility_method", "calls it", EXPLAIN, "705e4c4068f9d2be"),
    Patch(f"{_CLIENT}:AsyncMPClient.call_utility_all_async", "calls it", EXPLAIN, "477aad87bf49a96d"),
    Patch(f"{_SCHEDULER}.make_stats", "carries our totals", METRICS, "8963d2ab6518f994"),
    Patch(
        "vllm.v1.metrics.stats:SchedulerStats.num_kv_fetch_reqs_by_stage",
        "carries them",
        METRICS,
        "0f015d4035e5abfd",
    ),
    # ---- the CPU backend ---------------------------------------------------------------------------
    Patch(
        f"{_SPIN}.wait",
        "sleeps until word comes",
        CPU_WAITS,
        "3c5dd220ba84735e",
        "headway.engine.vllm.cpu_waits:waits_asleep",
    ),
    Patch(f"{_SPIN}.busy_loop_s", "is set for a moment", CPU_WAITS),
    Patch(f"{_SPIN}.last_read", "is read", CPU_WAITS),
    Patch(
        "vllm.utils.ompmultiprocessing:OMPProcessManager.__init__",
        "overlooks our connector",
        CPU_CORES,
        "b162d126220398dc fd6cc7d2221a3aa3",
        "headway.engine.vllm.cpu_cores:overlooks_connector",
    ),
    Patch("torch.cpu:_is_amx_tile_supported", "is asked", CPU_TILES),
    Patch("torch.cpu:_init_amx", "is called", CPU_TILES),
    Patch(
        "vllm.platforms.cpu:CpuPlatform.check_and_update_config",
        "turns it on again",
        CPU_ASYNC,
        "d2960ad5d1836767 c86f1806cdc327a5",
        "headway.engine.vllm.plugin:keeps_async",
    ),
)
"""In rows with two digests the second is vLLM 0.33.0's. What changed there and matters here is tested in both."""

_settled: dict[Feature, bool] = {}


def works(feature: Feature) -> bool:
    """Whether a feature is on in this process: the first call puts its patches in, or warns. Never raises."""
    if feature not in _settled:
        _settled[feature] = _put_in(feature)
    return _settled[feature]


def missing(feature: Feature) -> list[str]:
    """The names that a feature needs and this vLLM does not have."""
    needed = (patch for patch in _of(feature) if not patch.not_everywhere)
    return [patch.target for patch in needed if _find(patch.target) is None]


def changed(feature: Feature) -> list[str]:
    """The names of a feature that are here, with a source that no tested version has."""
    return [
        patch.target
        for patch in _of(feature)
        if patch.digests
        and _find(patch.target) is not None
        and source_digest(patch.target) not in patch.digests.split()
    ]


def is_tested() -> bool:
    """Whether the installed vLLM has the number of a tested one, whatever it was built for."""
    return vllm.__version__.partition("+")[0] in TESTED


def source_digest(target: str) -> str:
    """The digest of a name's source: a function, a class, or the line that first sets an attribute."""
    found = _find(target)
    try:
        source = inspect.getsource(inspect.unwrap(found)) if callable(found) else _line(target)
    except (OSError, TypeError):
        source = ""  # compiled, or made at run time
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _of(feature: Feature) -> list[Patch]:
    return [patch for patch in PATCHES if patch.feature is feature]


def _put_in(feature: Feature) -> bool:
    try:
        if feature.on_cpu and not _is_cpu():
            return False
        differing = missing(feature) or changed(feature)
        if not differing:
            # All of them are made before the first is put in: a feature is there whole or not at all.
            for owner, name, replacement in [_replacement(patch) for patch in _of(feature) if patch.by]:
                setattr(owner, name, replacement)
            return True
        logger.debug("%s: not as tested: %s", feature.name, ", ".join(differing))
    except Exception:
        logger.debug("%s cannot be put in", feature.name, exc_info=True)
    _tell(feature)
    return False


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _replacement(patch: Patch) -> tuple[Any, str, Any]:
    """What a patch puts where: a wrapper of the original, a class method if that was one."""
    assert patch.by is not None
    owner, name = _owner(patch.target)
    original = inspect.getattr_static(owner, name)
    make: Callable[[Any], Any] = _find(patch.by)
    if isinstance(original, classmethod):
        function = original.__func__
        return owner, name, classmethod(wraps(function)(make(function)))
    made = make(original)
    return owner, name, made if made is original else wraps(original)(made)


def _tell(feature: Feature) -> None:
    """Warn that a feature is left out, unless a process of this server has."""
    told = os.environ.get(LEFT_OUT, "")
    if feature.name in told.split(";"):
        return
    os.environ[LEFT_OUT] = f"{told};{feature.name}"
    logger.warning(
        "Headway leaves out %s: vLLM %s lacks or changed what that needs (tested: %s). %s",
        *(feature.name, vllm.__version__, ", ".join(sorted(TESTED)), feature.without),
    )


def _owner(target: str) -> tuple[Any, str]:
    """The module or class that holds what a target names, and the name there."""
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def _find(target: str) -> Any:
    """What a target names, None if it is not there; the name itself of an attribute that `__init__` sets."""
    try:
        owner, name = _owner(target)
    except (ImportError, AttributeError):
        return None
    found = getattr(owner, name, None)
    if getattr(found, "__isabstractmethod__", False):
        return None
    if found is None and not isinstance(owner, ModuleType):
        code = getattr(inspect.unwrap(owner.__init__), "__code__", None)
        return name if code is not None and name in code.co_names else None
    return found


def _line(target: str) -> str:
    """The line of a module that first sets the attribute a target names."""
    owner, name = _owner(target)
    source = inspect.getsource(importlib.import_module(owner.__module__))
    line = re.search(rf"^ +(?:self\.)?{name}(?::| =).*$", source, re.M)
    return line[0].strip() if line else ""
