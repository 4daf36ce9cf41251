"""Every private vLLM name that Headway replaces or uses, in one table that drives both patching and checking.

A name that is missing, or whose source differs from the tested versions', disables the feature that needs it. The
scheduler itself is the exception (`SCHEDULING`): with a changed name it starts if the self-check passes, with a missing
name it refuses to start.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

import vllm

logger = logging.getLogger(__name__)

TESTED = frozenset({"0.32.0", "0.33.0"})
"""The versions that the tests ran on (`bench/right/versions.py`). Any other is accepted if the self-check passes."""

LEFT_OUT = "HEADWAY_LEFT_OUT"
"""Environment variable for all processes of one server: the features of which one process has warned."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that Headway adds to vLLM, and, as a sentence, what an operator has `without` it.

    `on_cpu`: only vLLM's CPU backend needs it.
    """

    name: str
    without: str
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Patch:
    """One vLLM name, as `module:path`, what Headway `adds` there, and the feature that needs it.

    `digests`, separated by spaces, are those of its source in tested versions, and in others in which it means the same
    here. Without digests the name only has to exist. `by` names the function that makes the replacement, if there is
    one. A name that is `not_everywhere` is missing from a tested version whose behaviour without it is known; its
    absence costs nothing.
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

_CLASSES = {
    "vllm.v1.core.sched.scheduler": "Scheduler",
    "vllm.v1.request": "Request RequestStatus",
    "vllm.v1.core.sched.output": "SchedulerOutput",
    "vllm.v1.core.sched.async_scheduler": "AsyncScheduler",
    "vllm.v1.core.sched.interface": "PauseState",
    "vllm.v1.core.sched.request_queue": "RequestQueue",
    "vllm.v1.core.kv_cache_manager": "KVCacheManager",
    "vllm.v1.core.block_pool": "BlockPool",
    "vllm.v1.kv_cache_interface": "FullAttentionSpec",
    "vllm.v1.engine": "EngineCoreOutput",
    "vllm.distributed.kv_transfer.kv_connector.v1.base": "KVConnectorBase_V1 SupportsHMA",
    "vllm.v1.worker.kv_connector_model_runner_mixin": "KVConnectorModelRunnerMixin",
    "vllm.v1.metrics.stats": "KV_FETCH_IN_PROGRESS KV_FETCH_COMPLETED_WAITING SchedulerStats",
    "vllm.v1.simple_kv_offload.cuda_mem_ops": "pin_tensor",
    "vllm.engine.arg_utils": "EngineArgs",
    "vllm.sampling_params": "SamplingParams",
    "vllm.exceptions": "VLLMValidationError",
    "vllm.v1.serial_utils": "MsgpackDecoder",
    "vllm.v1.engine.async_llm": "AsyncLLM",
    "vllm.v1.engine.output_processor": "RequestState OutputProcessor",
    "vllm.v1.engine.core_client": "AsyncMPClient SyncMPClient InprocClient",
    "vllm.v1.engine.core": "EngineCore EngineCoreProc",
    "vllm.distributed.device_communicators.shm_broadcast": "SpinCondition",
    "vllm.utils.ompmultiprocessing": "OMPProcessManager",
    "torch.cpu": "_is_amx_tile_supported _init_amx",
    "vllm.platforms.cpu": "CpuPlatform",
}
"""Modules of vLLM, and the names in them with which the table's rows begin."""
_MODULES = {name: module for module, names in _CLASSES.items() for name in names.split()}
_MAKERS = {
    "endings": "headway.engine.step.endings",
    "front_end": "headway.engine.lengths.front_end",
    "plugin": "headway.engine.vllm.plugin",
    "questions": "headway.engine.vllm.questions",
}
_NAMES = {
    (SCHEDULING, "Scheduler", "is read and set"): """
        connector kv_holding_waiting max_num_active_reqs max_num_running_reqs max_num_scheduled_tokens requests
        requires_kv_delivery running waiting
    """,
    (SCHEDULING, "Scheduler", "is read"): """
        kv_cache_config kv_cache_manager lora_config max_model_len need_mamba_block_aligned_split
        needs_kv_cache_zeroing num_sampled_tokens_per_step num_spec_tokens prefill_capacity_bound
        scheduler_config scheduler_reserve_full_isl last_prefill_step? local_prefill_interval?
        num_executed_steps?
    """,
    (SCHEDULING, "Request", "is read"): """
        arrival_time block_hashes client_index drop_stale_output has_encoder_inputs is_prefill_chunk
        lora_request max_tokens mm_features num_computed_tokens num_in_flight_tokens num_output_placeholders
        num_output_tokens num_preemptions num_prompt_tokens num_stale_output_tokens num_tokens
        num_tokens_with_spec resumable skip_reading_prefix_cache status structured_output_request take_events
        trace_headers
    """,
    (CONNECTORS, "Scheduler", "is read"): """
        _spec_decode_step_blocks deferred_frees num_lookahead_tokens
    """,
}
"""Attributes of two classes that only have to exist: feature, class, use; then the names."""

