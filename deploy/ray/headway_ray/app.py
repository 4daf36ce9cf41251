"""The Ray Serve application: `serve run headway_ray.app:build model=demo replicas=2`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headway.engine.demo_model import resolve_model
from headway.engine.servers.server_command import SCHEDULER
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, meant

DIRECT = "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING"
FORWARD_BODY = "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY"
HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"
ROUTER_CLASS = "headway_ray.router.HeadwayRouter"
UNCOUNTING = ("round-robin",)
"""Routers that need not be told when a request ends."""
COUNTING = ("least-work", "power-of-two")
"""Those that must be. Ascendra's are not among them: replicas have no pools, and cannot hand a request over."""

CPU_ENGINE = {
    "dtype": "bfloat16",
    "enforce_eager": True,
    "max_model_len": 2048,
    "kv_cache_memory_bytes": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of the application.

    `accelerator` is `cpu`, `gpu`, or the name of a GPU as Ray knows it; `engine` are further arguments of vLLM;
    `settings` further ones of Headway's (`slo_ttft_s`, `order`, ... as in `additional_config`).
    """

    model: str = "demo"
    replicas: int = 2
    policy: str = "headway"
    router: str = ""
    accelerator: str = "gpu"
    engine: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def build(arguments: Mapping[str, Any]) -> Any:
    """The application that Ray Serve runs. Raises ConfigError for arguments or an environment that are not accepted."""
    from ray.serve.llm import LLMConfig, build_openai_app

    return build_openai_app({"llm_configs": [LLMConfig(**llm_config(arguments, os.environ))]})


def llm_config(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of Ray's `LLMConfig`. Raises ConfigError."""
    options = _options(arguments)
    direct = environment.get(DIRECT) == "1"
    router = options.router or ("round-robin" if direct else "least-work")
    _check_router(router, direct, environment)
    headway = {"policy": options.policy, **options.settings}
    EngineSettings.from_additional_config({"headway": headway})
    cpu = options.accelerator == "cpu"
    return {
        "model_loading_config": {"model_id": options.model, "model_source": resolve_model(options.model)},
        **_accelerator(options.accelerator),
        "deployment_config": {
            "num_replicas": options.replicas,
            "request_router_config": {
                "request_router_class": ROUTER_CLASS,
                "request_router_kwargs": {"router": router, "sees_ends": not direct},
            },
        },
        "engine_kwargs": {
            **(CPU_ENGINE if cpu else {}),
            **options.engine,
            "scheduler_cls": SCHEDULER,
            "additional_config": {"headway": headway},
        },
        # Ray gathers an answer's tokens for 50 ms by default, which no target survives.
        "experimental_configs": {"stream_batching_interval_ms": 0},
    }


def _options(arguments: Mapping[str, Any]) -> Options:
    accepted = [part.name for part in fields(Options)]
    unknown = sorted(set(arguments) - set(accepted))
    if unknown:
        raise ConfigError(f"unknown {', '.join(unknown)}; {meant(unknown[0], accepted)}")
    replicas = str(arguments.get("replicas", 2))  # a number in a manifest, text in a command
    if not (replicas.isdecimal() and int(replicas) >= 1):
        raise ConfigError(f"replicas is {replicas}; accepted: a whole number, 1 or more")
    return Options(**{**arguments, "replicas": int(replicas)})


def _check_router(router: str, direct: bool, environment: Mapping[str, str]) -> None:
    if router not in (*UNCOUNTING, *COUNTING):
        raise ConfigError(
            f"router {router!r} is none that Ray can use; {meant(router, (*UNCOUNTING, *COUNTING))}"
        )
    if direct and router in COUNTING:
        raise ConfigError(
            f"router {router!r} counts what has not ended, and with {DIRECT}=1 Ray does not tell; accepted: "
            f"{', '.join(UNCOUNTING)}, or another streaming"
        )
    if direct and (environment.get(HA_PROXY), environment.get(FORWARD_BODY)) != ("1", "1"):
        raise ConfigError(
            f"{DIRECT} is 1 and {HA_PROXY} or {FORWARD_BODY} is not; accepted: all three 1, so that the router sees "
            "what is asked"
        )


def _accelerator(name: str) -> dict[str, Any]:
    if name in ("cpu", "gpu"):
        return {"accelerator_config": {"kind": name}}
    return {"accelerator_type": name}
