"""`headway serve`: vLLM servers whose scheduling Headway policies decide: one, or several behind a gateway."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.host_memory import HostKvBytesPerS, HostKvGib, host_memory
from headway.cli.serve_flags import GatewayFlags
from headway.cli.writable import check_engine_files
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.kv.host import HostKv
    from headway.engine.servers.server_command import ServerCommand
    from headway.engine.settings import EngineSettings

EPILOG = """Examples:

  headway serve demo

  headway serve Qwen/Qwen3-8B --slo-ttft 0.5 --slo-tbt 0.05

  headway serve ./model --policy sarathi -- --max-num-seqs 64 --dtype bfloat16

  headway serve demo --order shortest-prompt --records served.jsonl

  headway serve Qwen/Qwen3-8B --policy adaptivellm-plus --host-kv-gib 16

  headway serve ./model --policy predicted --predictor hash --length-model lengths.headway

Several instances behind one address (the page is at /dashboard):

  headway serve demo --pools lp=1,hp=1 --slo-ttft 1 --slo-tbt 0.15

  headway serve Qwen/Qwen3-8B --instances 4 --policy headway

  headway serve ./model --pools lp=2,hp=1 --api-keys keys.txt --max-queue 500 --max-age 30 -- -tp 2

  headway serve --join lp=http://10.0.0.2:8000 --join hp=http://10.0.0.3:8000

  headway serve ./model --policy headway --pools prefill=1,decode=1 -- --kv-transfer-config \
    '{"kv_connector": "NixlConnector"}'

