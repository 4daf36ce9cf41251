"""`headway serve`: one vLLM server whose scheduling a Headway policy decides."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.host_memory import HostKvBytesPerS, HostKvGib, host_memory
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.kv_host import HostKv
    from headway.engine.server_command import ServerCommand
    from headway.engine.settings import EngineSettings

EPILOG = """Examples:

  headway serve demo

  headway serve Qwen/Qwen3-8B --slo-ttft 0.5 --slo-tbt 0.05

  headway serve ./model --policy sarathi -- --max-num-seqs 64 --dtype bfloat16

  headway serve demo --order shortest-prompt --records served.jsonl

  headway serve Qwen/Qwen3-8B --policy adaptivellm-plus --host-kv-gib 16

  headway serve ./model --policy predicted --predict-lengths hash --length-model lengths.npz

`headway policies` lists the policies and their parts. `--policy vllm` is stock vLLM's order.
Every flag after `--` is vLLM's own.
"""

PORTS = range(1024, 65536)


def serve(
    model: Annotated[str, typer.Argument(help="`demo`, `demo-random`, a directory, or a hub name.")],
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="-- VLLM_FLAGS", help="vLLM's own flags, after `--`.")
    ] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help="Row of the preset table.")] = "vllm",
    slo_ttft: Annotated[
        float | None,
        typer.Option(metavar="S", help="Target: seconds to the first token, for requests that name none."),
    ] = None,
    slo_tbt: Annotated[
        float | None,
        typer.Option(metavar="S", help="Target: mean seconds between tokens, for requests that name none."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to serve on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to serve on.")] = 8000,
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what happened to each request here (JSONL).")
    ] = None,
    batch_width: Annotated[
        int | None,
        typer.Option(metavar="N", help="Requests a step may run; worker slots are vLLM's --max-num-seqs."),
    ] = None,
    host_kv_gib: HostKvGib = None,
    host_kv_bytes_per_s: HostKvBytesPerS = None,
    predict_lengths: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Predict answers' lengths, and learn from those that end: hash, minilm, st:DIR|HUB or learned.",
        ),
    ] = None,
    length_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what is learned of lengths here; need not exist yet."),
    ] = None,
    order: Annotated[str | None, typer.Option(metavar="PART", help="In place of the policy's order.")] = None,
    batching: Annotated[
        str | None, typer.Option(metavar="PART", help="In place of the policy's batching.")
    ] = None,
    eviction: Annotated[
        str | None, typer.Option(metavar="PART", help="In place of the policy's eviction.")
    ] = None,
    leaving: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="In place of the policy's rules; repeatable.")
    ] = None,
) -> None:
    """Serve a model through vLLM's OpenAI API, with a Headway policy deciding what runs.

    Ends on Ctrl-C or SIGTERM with every process of the server. All messages are on stderr.
    """
    from headway.engine.server_command import server_command
    from headway.engine.settings import EngineSettings

    settings = EngineSettings(
        policy=policy,
        order=order,
        batching=batching,
        eviction=eviction,
        leaving=tuple(leaving) if leaving else None,
        slo_ttft_s=slo_ttft,
        slo_tbt_s=slo_tbt,
        batch_width=batch_width,
        host_kv=host_memory(host_kv_gib, host_kv_bytes_per_s),
        predict_lengths=predict_lengths,
        length_model=None if length_model is None else str(length_model.absolute()),
        records=None if records is None else str(records.absolute()),
    )
    check_address(host, port)
    command = server_command(model, settings, (host, port), vllm_flags or ())
    shown = f"[{host}]" if ":" in host else host
    typer.echo(introduction(model, f"http://{shown}:{port}", command), err=True)
    raise typer.Exit(_run(command, (host, port)))


def _run(command: ServerCommand, address: tuple[str, int]) -> int:
    """Exit code of the server."""
    from headway.engine.server_process import GRACE_S, ServerProcess, run_until_signalled

    grace_s = GRACE_S + command.drain_s
    code = run_until_signalled(lambda: ServerProcess(command.arguments, address, grace_s=grace_s))
    if code == 1:
        typer.echo("error: vLLM ended by itself; the reason is in its messages above", err=True)
    return code


def check_address(host: str, port: int) -> None:
    """Raise ConfigError for an address on which a server cannot listen now."""
    if port not in PORTS:
        raise ConfigError(f"--port is {port}; accepted: {PORTS.start} to {PORTS.stop - 1}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot serve on {host}:{port} ({error.strerror}); accepted: an address of this machine "
                "and a free port (--host, --port)"
            ) from None


def introduction(model: str, url: str, command: ServerCommand) -> str:
    """What is about to run, for people: policy, targets, choices made, and what else there is."""
    from headway.policies.presets import known_presets

    settings = command.settings
    presets = known_presets()
    width = max(map(len, presets))
    others = [f"  {name:{width}}  {row.summary}" for name, row in presets.items() if name != settings.policy]
    return "\n".join(
        [
            f"headway: serving {model} at {url} under policy {settings.policy!r} "
            f"({presets[settings.policy].summary}){_parts(settings)}; {_targets(settings)}.",
            *([_host_memory(settings.host_kv)] if settings.host_kv is not None else []),
            *([_predictions(settings)] if settings.predict_lengths is not None else []),
            *([f"Chosen here, as nothing was given: {', '.join(command.chosen)}."] if command.chosen else []),
            "Other policies (--policy NAME):",
            *others,
        ]
    )


def _parts(settings: EngineSettings) -> str:
    """The parts put in place of the preset's own."""
    parts = {"order": settings.order, "batching": settings.batching, "eviction": settings.eviction}
    named = [f"{kind} {part}" for kind, part in parts.items() if part is not None]
    named += [f"leaving {rule}" for rule in settings.leaving or ()]
    return f" with {', '.join(named)}" if named else ""


def _host_memory(host_kv: HostKv) -> str:
    size = f"{host_kv.blocks} KV blocks" if host_kv.gib is None else f"{host_kv.gib:g} GiB"
    limit = "" if host_kv.bytes_per_s is None else f", at {host_kv.bytes_per_s:g} bytes/s at most each way"
    return f"KV of requests that are swapped out: {size} of host memory{limit}."


def _predictions(settings: EngineSettings) -> str:
    kept = "forgotten at the end" if settings.length_model is None else f"kept in {settings.length_model}"
    return f"Lengths of answers are predicted with {settings.predict_lengths}; what is learned is {kept}."


def _targets(settings: EngineSettings) -> str:
    targets = {"first token within": settings.slo_ttft_s, "time between tokens": settings.slo_tbt_s}
    named = [f"{what} {value_s:g} s" for what, value_s in targets.items() if value_s is not None]
    return f"targets: {', '.join(named)}" if named else "no latency targets"
