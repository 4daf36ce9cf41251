"""Start-up of the plug-in: which base, which combinations, which vLLM."""

from __future__ import annotations

import logging
from typing import Any

import vllm

from headway.engine.kv.host import CONNECTOR
from headway.engine.kv.transfers import is_anothers
from headway.engine.plugin import schedule_here
from headway.engine.settings import EngineSettings
from headway.engine.vllm_seams import (
    CONNECTORS,
    SCHEDULING,
    SWAPS,
    TESTED,
    changed,
    is_tested,
    missing,
    works,
)
from headway.errors import ConfigError, SeamError
from headway.policies.presets import build_policy

logger = logging.getLogger(__name__)


def build_scheduler(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Headway over the base that stock would have chosen; ConfigError or SeamError if it cannot work."""
    check_names()
    refuse_unsupported(vllm_config)
    schedule_here()
    settings = EngineSettings.from_additional_config(vllm_config.additional_config)
    preset = settings.preset()
    check_decisions(vllm_config)
    scheduler = scheduler_class(vllm_config)
    policy = build_policy(preset)
    transfer = vllm_config.kv_transfer_config
    if policy.uses_host and transfer is None:
        logger.warning(
            "policy %s has no host memory to swap KV to, so it recomputes instead; --host-kv-gib GIB of "
            "`headway serve` gives it some",
            preset.name,
        )
    elif transfer is not None and not is_anothers(transfer) and not policy.uses_host:
        logger.warning(
            "policy %s never swaps KV, so the host memory that is set aside for it (--host-kv-gib) is of no use; a "
            "policy that does: headway, fastserve, adaptivellm",
            preset.name,
        )
    if settings.host_kv is not None and transfer is None and works(SWAPS):
        logger.warning(
            "additional_config.headway.host_kv starts no KV connector by itself; `headway serve --host-kv-gib GIB` does"
        )
    if policy.uses_predictions and settings.length_predictor() is None:
        logger.warning(
            "policy %s goes by predicted lengths, and nobody predicts any here, %s: requests whose clients send no "
            "headway_length are served as if nothing were known of them",
            preset.name,
            "as predictor is none" if settings.predictor else "which pip install 'headway[predict]' changes",
        )
    if policy.needs_targets and not settings.default_slo():
        logger.warning(
            "policy %s goes by targets, and there are none here: requests whose clients name none are served first "
            "come, first served; --slo-ttft S and --slo-tbt S of `headway serve` set some",
            preset.name,
        )
    logger.info("Headway policy %s (%s), %s", preset.name, preset.summary, scheduler.__name__)
    return scheduler(vllm_config, *args, **kwargs)


def scheduler_class(vllm_config: Any) -> type[Any]:
    """Ours over the base stock would pick: AsyncScheduler exactly when scheduling is asynchronous."""
    from headway.engine.scheduler import AsyncPolicyScheduler, PolicyScheduler

    asynchronous = vllm_config.scheduler_config.async_scheduling
    return AsyncPolicyScheduler if asynchronous else PolicyScheduler


def check_names() -> None:
    """Raise SeamError if this vLLM lacks a name without which the scheduler cannot work."""
    gone = missing(SCHEDULING)
    if gone:
        raise SeamError(
            f"vLLM {vllm.__version__} has no {', '.join(gone)}; tested: {', '.join(sorted(TESTED))}"
        )


def check_decisions(vllm_config: Any) -> None:
    """Pass a tested vLLM silently; try any other on a short script and warn; SeamError if it decides otherwise."""
    differing = changed(SCHEDULING)
    if is_tested() and not differing:
        return
    try:
        from headway.engine.self_check import self_check
    except ImportError as error:
        raise SeamError(f"the self-check cannot run with vLLM {vllm.__version__}: {error}") from error

    parity = self_check(vllm_config)
    logger.warning(
        "this vLLM is not the tested %s (changed: %s); a self-check of %d steps passed, serving with it",
        ", ".join(sorted(TESTED)),
        ", ".join(differing) or "nothing that Headway touches",
        parity.steps,
    )


def refuse_unsupported(vllm_config: Any) -> None:
    """Raise ConfigError, naming each option that cannot be combined with Headway and what can."""
    scheduler_config = vllm_config.scheduler_config
    model_config = vllm_config.model_config
    transfer = vllm_config.kv_transfer_config
    refusals = {
        f"--scheduling-policy {scheduler_config.policy}: use fcfs, and choose the order with Headway "
        "(order 'priority' serves by request priority)": scheduler_config.policy != "fcfs",
        f"--kv-transfer-config: MultiConnector with {CONNECTOR} among its connectors. Give it the others alone, or use "
        "--host-kv-gib alone": transfer is not None
        and transfer.kv_connector != CONNECTOR
        and transfer.has_connector(CONNECTOR),
        f"--kv-transfer-config: vLLM {vllm.__version__} lacks or changed what Headway needs beside the KV connector of "
        "another package": is_anothers(transfer) and not works(CONNECTORS),
        "--ec-transfer-config: encoders are computed where the model is": (
            vllm_config.ec_transfer_config is not None
        ),
        "--no-enable-chunked-prefill: leave chunked prefill on; batching 'prefill-first' computes prompts "
        "whole": not scheduler_config.enable_chunked_prefill,
        "--runner pooling: only generation is supported": model_config.runner_type == "pooling",
        "a diffusion model: only autoregressive generation is supported": model_config.is_diffusion,
        "an encoder-decoder model: only decoder-only models are supported": model_config.is_encoder_decoder,
    }
    refused = [reason for reason, applies in refusals.items() if applies]
    if refused:
        raise ConfigError("Headway cannot schedule with " + "; ".join(refused))