_TABLE = {
    SCHEDULING: """
    Scheduler.schedule | a plan before, its outcome after | da4f2cf2fc39c39e fa34c8a13c0a8936
    Scheduler.update_from_output | follows tokens | 85b29db96051135c 8067d98a98b620cb
    Scheduler.get_grammar_bitmask | follows the step | a7b91198fb0c42d8
    Scheduler.add_request | a job for each request | fa2b51cd04a90977
    Scheduler.finish_requests | follows aborts | b7a4ef7b8aa588bf 3649baeb4794f17f
    Scheduler._free_request | ends the job | 1b386dca84e6bb73 a2e0937699dc54a6
    Scheduler._preempt_request | settles what becomes of the KV | 4113f5de8a84ec25 8d67cc4e85688724
    Scheduler._reserve_prefill_lookahead | caps grants | c214e49d7610a63a
    Scheduler._enqueue_waiting_request | finds our queues | 0afc41b2499cdb13
    Scheduler._handle_blocked_waiting_request | is foretold | de0c8c7f0b7daa51 c243cbb7e73e5803
    Scheduler.reset_prefix_cache | voids host copies | 8e03dcc540a25a8f
    Scheduler._pause_state | is read | 8ac62bf3730d8574
    Scheduler._inflight_prefills | is read | 8383b8005283a9de
    SchedulerOutput.skip_drafts? | is read
    AsyncScheduler | is the base where steps overlap
    PauseState | is read
    RequestQueue | shows what a plan admits | 953b423ab7cddf09
    KVCacheManager.get_computed_blocks | is asked | 77f434d88d573bfe ae0e67c0720ab760
    KVCacheManager.allocate_slots | is foretold | 8c60d937fd9eb0c8
    BlockPool.get_cached_block | is asked of the waiting | 900b7434e95c66f6
    BlockPool.get_num_free_blocks | is asked
    FullAttentionSpec | is recognised
    SchedulerOutput.has_sync_kv_loads | is read
    RequestStatus | is read and set
    EngineCoreOutput | tells of requests that a policy ended
    """,
    SWAPS: """
    KVConnectorBase_V1 | is the base of ours | f20b71a92ddd0230 e276d41a1a6fe44a
    SupportsHMA | is the base of ours
    KVConnectorModelRunnerMixin._get_kv_connector_output | starts copies, reports them | d31c3c5204c3e90f
    Scheduler._set_kv_fetch_stage | is told of copies | 9c8e14a611115d2d
    Scheduler._inflight_prefill_reserved_blocks | is asked | 6b1f1791b7f5f1a7
    Scheduler._spec_decode_step_blocks | is read
    Scheduler._update_waiting_for_remote_kv | resumes | 4f22b55198241f0d
    Scheduler._update_from_kv_xfer_finished | is passed by | 98d49f74d3997d2b
    Scheduler._handle_invalid_blocks | is passed by | 565f7144dcc77627
    Scheduler.finished_recving_kv_req_ids | is told of copies | 36e46128ff55d4dd
    Scheduler.deferred_waiting | forgets requests put back | a3526cfddf147801
    KV_FETCH_IN_PROGRESS | names a stage
    KV_FETCH_COMPLETED_WAITING | names a stage
    BlockPool.touch | holds blocks that copies use | 08fcc52c2ec9e624 630a6f7d973444df
    BlockPool.free_blocks | lets them go | f12f94bc787cc15e 87ff3df95dae11de
    KVCacheManager.evict_blocks | drops void KV
    pin_tensor | pins host memory | 195be6fd12fd873a
    """,
    CONNECTORS: """
    Scheduler._inflight_prefill_reserved_blocks | is asked | 6b1f1791b7f5f1a7
    Scheduler._request_blocks_can_be_freed | is foretold | d3dd6fc13e67f3f1
    Scheduler._holds_kv_blocks | is foretold | 4fb86dcf349be3cf
    Scheduler._update_waiting_for_remote_kv | is followed | 4f22b55198241f0d
    Scheduler._update_requests_with_invalid_blocks | is followed | fabb42baf27e4c74
    KVConnectorBase_V1 | is listened to
    KVConnectorBase_V1.has_pending_block_frees | is asked
    """,
    NOTICING: """
    EngineArgs.create_engine_config | notices Headway's scheduler | | plugin:notices_scheduler
    """,
    HINTS: """
    SamplingParams._verify_extra_args | refuses bad hints | 97380ef36ddc285f | plugin:checks_hints
    VLLMValidationError | answers with status 400
    MsgpackDecoder.decode | leaves hints to the scheduler | | plugin:leaves_hints
    """,
    LENGTHS: """
    AsyncLLM.__init__ | opens the predictor | 337e63555ec24df9 | front_end:opens_predictor
    AsyncLLM.shutdown | closes the predictor | bdbf42b739a6731d | front_end:closes_predictor
    AsyncLLM.add_request | predicts a request's length | ec36c4501b3260fe | front_end:predicts_lengths
    RequestState.from_new_request | keeps what was predicted | eaf12c8b6422112b | front_end:keeps_arrival
    OutputProcessor._update_stats_from_finished | teaches the predictor | 611dcabf0c11b4b9 | front_end:teaches_predictor
    """,
    ENDINGS: """
    RequestState._new_completion_output | lets an empty end count as news | dec8c8112ea29602 | endings:shows_endings
    """,
    STOP_STRINGS: """
    OutputProcessor.process_outputs | hears of stop strings | 9e116796002e75f2 06811284749d457d | endings:notes_stopped
    AsyncMPClient._send_input | marks aborts | 026c342109de10c2 | endings:marks_sent
    SyncMPClient._send_input | marks aborts | d02045b282c67a50 | endings:marks_sent
    InprocClient.abort_requests | marks aborts | 6ed7200bea0d57c8 | endings:marks_handed_over
    EngineCore.abort_requests | passes marks on | bd119a43373e4d4d
    EngineCoreProc._handle_client_request | passes marks on | b2026637e79970b6 3106e8610d8b4d46
    """,
    EXPLAIN: """
    EngineCore | a method that asks the scheduler | | questions:answers_questions
    EngineCoreProc._invoke_utility_method | calls it | 705e4c4068f9d2be
    AsyncMPClient.call_utility_all_async | calls it | 477aad87bf49a96d
    """,
    METRICS: """
    Scheduler.make_stats | carries our totals | 8963d2ab6518f994
    SchedulerStats.num_kv_fetch_reqs_by_stage | carries them | 0f015d4035e5abfd
    """,
    CPU_WAITS: """
    SpinCondition.wait | sleeps until word comes | 3c5dd220ba84735e | plugin:waits_asleep
    SpinCondition.busy_loop_s | is set for a moment
    SpinCondition.last_read | is read
    """,
    CPU_CORES: """
    OMPProcessManager.__init__ | overlooks ours | b162d126220398dc fd6cc7d2221a3aa3 | plugin:overlooks_connector
    """,
    CPU_TILES: """
    _is_amx_tile_supported | is asked
    _init_amx | is called
    """,
    CPU_ASYNC: """
    CpuPlatform.check_and_update_config | turns it on again | d2960ad5d1836767 c86f1806cdc327a5 | plugin:keeps_async
    """,
}
"""Rows of `PATCHES` by feature: name | what Headway adds | digests | what makes the replacement.

In rows with two digests the second is vLLM 0.33.0's. Relevant changes there are tested in both versions. A `?` marks a
name that is not everywhere.
"""


