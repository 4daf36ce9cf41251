"""`headway serve`: vLLM servers under Headway policies: one server, or several behind a gateway."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Given, OptionGroup, flag_name, host_memory
from headway.cli.output import base_url, check_engine_files, engine_here, targets, three_lines
from headway.cli.serve_layout import DEFAULT_POLICY, GatewayFlags, default_policy, off_switch
from headway.engine.host_kv import HostKv
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.policies.pool_settings import PoolSettings
from headway.policies.presets import POOLED, find_preset, known_presets
from headway.routing.pools import parse_pools
from headway.setting import Setting, Shown, ValueBounds, check_settings, settings_of

if TYPE_CHECKING:
    from headway.engine.servers.server_command import ServerCommand

EPILOG = """Examples:

  headway serve demo

  headway serve Qwen/Qwen3-8B --slo-ttft 0.5 --slo-tbt 0.05

  headway serve ./model --policy sarathi -- --max-num-seqs 64 --dtype bfloat16

  headway serve demo --order shortest-prompt --records served.jsonl

  headway serve Qwen/Qwen3-8B --policy adaptivellm-plus --host-kv-gib 16

  headway serve ./model --policy predicted --length-model lengths.headway

Several instances behind one address (the page is at /dashboard):

  headway serve demo --pools lp=1,hp=1 --slo-ttft 1 --slo-tbt 0.15

  headway serve Qwen/Qwen3-8B --instances 4

  headway serve ./model --pools lp=2,hp=1 --api-keys keys.txt --max-queue 500 --max-age 30 -- -tp 2

  headway serve --join lp=http://10.0.0.2:8000 --join hp=http://10.0.0.3:8000

  headway serve ./model --pools prefill=1,decode=1 -- --kv-transfer-config \\
    '{"kv_connector": "NixlConnector"}'

The default policy is `headway`; `--policy vllm` keeps stock vLLM's order. `headway policies` lists all of them and
their parts.
Every flag after `--` is vLLM's own, for every instance. Instances that are launched here have cores
(or GPUs) of their own, and are launched again if they end.
"""

PORTS = range(1024, 65536)
EXPIRED = "expired"
"""The leaving rule that ends waiting requests which can no longer meet a target."""
SERVE_LATE, REFUSE_LATE = "serve", "refuse"
_LATE = ValueBounds(f"{SERVE_LATE} or {REFUSE_LATE}", (SERVE_LATE, REFUSE_LATE).__contains__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """What to serve, at which address, with which settings and instances."""

    model: Annotated[
        str | None,
        Setting(
            "`demo`, `demo-random`, a directory, or a hub name; none if all servers are joined.",
            shown=Shown(argument=True),
        ),
    ] = None
    vllm_flags: Annotated[
        tuple[str, ...],
        Setting("vLLM's own flags, after `--`.", "-- VLLM_FLAGS", shown=Shown(argument=True)),
    ] = ()
    engine: Annotated[Given, OptionGroup(of=EngineSettings)]
    host: Annotated[str, Setting("Address to serve on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, Setting("Port to serve on.")] = 8000
    host_kv: Annotated[Given, OptionGroup(of=HostKv, prefix="host_kv_")]
    pools: Annotated[PoolSettings, OptionGroup()]
    late: Annotated[
        str | None,
        Setting(
            "What becomes of a waiting request that can no longer meet a target: served late, or refused with 429 "
            "(default: as the policy has it; pools of Ascendra refuse).",
            f"{SERVE_LATE}|{REFUSE_LATE}",
            _LATE,
        ),
    ] = None
    gateway: Annotated[GatewayFlags, OptionGroup(panel="Several instances behind one address")]

    @property
    def policy(self) -> str | None:
        """The policy, if the user named one."""
        return self.engine.get("policy")

    def settings(self, preset: str) -> EngineSettings:
        """The settings of an engine under a policy."""
        given = dict(self.engine)
        for name in ("length_model", "records"):  # absolute paths: a server may run in another folder
            if name in given:
                given[name] = str(Path(given[name]).absolute())
        given.setdefault("leaving", self._leaving(preset))
        given.setdefault("batching", self.pools.batching(preset))
        return EngineSettings(**given | {"policy": preset, "host_kv": host_memory(**self.host_kv)})

    def _leaving(self, preset: str) -> tuple[str, ...] | None:
        """The leaving rules that replace the preset's own; None keeps the preset's."""
        rules = self.pools.leaving(preset)
        if self.late is None:
            return rules
        others = [rule for rule in rules or find_preset(preset).leaving if rule != EXPIRED]
        return (*others, EXPIRED) if self.late == REFUSE_LATE else tuple(others)

    def check_late(self) -> None:
        """Raise ConfigError for a bad value of `late`, and for one that no instance would heed."""
        check_settings(self)
        if self.late is None:
            return
        if "leaving" in self.engine:
            raise ConfigError("--late and --leaving are given; accepted: one of the two")
        if self.model is None:
            raise ConfigError(f"--late is {self.late}, but no instance is started here; name a MODEL")

    def check_pool_settings(self) -> None:
        """Raise ConfigError for pool settings without the part that reads them, or that the policy ignores."""
        given = self.pools.given
        for name in given:
            part = "leaving" if name == "hand_off_threshold" else "batching"
            if part in self.engine:
                raise ConfigError(f"{_flag(name)} and --{part} are given; accepted: one of the two")
        pools, batched = self.gateway.pools, self.gateway.central.batches is not None
        policy = self.policy or default_policy(parse_pools(pools).keys() if pools else set(), batched=batched)
        for name in given.keys() - self.pools.heeded_by(policy).keys():
            heeding = [each for each in (*POOLED, *known_presets()) if name in self.pools.heeded_by(each)]
            raise ConfigError(
                f"{_flag(name)} is {given[name]:g}, which makes no difference to policy {policy!r}; accepted with: "
                f"{', '.join(heeding)}"
            )


def serve(flags: ServeFlags) -> None:
    """Serve a model through vLLM's OpenAI API, with a Headway policy deciding what runs.

    Ctrl-C or SIGTERM ends the server and every process it started; a second one does not wait. Messages go to stderr.
    """
    model, words, address = flags.model, flags.vllm_flags, (flags.host, flags.port)
    if model is not None and model.startswith("-"):  # no model was given: this is vLLM's first flag
        words = (model, *words)
        model = None
    flags.check_late()
    flags.check_pool_settings()
    if flags.gateway.want_gateway:
        raise typer.Exit(_serve_several(model, flags.policy, flags.settings, words, flags.gateway, address))
    flags.gateway.check_none_given()
    if model is None:
        raise ConfigError("MODEL is missing; name `demo`, a directory or a hub name, or --join URL")
    if flags.policy in POOLED:
        raise ConfigError(f"policy {flags.policy!r} serves pools; add --pools lp=2,hp=1")
    raise typer.Exit(_serve_one(model, flags.settings(flags.policy or DEFAULT_POLICY), words, address))


def _flag(name: str) -> str:
    return flag_name(name, settings_of(PoolSettings)[name][1])


def _serve_one(
    model: str, settings: EngineSettings, vllm_flags: Sequence[str], address: tuple[str, int]
) -> int:
    """Run one server without a gateway; return its exit code."""
    from headway.engine.servers.server_command import server_command
    from headway.engine.servers.server_process import put_aside

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
    """Run a gateway and its instances; return the exit code."""
    from headway.cli import serve_site
    from headway.cli.serve_gateway import run_gateway

    check_address(*address)
    asked = serve_site.ServeRequest(model, policy, settings, vllm_flags)
    site = serve_site.build_site(asked, flags, address)
    typer.echo(serve_site.introduction(site, model), err=True)
    return run_gateway(site)


def _run(command: ServerCommand, address: tuple[str, int]) -> int:
    """Run the server's command; return its exit code."""
    from headway.engine.servers.server_process import GRACE_S, ServerProcess, run_until_signalled

    grace_s = GRACE_S + command.drain_s
    code = run_until_signalled(lambda: ServerProcess(command.arguments, address, grace_s=grace_s))
    if code == 1:
        typer.echo("error: vLLM ended by itself; the reason is in its messages above", err=True)
    return code


