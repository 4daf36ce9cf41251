"""The command that deploys a configuration, and its deployment on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

from headway.core.slo import Slo
from headway.lab.policy_choice import OWN_PARTS, uses_predictions
from headway.lab.server import command_server, headway_command
from headway.planner.machine import NO_POOL, Configuration, Machine, Node
from headway.policies.pool_settings import presets_of

PROGRAM = "headway"


def arguments(
    model: str, configuration: Configuration, slo: Slo, flags: Sequence[str] = ()
) -> tuple[str, ...]:
    """The arguments of `headway serve` for a model in this configuration, on the GPUs of one machine.

    `flags` are further flags of vLLM. Targets are for requests that name none; `serve` has no flag for a deadline, so
    requests must name it.
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
    for name, value in configuration.pool_settings.heeded_by(configuration.policy).items():
        words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    if configuration.host_gib:
        words += ["--host-kv-gib", f"{configuration.host_gib:g}"]
    if uses_predictions(configuration.policy, OWN_PARTS):
        words += ["--predictor", configuration.predictor]
    return (*words, "--", *vllm_flags(configuration), *flags)


FIRST_PORT = 8001
"""Port of a machine's first instance, if there are several; the gateway has 8000."""


def script(model: str, configuration: Configuration, slo: Slo, node: Node, flags: Sequence[str] = ()) -> str:
    """The shell script that deploys a configuration.

    One command; or on several machines one for each instance, with its GPUs and port, and the gateway that joins them.
    Machines are called MACHINE1, MACHINE2, ...
    """
    sizes = node.sizes(configuration.gpus)
    if len(sizes) == 1:
        return command(arguments(model, configuration, slo, flags))
    tp, lines, joined = configuration.tp, [], []
    counts = configuration.pools or {NO_POOL: configuration.instances}
    pools = chain.from_iterable(repeat(pool, count) for pool, count in counts.items())
    places = [(number, slot) for number, size in enumerate(sizes, 1) for slot in range(size // tp)]
    for pool, (number, slot) in zip(pools, places, strict=True):
        preset = presets_of(configuration.policy)[pool]
        alone = replace(configuration, policy=preset, instances=1, lp=0, gpus=tp)
        words = as_started(arguments(model, alone, slo, flags), FIRST_PORT + slot, ("--host", "0.0.0.0"))
        gpus = ",".join(f"{gpu}" for gpu in range(slot * tp, (slot + 1) * tp))
        lines.append(f"CUDA_VISIBLE_DEVICES={gpus} {command([PROGRAM, *words])}  # on MACHINE{number}")
        url = f"http://MACHINE{number}:{FIRST_PORT + slot}"
        joined += ["--join", f"{pool}={url}" if pool else url]
    return "\n".join([*lines, f"{command([PROGRAM, 'serve', *joined])}  # on one of them"])


def vllm_flags(configuration: Configuration) -> tuple[str, ...]:
    """vLLM's own flags, equal for every instance."""
    flags = [
        *("--max-num-seqs", f"{configuration.seats}"),
        *("--max-num-batched-tokens", f"{configuration.tokens_a_step}"),
    ]
    if configuration.tp > 1:
        flags += ["--tensor-parallel-size", f"{configuration.tp}"]
    if configuration.kv_tier is not None:
        flags += ["--kv-offloading-size", f"{configuration.kv_tier.of_engine(configuration.tp).gib:g}"]
    return tuple(flags)


def flags_here(machine: Machine, configuration: Configuration) -> tuple[str, ...]:
    """Flags that vLLM needs here: to start at all, and to be the engine that was simulated or measured."""
    flags: list[str] = []
    if machine.costs(configuration.tp).kv_capacity_tokens < machine.context_tokens:
        flags += ["--max-model-len", "auto"]  # vLLM starts only if the longest request it admits fits
    limits = machine.limits(configuration)
    if replace(limits, max_cudagraph_capture_size=None).graphed_tokens < limits.graphed_tokens:
        flags += ["--max-cudagraph-capture-size", f"{limits.graphed_tokens}"]
    return (*flags, *machine.attention_flags(), *machine.measured_flags())


def command(words: Sequence[str]) -> str:
    """Quote the arguments for a shell."""
    return shlex.join(words)


def as_started(words: Sequence[str], port: int, more: Sequence[str]) -> list[str]:
    """The arguments of a deploy command, without the program's name, for a port, with more flags of `serve`."""
    flags = words.index("--")
    return [*words[1:flags], "--port", f"{port}", *more, *words[flags:]]


def records_of_engines(records: Path) -> list[Path]:
    """The record files of a deployment: the given one, or one for each instance."""
    return sorted(records.parent.glob(f"{records.stem}*{records.suffix}"))


@contextmanager
def deployed(words: Sequence[str], port: int, log: Path, records: Path) -> Iterator[str]:
    """Run a deploy command; yield its URL when it is ready. Everything it started ends with the block.

    Its engines begin `records` anew (`records_of_engines`). Raises UpstreamError, with the end of its log, if it does
    not become ready.
    """
    for old in records_of_engines(records):
        old.unlink()
    # A gateway is alive before its instances are ready; a single server is ready once it is alive.
    started = as_started(words, port, ("--records", str(records)))
    ready = "/ready" if "--pools" in words or "--instances" in words else "/health"
    with command_server(headway_command(*started), port, log, ready=ready) as server:
        yield server.url