def _target(path: str) -> str:
    return f"{_MODULES[path.partition('.')[0]]}:{path}"


def _patches() -> Iterator[Patch]:
    for feature, table in _TABLE.items():
        for row in table.strip().splitlines():
            name, adds, digests, by = (*map(str.strip, row.split("|")), "", "")[:4]
            module, _, function = by.partition(":")
            made_by = f"{_MAKERS[module]}:{function}" if by else None
            yield Patch(_target(name.rstrip("?")), adds, feature, digests, made_by, name.endswith("?"))
    for (feature, owner, adds), names in _NAMES.items():
        for name in names.split():
            yield Patch(
                _target(f"{owner}.{name.rstrip('?')}"), adds, feature, not_everywhere=name.endswith("?")
            )


PATCHES = tuple(_patches())

_settled: dict[Feature, bool] = {}


def works(feature: Feature) -> bool:
    """Whether a feature works in this process. The first call applies its patches, or warns. Never raises."""
    if feature not in _settled:
        _settled[feature] = _put_in(feature)
    return _settled[feature]


def missing(feature: Feature) -> list[str]:
    """The names of a feature that this vLLM lacks."""
    needed = (patch for patch in _of(feature) if not patch.not_everywhere)
    return [patch.target for patch in needed if _find(patch.target) is None]


def changed(feature: Feature) -> list[str]:
    """The names of a feature that exist with a source that no tested version has."""
    return [
        patch.target
        for patch in _of(feature)
        if patch.digests
        and _find(patch.target) is not None
        and source_digest(patch.target) not in patch.digests.split()
    ]


def is_tested() -> bool:
    """Whether the installed vLLM has a tested version number, whatever it was built for."""
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
            # All replacements are made before the first is applied: a feature is applied whole or not at all.
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
    """The target and content of a patch: a wrapper of the original, or a class method if the original was one."""
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
    """Warn that a feature is left out, unless a process of this server has already warned."""
    told = os.environ.get(LEFT_OUT, "")
    if feature.name in told.split(";"):
        return
    os.environ[LEFT_OUT] = f"{told};{feature.name}"
    logger.warning(
        "Headway leaves out %s: vLLM %s lacks or changed what that needs (tested: %s). %s",
        *(feature.name, vllm.__version__, ", ".join(sorted(TESTED)), feature.without),
    )


def _owner(target: str) -> tuple[Any, str]:
    """The module or class that holds a target, and the name there."""
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


def _find(target: str) -> Any:
    """What a target names, None if it does not exist; for an attribute that `__init__` sets, its name."""
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
    """The line of a module that first sets the attribute of a target."""
    owner, name = _owner(target)
    source = inspect.getsource(importlib.import_module(owner.__module__))
    line = re.search(rf"^ +(?:self\.)?{name}(?::| =).*$", source, re.M)
    return line[0].strip() if line else ""
