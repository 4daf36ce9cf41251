"""The vLLM plug-in: the only package that imports vLLM."""

from __future__ import annotations

from typing import Any


def HeadwayScheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """The scheduler for `--scheduler-cls headway.engine.HeadwayScheduler`.

    Builds Headway over the base stock vLLM would pick for this configuration, read when the configuration
    is final (a wrong base loses asynchronous scheduling, or hangs pipeline parallelism). Raises SeamError
    or ConfigError if this vLLM, or this combination of options, cannot work.
    """
    from headway.engine.launching.last_words import reason_left
    from headway.engine.start import build_scheduler

    with reason_left():
        return build_scheduler(vllm_config, *args, **kwargs)


def register() -> None:
    """vLLM's general plug-in hook, run in every process: teach vLLM to check Headway's request hints."""
    from headway.engine.plugin import install

    install()