def check_address(host: str, port: int) -> None:
    """Raise ConfigError if a server cannot listen on this address now."""
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
    """Three lines about what is about to run."""
    settings = command.settings
    policy = f"{settings.policy} ({known_presets()[settings.policy].summary}){_parts(settings)}"
    more = [targets(settings.slo_ttft_s, settings.slo_tbt_s), *_predictions(settings)]
    if settings.host_kv is not None:
        more.append(_host_memory(settings.host_kv))
    more += off_switch(settings)
    look = f"{url}/metrics (Prometheus), headway explain --url {url}, headway top --url {url}"
    return three_lines(
        f"{model} at {url}, {engine_here(command.chosen)}",
        "; ".join([policy, *more]),
        f"{look}; with --instances 1 also a dashboard",
    )


def _parts(settings: EngineSettings) -> str:
    """Name the parts that replace the preset's own."""
    parts = {"order": settings.order, "batching": settings.batching, "eviction": settings.eviction}
    named = [f"{kind} {part}" for kind, part in parts.items() if part is not None]
    named += [f"leaving {rule}" for rule in settings.leaving or ()]
    named += [f"tail {settings.tail:g}"] if settings.tail is not None else []
    named += [f"decode share {settings.decode_share}"] if settings.decode_share is not None else []
    return f" with {', '.join(named)}" if named else ""


def _host_memory(host_kv: HostKv) -> str:
    size = f"{host_kv.blocks} KV blocks" if host_kv.gib is None else f"{host_kv.gib:g} GiB"
    limit = "" if host_kv.bytes_per_s is None else f", at {host_kv.bytes_per_s:g} bytes/s at most each way"
    return f"KV of requests that are swapped out: {size} of host memory{limit}"


def _predictions(settings: EngineSettings) -> list[str]:
    predictor = settings.length_predictor()
    if predictor is None:
        return []
    kept = "forgotten at the end" if settings.length_model is None else f"kept in {settings.length_model}"
    return [f"lengths of answers are predicted with {predictor}; what is learned is {kept}"]
