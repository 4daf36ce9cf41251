"""The command that deploys a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from headway.core.cuda_graphs import MOST_GRAPHED_TOKENS, captured_tokens
from headway.core.slo import Slo
from headway.experiments.planning.configuration import Configuration
from headway.experiments.predictor_choice import NONE

PROGRAM = "headway"


def arguments(
    model: str, configuration: Configuration, slo: Slo, *, has_graphs: bool = False
) -> tuple[str, ...]:
    """The words of `headway serve` that serve a model so, on the GPUs of one machine.

    With `has_graphs` few seats do not take CUDA graphs of 512 tokens away, as vLLM would by itself.
    Targets are for requests that name none; `serve` has no flag for a deadline, which requests name themselves.
    """
    words: list[str] = [PROGRAM, "serve", model, "--policy", configuration.policy]
    pools = configuration.pools
    if pools is not None:
        words += ["--pools", ",".join(f"{pool}={count}" for pool, count in pools.items())]
    elif configuration.instances > 1:
        words += ["--instances", f"{configuration.instances}"]
    if slo.ttft_s is not None:
        words += ["--slo-ttft", f"{slo.ttft_s:g}"]
    if slo.tbt_s is not None:
        words += ["--slo-tbt", f"{slo.tbt_s:g}"]
    if configuration.threshold is not None:
        words += ["--hand-off-threshold", f"{configuration.threshold:g}"]
    if configuration.host_gib:
        words += ["--host-kv-gib", f"{configuration.host_gib:g}"]
    if configuration.predictor != NONE:
        words += ["--predictor", configuration.predictor]
    flags = vllm_flags(configuration)
    graphed_tokens = min(MOST_GRAPHED_TOKENS, configuration.tokens_a_step)
    if has_graphs and captured_tokens(configuration.seats, configuration.tokens_a_step) < graphed_tokens:
        flags += ("--max-cudagraph-capture-size", f"{graphed_tokens}")
    return (*words, "--", *flags)


def vllm_flags(configuration: Configuration) -> tuple[str, ...]:
    """vLLM's own flags, alike for every instance."""
    flags = [
        *("--max-num-seqs", f"{configuration.seats}"),
        *("--max-num-batched-tokens", f"{configuration.tokens_a_step}"),
    ]
    if configuration.tp > 1:
        flags += ["--tensor-parallel-size", f"{configuration.tp}"]
    return tuple(flags)


def command(words: Sequence[str]) -> str:
    """The words as a shell reads them."""
    return shlex.join(words)
