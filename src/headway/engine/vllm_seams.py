"""Every private vLLM name the plug-in touches, and the check that they are what they were."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
from functools import cache
from typing import Any

import vllm
from packaging.version import Version

from headway.errors import SeamError

logger = logging.getLogger(__name__)

TESTED = frozenset({"0.32.0"})
MINIMUM = Version("0.32.0")

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
SEAMS = {
    f"{_SCHEDULER}.schedule": "",
    f"{_SCHEDULER}.update_from_output": "",
    f"{_SCHEDULER}.add_request": "",
    f"{_SCHEDULER}.finish_requests": "",
    f"{_SCHEDULER}._free_request": "",
    f"{_SCHEDULER}._preempt_request": "",
    f"{_SCHEDULER}._reserve_prefill_lookahead": "",
    f"{_SCHEDULER}._enqueue_waiting_request": "",
    f"{_SCHEDULER}._handle_blocked_waiting_request": "",
    f"{_SCHEDULER}.make_stats": "",
    "vllm.v1.core.sched.request_queue:RequestQueue": "",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_computed_blocks": "",
    "vllm.v1.core.kv_cache_manager:KVCacheManager.allocate_slots": "",
    "vllm.sampling_params:SamplingParams._verify_extra_args": "",
    "vllm.platforms.cpu:CpuPlatform.check_and_update_config": "",
}
"""Name -> digest of its source in the tested version."""


@cache
def source_digests() -> dict[str, str]:
    """The digest of every seam as it stands in the installed vLLM; SeamError if one is gone."""
    digests = {}
    for name in SEAMS:
        module, _, path = name.partition(":")
        target: Any = importlib.import_module(module)
        for part in path.split("."):
            target = getattr(target, part, None)
            if target is None:
                raise SeamError(f"vLLM {vllm.__version__} has no {name}; tested: {', '.join(sorted(TESTED))}")
        source = inspect.getsource(inspect.unwrap(target))
        digests[name] = hashlib.sha256(source.encode()).hexdigest()[:16]
    return digests


def changed_seams() -> list[str]:
    """Seams whose source differs from the tested version's."""
    digests = source_digests()
    return [name for name, tested in SEAMS.items() if digests[name] != tested]


def check_seams() -> list[str]:
    """Refuse a vLLM older than the minimum; return what changed in a newer or patched one.

    Raises SeamError for an older version, or if a seam is gone.
    """
    version = Version(vllm.__version__.partition("+")[0])
    if version < MINIMUM:
        raise SeamError(f"vLLM {vllm.__version__} is too old; accepted: {MINIMUM} or newer")
    return changed_seams()
