"""The command that deploys a configuration, and its deployment on this machine."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.lab.policy_bench import why_not_ready
from headway.lab.policy_choice import OWN_PARTS, uses_predictions
from headway.planner.machine import Configuration, Machine
from headway.with_parent import signal_with_parent

PROGRAM = "headway"


def arguments(
    model: str, configuration: Configuration, slo: Slo, flags: Sequence[str] = ()
) -> tuple[str, ...]:
    """The words of `headway serve` that serve a model so, on the GPUs of one machine.

    `flags` are vLLM's beside those of the configuration.
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
    if uses_predictions(configuration.policy, OWN_PARTS):
        words += ["--predictor", configuration.predictor]
    return (*words, "--", *vllm_flags(configuration), *flags)


def vllm_flags(configuration: Configuration) -> tuple[str, ...]:
    """vLLM's own flags, alike for every instance."""
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
    """Those that vLLM needs on this machine: to start at all, and to be the engine that was simulated, or measured."""
    flags: list[str] = []
    if machine.costs(configuration.tp).kv_capacity_tokens < machine.context_tokens:
        flags += ["--max-model-len", "auto"]  # vLLM starts only if the longest request it admits fits
    limits = machine.limits(configuration)
    if replace(limits, max_cudagraph_capture_size=None).graphed_tokens < limits.graphed_tokens:
        flags += ["--max-cudagraph-capture-size", f"{limits.graphed_tokens}"]
    return (*flags, *machine.measured_flags())


def command(words: Sequence[str]) -> str:
    """The words as a shell reads them."""
    return shlex.join(words)


HOST = "127.0.0.1"
START_S = 300.0
END_S = 60.0
_POLL_S = 0.3


def as_started(words: Sequence[str], port: int, records: Path) -> list[str]:
    """The words of a deploy command, without the program's name, for a port of this machine and a file of records."""
    flags = words.index("--")
    return [*words[1:flags], "--port", f"{port}", "--records", str(records), *words[flags:]]


def records_of_engines(records: Path) -> list[Path]:
    """The files of records of a deployment: the one it was given, or one of each instance."""
    return sorted(records.parent.glob(f"{records.stem}*{records.suffix}"))


@contextmanager
def deployed(words: Sequence[str], port: int, log: Path, records: Path) -> Iterator[str]:
    """The URL of what a deploy command serves, once it is ready; it and all it started end with the block.

    They end too if this process is killed (`signal_with_parent`). Its engines begin `records` anew
    (`records_of_engines`). Raises UpstreamError if it does not get ready, with what its log says of it.
    """
    command = [sys.executable, "-m", "headway.cli", *as_started(words, port, records)]
    log.parent.mkdir(parents=True, exist_ok=True)
    for old in records_of_engines(records):
        old.unlink()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=partial(signal_with_parent, signal.SIGTERM),
        )
        try:
            # A gateway is alive before its instances are; a single server is ready once it is alive.
            _wait(process, port, "/ready" if "--pools" in words or "--instances" in words else "/health", log)
            yield f"http://{HOST}:{port}"
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while not _answers(port, path):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise UpstreamError(why_not_ready("the deployment did not get ready", log))
        time.sleep(_POLL_S)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """PlanRequest it to end, as its user would; whatever is left of its group after a while is killed."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
