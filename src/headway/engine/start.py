"""Start-up of the plug-in: which base, which combinations, which vLLM."""

from __future__ import annotations

import logging
from typing import Any

from headway.engine.settings import EngineSettings
from headway.errors import ConfigError

logger = logging.getLogger(__name__)


def build_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Headway over the base that stock would have chosen; ConfigError or SeamError if it cannot work."""
    from headway.engine.scheduler import AsyncPolicyScheduler, PolicyScheduler
    from headway.engine.vllm_seams import check_seams

    refuse_unsupported(vllm_config)
    settings = EngineSettings.from_additional_config(vllm_config.additional_config)
    check_seams()
    asynchronous = vllm_config.scheduler_config.async_scheduling
    scheduler = AsyncPolicyScheduler if asynchronous else PolicyScheduler
    preset = settings.preset()
    logger.info("Headway policy %s (%s), %s", preset.name, preset.summary, scheduler.__name__)
    return scheduler(vllm_config, *args, **kwargs)


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise ConfigError, naming each option that cannot be combined with Headway and what can."""
    scheduler_config = vllm_config.scheduler_config
    model_config = vllm_config.model_config
    refusals = {
        f"--scheduling-policy {scheduler_config.policy}: use fcfs, and choose the order with Headway "
        "(order 'priority' serves by request priority)": scheduler_config.policy != "fcfs",
        "--kv-transfer-config: a KV connector is not supported": vllm_config.kv_transfer_config is not None,
        "--no-enable-chunked-prefill: leave chunked prefill on; batching 'prefill-first' computes prompts "
        "whole": not scheduler_config.enable_chunked_prefill,
        "--runner pooling: only generation is supported": model_config.runner_type == "pooling",
        "a diffusion model: only autoregressive generation is supported": model_config.is_diffusion,
        "an encoder-decoder model: only decoder-only models are supported": model_config.is_encoder_decoder,
    }
    refused = [reason for reason, applies in refusals.items() if applies]
    if refused:
        raise ConfigError("Headway cannot schedule with " + "; ".join(refused))