`headway policies` lists the policies and their parts. `--policy vllm` is stock vLLM's order.
Every flag after `--` is vLLM's own, for every instance. Instances that are launched here have cores
(or GPUs) of their own, and are launched again if they end.
"""

PORTS = range(1024, 65536)


def _gateway(metavar: str | None = None, text: str | None = None, flag: str | None = None) -> Any:
    """An option that `--help` lists with those of several instances."""
    names = () if flag is None else (flag,)
    return typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel="Several instances behind one address"
    )


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="`demo`, `demo-random`, a directory, or a hub name; none if all servers are joined."
        ),
    ] = None,
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="-- VLLM_FLAGS", help="vLLM's own flags, after `--`.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Row of the preset table (default: vllm; with --pools lp=N,hp=M: ascendra)."
        ),
    ] = None,
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
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what happened to each request here (JSONL); what is there is kept beside it, numbered.",
        ),
    ] = None,
    batch_width: Annotated[
        int | None,
        typer.Option(metavar="N", help="Requests a step may run; worker slots are vLLM's --max-num-seqs."),
    ] = None,
    host_kv_gib: HostKvGib = None,
    host_kv_bytes_per_s: HostKvBytesPerS = None,
    predictor: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Predict answers' lengths, and learn from those that end: learned, hash, minilm, st:DIR|HUB or none "
            "(default: learned, for policies that go by them).",
        ),
    ] = None,
    length_model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what is learned of lengths here; need not exist yet."),
    ] = None,
    explain: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Ended requests that `headway explain` can still tell of (default: 500); 0: follow none.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse to start, in place of serving in stock order, if the policy fails the self-check on a vLLM "
            "that Headway was not tested with.",
        ),
    ] = False,
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
    hand_off_threshold: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Where a policy hands off requests at risk: share of the first token's target that is kept in "
            "reserve, in place of its own.",
        ),
    ] = None,
    instances: Annotated[int | None, _gateway("N", "Instances to launch, all alike.")] = None,
    pools: Annotated[
        str | None,
        _gateway("POOL=N,...", "Instances to launch in each pool: lp=2,hp=1, or prefill=1,decode=1."),
    ] = None,
    join: Annotated[
        list[str] | None, _gateway("[POOL=]URL", "A server that is there already; repeatable.")
    ] = None,
    router: Annotated[
        str | None,
        _gateway(
            "NAME",
            "Which instance gets a request (default: cache-aware; ascendra or prefill-decode, as the pools are).",
        ),
    ] = None,
    tickets: Annotated[
        bool,
        _gateway(
            None,
            "New requests may go to high-priority instances that wait for work.",
            "--tickets/--no-tickets",
        ),
    ] = True,
    rebalance: Annotated[
        bool, _gateway(None, "Move instances between pools when one is short of time.", "--rebalance")
    ] = False,
    api_keys: Annotated[
        Path | None,
        _gateway(
            "FILE",
            "Lines KEY [TENANT]; also HEADWAY_API_KEYS. Without any, vLLM's --api-key; without that, all may ask.",
        ),
    ] = None,
    max_queue: Annotated[
        int | None,
        _gateway("N", "Sequences (prompts times n) without their first token at a time; more: 429."),
    ] = None,
    max_age: Annotated[
        float | None, _gateway("S", "Time to the first token; what takes longer: 429.")
    ] = None,
    max_in_flight: Annotated[
        int | None, _gateway("N", "Sequences at each instance at a time; others wait (default: no limit).")
    ] = None,
    max_per_tenant: Annotated[
        int | None, _gateway("N", "Sequences of each tenant at a time; more: 429.")
    ] = None,
    max_body_mib: Annotated[
        int | None, _gateway("N", "Size of a request (default: 64 MiB); more: 413.")
    ] = None,
    access_log: Annotated[Path | None, _gateway("FILE", "A line of JSON for each request.")] = None,
    resume: Annotated[
        bool, _gateway(None, "Streams go on at another instance if theirs breaks.", "--resume/--no-resume")
    ] = True,
    drain_seconds: Annotated[
        float | None, _gateway("S", "Time that running requests have when it ends (default: 30).")
    ] = None,
    shadow: Annotated[
        str | None,
        _gateway("A,B,...", "Simulate the same requests under other policies, beside; see `headway shadow`."),
    ] = None,
) -> None:
    """Serve a model through vLLM's OpenAI API, with a Headway policy deciding what runs.

    Ends on Ctrl-C or SIGTERM with every process it started; a second one does not wait. All messages are on stderr.
    """
    from headway.engine.settings import EngineSettings
    from headway.explain.trail import KEPT_ENDED
    from headway.policies.hand_off import rules_with
    from headway.policies.presets import POOLED

    def settings(preset: str) -> EngineSettings:
        return EngineSettings(
            policy=preset,
            order=order,
            batching=batching,
            eviction=eviction,
            leaving=tuple(leaving) if leaving else rules_with(preset, hand_off_threshold),
            slo_ttft_s=slo_ttft,
            slo_tbt_s=slo_tbt,
            batch_width=batch_width,
            host_kv=host_memory(host_kv_gib, host_kv_bytes_per_s),
            predictor=predictor,
            length_model=None if length_model is None else str(length_model.absolute()),
            explain=KEPT_ENDED if explain is None else explain,
            records=None if records is None else str(records.absolute()),
            strict=strict,
        )

    flags = GatewayFlags(
        instances=instances,
        pools=pools,
        join=tuple(join or ()),
        router=router,
        tickets=tickets,
        rebalance=rebalance,
        api_keys=api_keys,
        max_queue=max_queue,
        max_age=max_age,
        max_in_flight=max_in_flight,
        max_per_tenant=max_per_tenant,
        max_body_mib=max_body_mib,
        access_log=access_log,
        resume=resume,
        drain_seconds=drain_seconds,
        shadow=shadow,
    )
    words = tuple(vllm_flags or ())
    if model is not None and model.startswith("-"):  # the first of vLLM's flags, where no model was named
        words = (model, *words)
        model = None
    if hand_off_threshold is not None and leaving:
        raise ConfigError("--hand-off-threshold and --leaving are given; accepted: one of the two")
    if hand_off_threshold is not None:
        _check_hands_off(policy or _default_policy(pools), hand_off_threshold)
    if flags.want_gateway:
        raise typer.Exit(_serve_several(model, policy, settings, words, flags, (host, port)))
    flags.check_none_given()
    if model is None:
        raise ConfigError("MODEL is missing; accepted: `demo`, a directory or a hub name, or --join URL")
    if policy in POOLED:
        raise ConfigError(f"policy {policy!r} serves pools; accepted with it: --pools lp=2,hp=1")
    raise typer.Exit(_serve_one(model, settings(policy or "vllm"), words, (host, port)))


def _default_policy(pools: str | None) -> str:
    from headway.routing.pools import STAGES, parse_pools

    return "ascendra" if pools and not STAGES & parse_pools(pools).keys() else "vllm"


def _check_hands_off(policy: str, threshold: float) -> None:
    """Raise ConfigError for a threshold of a policy that hands nobody off by one."""
    from headway.policies.hand_off import hands_off
    from headway.policies.presets import POOLED, known_presets

    if not hands_off(policy):
        handing = ", ".join(name for name in (*POOLED, *known_presets()) if hands_off(name))
        raise ConfigError(
            f"--hand-off-threshold is {threshold:g}, but policy {policy!r} hands nobody off by one; accepted: {handing}"
        )


def _serve_one(
    model: str, settings: EngineSettings, vllm_flags: Sequence[str], address: tuple[str, int]
) -> int:
    """Exit code of one server by itself."""
    from headway.engine.servers.kept_records import put_aside
    from headway.engine.servers.server_command import server_command

    check_address(*address)
    command = server_command(model, settings, address, vllm_flags)
    check_engine_files(command.settings)
    put_aside(command.settings.records)
    typer.echo(introduction(model, base_url(address), command), err=True)
    return _run(command, address)


def _serve_several(
    model: str | None,
    policy: str | None,
    settings: Callable[[str], EngineSettings],
    vllm_flags: tuple[str, ...],
    flags: GatewayFlags,
    address: tuple[str, int],
) -> int:
    """Exit code of a gateway and its instances."""
    from headway.cli import serve_site
    from headway.cli.serve_gateway import run_gateway

    check_address(*address)
    asked = serve_site.Request(model, policy, settings, vllm_flags)
    site = serve_site.build_site(asked, flags, address)
    typer.echo(serve_site.introduction(site, model), err=True)
    return run_gateway(site)


def _run(command: ServerCommand, address: tuple[str, int]) -> int:
    """Exit code of the server."""
    from headway.engine.servers.server_process import GRACE_S, ServerProcess, run_until_signalled

    grace_s = GRACE_S + command.drain_s
    code = run_until_signalled(lambda: ServerProcess(command.arguments, address, grace_s=grace_s))
    if code == 1:
        typer.echo("error: vLLM ended by itself; the reason is in its messages above", err=True)
    return code


def check_address(host: str, port: int) -> None:
    """Raise ConfigError for an address on which a server cannot listen now."""
    if not host:
        raise ConfigError("--host is empty; accepted: an address of this machine, 0.0.0.0 for all")
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
            f"({presets[settings.policy].summary}){_parts(settings)}; "
            f"{targets(settings.slo_ttft_s, settings.slo_tbt_s)}.",
            *([_host_memory(settings.host_kv)] if settings.host_kv is not None else []),
            *_predictions(settings),
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


def _predictions(settings: EngineSettings) -> list[str]:
    predictor = settings.length_predictor()
    if predictor is None:
        return []
    kept = "forgotten at the end" if settings.length_model is None else f"kept in {settings.length_model}"
    return [f"Lengths of answers are predicted with {predictor}; what is learned is {kept}."]


def targets(ttft_s: float | None, tbt_s: float | None) -> str:
    """The targets of requests that name none, for people."""
    both = {"first token within": ttft_s, "time between tokens": tbt_s}
    named = [f"{what} {value_s:g} s" for what, value_s in both.items() if value_s is not None]
    return f"targets: {', '.join(named)}" if named else "no latency targets"


def base_url(address: tuple[str, int]) -> str:
    """Where clients ask a server that listens there."""
    host, port = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
