"""Start-up of the plug-in: the base class, the supported combinations, the vLLM version."""

from __future__ import annotations

import logging
from copy import copy
from typing import TYPE_CHECKING, Any

import vllm

from headway.engine.host_kv import CONNECTOR
from headway.engine.kv.transfers import is_anothers
from headway.engine.settings import EngineSettings
from headway.engine.vllm.plugin import has_rust_front_end, schedule_here
from headway.engine.vllm.seams import (
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
from headway.policies.policy import Policy
from headway.policies.presets import build_policy

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler

logger = logging.getLogger(__name__)

RUST_FRONT_END = (
    "vLLM's Rust front end serves here (VLLM_USE_RUST_FRONTEND=1), which runs no Python. Hints in vllm_xargs are "
    "read in the engine: a request with a bad one ends with status 500 in place of 400. A policy that goes by "
    "lengths has them predicted in the engine. An answer that ends on a stop string counts as cancelled, and teaches "
    "no length. Not to be had: hints in headers, headway_* on /metrics, `headway explain` and `headway shadow`"
)
"""Logged once, when an engine starts."""


def build_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Scheduler:
    """Build Headway over the base that stock would choose. Raises ConfigError or SeamError if it cannot work.

    Returns stock's scheduler for a model whose steps no policy can order.
    """
    settings = EngineSettings.from_additional_config(vllm_config.additional_config)
    preset = settings.preset()
    unordered = served_by_stock(vllm_config)
    if unordered is not None:
        if getattr(vllm_config.kv_transfer_config, "kv_connector", None) == CONNECTOR:
            raise ConfigError(f"--host-kv-gib: {unordered} swaps no KV; accepted: none")
        logger.warning(
            "%s is served in stock order: vLLM's own scheduler decides, policy %s and hints have no effect",
            *(unordered, preset.name),
        )
        return stock_class(vllm_config)(vllm_config, *args, **kwargs)
    check_names()
    refuse_unsupported(vllm_config)
    schedule_here()
    if not check_decisions(vllm_config, settings):
        settings = serve_as_stock(vllm_config)
        preset = settings.preset()
    if has_rust_front_end():
        logger.warning(RUST_FRONT_END)
    from headway.engine.scheduler import scheduler_class  # needs names that vLLM may lack

    scheduler = scheduler_class(vllm_config)
    _say_what_is_missing(vllm_config, settings, build_policy(preset))
    logger.info("Headway policy %s (%s), %s", preset.name, preset.summary, scheduler.__name__)
    return scheduler(vllm_config, *args, **kwargs)


def _say_what_is_missing(vllm_config: VllmConfig, settings: EngineSettings, policy: Policy) -> None:
    """Warn if missing features make a policy weaker than its name says."""
    transfer = vllm_config.kv_transfer_config
    if policy.uses_host and transfer is None:
        logger.warning(
            "policy %s has no host memory to swap KV to, so it recomputes instead; --host-kv-gib GIB of "
            "`headway serve` gives it some",
            policy.name,
        )
    elif transfer is not None and not is_anothers(transfer) and not policy.uses_host:
        logger.warning(
            "policy %s never swaps KV, so the host memory that is set aside for it (--host-kv-gib) is of no use; a "
            "policy that does: headway, fastserve, adaptivellm",
            policy.name,
        )
    if settings.host_kv is not None and transfer is None and works(SWAPS):
        logger.warning(
            "additional_config.headway.host_kv starts no KV connector by itself; `headway serve --host-kv-gib GIB` does"
        )
    if policy.uses_predictions and settings.length_predictor() is None:
        logger.warning(
            "policy %s goes by predicted lengths, and predictor is none: requests whose clients send no headway_length "
            "are served as if nothing were known of them",
            policy.name,
        )
    if policy.pads_prompts:
        logger.warning(
            "policy %s makes its batches as an engine that pads prompts does; this vLLM pads none, so no step computes "
            "padding here (the simulator charges it)",
            policy.name,
        )
    if policy.needs_targets and not settings.default_slo():
        logger.warning(
            "policy %s goes by targets, and there are none here: requests whose clients name none are served first "
            "come, first served; --slo-ttft S and --slo-tbt S of `headway serve` set some",
            policy.name,
        )


def check_names() -> None:
    """Raise SeamError if this vLLM lacks a name that the scheduler needs."""
    gone = missing(SCHEDULING)
    if gone:
        raise SeamError(
            f"vLLM {vllm.__version__} has no {', '.join(gone)}; tested: {', '.join(sorted(TESTED))}"
        )


def check_decisions(vllm_config: VllmConfig, settings: EngineSettings) -> bool:
    """Whether the policy can run on this vLLM: a tested version is trusted, any other is tried, with a warning.

    Raises SeamError if preset `vllm` decides differently from stock, or if the policy fails and the settings are
    `strict`.
    """
    differing = changed(SCHEDULING)
    if is_tested() and not differing:
        return True
    try:
        from headway.engine.self_check import self_check
    except ImportError as error:
        raise SeamError(f"the self-check cannot run with vLLM {vllm.__version__}: {error}") from error

    verdict = self_check(vllm_config)
    untested = (
        f"vLLM {vllm.__version__} is not the tested {', '.join(sorted(TESTED))} "
        f"(changed: {', '.join(differing) or 'nothing that Headway touches'})"
    )
    if verdict.fault is None:
        logger.warning(
            "%s; a self-check of %d steps passed, serving with it. Checked: %s",
            *(untested, verdict.steps, "; ".join(verdict.features)),
        )
        return True
    fault = f"{untested}, and policy {settings.policy!r} fails the self-check {verdict.fault}"
    if settings.strict:
        raise SeamError(f"{fault}. Without --strict the server starts in stock order (preset 'vllm')")
    logger.error(
        "%s. Serving starts in stock order (preset 'vllm'), which passed; --strict refuses instead", fault
    )
    return False


def serve_as_stock(vllm_config: VllmConfig) -> EngineSettings:
    """Replace a configuration's policy by preset `vllm`; the rest stays."""
    config = vllm_config.additional_config or {}
    of_the_policy = {
        "policy",
        "order",
        "batching",
        "eviction",
        "leaving",
        "tail",
        "decode_share",
        "predictor",
        "length_model",
    }
    kept = {name: value for name, value in config.get("headway", {}).items() if name not in of_the_policy}
    vllm_config.additional_config = {**config, "headway": kept}
    return EngineSettings.from_additional_config(vllm_config.additional_config)


def served_by_stock(vllm_config: VllmConfig) -> str | None:
    """Why stock vLLM has to schedule this model; None for models that generate text.

    A pooling request ends with its prompt. An encoder-decoder model holds memory that plans do not count.
    """
    model_config = vllm_config.model_config
    if model_config.runner_type == "pooling":
        return "a pooling model"
    return "an encoder-decoder model" if model_config.is_encoder_decoder else None


def stock_class(vllm_config: VllmConfig) -> type[Scheduler]:
    """The scheduler class that vLLM would have chosen."""
    scheduler_config = copy(vllm_config.scheduler_config)
    scheduler_config.scheduler_cls = None
    stock: type[Scheduler] = scheduler_config.get_scheduler_cls()
    return stock


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Raise ConfigError for options that cannot be combined with Headway, and say what can."""
    scheduler_config = vllm_config.scheduler_config
    model_config = vllm_config.model_config
    transfer = vllm_config.kv_transfer_config
    refusals = {
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
        "a diffusion model: only autoregressive generation is supported": model_config.is_diffusion,
    }
    refused = [reason for reason, applies in refusals.items() if applies]
    if refused:
        raise ConfigError("Headway cannot schedule with " + "; ".join(refused))
