"""What Headway changes in every vLLM process, each change small and reversible by uninstalling."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from headway.core.hints import read_hints
from headway.engine.cpu_cores import compute_on_as_many_cores_as_without_connector
from headway.engine.cpu_tiles import ask_for_tiles
from headway.engine.cpu_waits import wait_asleep_on_cpu
from headway.engine.lengths.entry import predict_at_entry
from headway.engine.questions import answer_questions
from headway.engine.stop_strings import tell_of_stop_strings
from headway.engine.stream_endings import show_endings
from headway.errors import ConfigError

CPU_ASYNC_SWITCH = "HEADWAY_CPU_ASYNC"
"""Set to 1 to run asynchronous scheduling on the CPU backend, where vLLM always turns it off; for tests."""


def install() -> None:
    """Check request hints where requests enter (a 400 for a bad one), predict lengths there, let streaming clients
    hear how a request ended, and the engine of stop strings, let the scheduler be asked about requests, compute on as
    many cores with host memory as without and with the tiles there are, wait without spinning on a CPU, and honour the
    CPU async switch.
    """
    ask_for_tiles()
    compute_on_as_many_cores_as_without_connector()
    wait_asleep_on_cpu()
    _check_hints_at_entry()
    predict_at_entry()
    show_endings()
    tell_of_stop_strings()
    answer_questions()
    if os.environ.get(CPU_ASYNC_SWITCH) == "1":
        _keep_async_on_cpu()


def _check_hints_at_entry() -> None:
    """Extend vLLM's own check of `vllm_xargs`, which runs before a request is queued."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    check = SamplingParams._verify_extra_args
    if getattr(check, "checks_headway_hints", False):
        return

    @wraps(check)
    def verify_extra_args(self: Any) -> None:
        check(self)
        try:
            read_hints(self.extra_args)
        except ConfigError as error:
            raise VLLMValidationError(str(error), parameter="vllm_xargs") from None

    verify_extra_args.checks_headway_hints = True  # type: ignore[attr-defined]
    SamplingParams._verify_extra_args = verify_extra_args


def _keep_async_on_cpu() -> None:
    """Turn asynchronous scheduling on after the CPU platform has turned it off."""
    from vllm.platforms.cpu import CpuPlatform

    settle = CpuPlatform.check_and_update_config.__func__
    if getattr(settle, "keeps_async", False):
        return

    @wraps(settle)
    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        settle(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    check_and_update_config.keeps_async = True  # type: ignore[attr-defined]
    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
