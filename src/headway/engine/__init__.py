"""The vLLM plug-in: the only package that imports vLLM."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def HeadwayScheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the scheduler for `--scheduler-cls headway.engine.HeadwayScheduler`.

    Builds Headway over the base class that stock vLLM would pick for this configuration. The choice is made only now,
    when the configuration is final: a wrong base loses asynchronous scheduling, or hangs pipeline parallelism. Raises
    SeamError or ConfigError if this vLLM, or this combination of options, cannot work.
    """
    from headway.engine.reason import reason_left
    from headway.engine.start import build_scheduler

    with reason_left():
        return build_scheduler(vllm_config, *args, **kwargs)


def register() -> None:
    """vLLM's general plug-in hook. vLLM calls it unguarded in every process, so it never raises."""
    try:
        from headway.engine.vllm.plugin import install

        install()
    except Exception as error:
        logger.warning(
            "Headway leaves this vLLM process as it is: %s: %s. Hints in vllm_xargs are not checked here, and "
            "no other feature of Headway's is added",
            type(error).__name__,
            error,
        )
