"""Checks and introduces what `headway serve` puts behind one address, before anything starts."""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import msgspec

from headway.cli.batch_flags import CentralFlags
from headway.cli.output import base_url, check_engine_files, engine_here, targets, three_lines
from headway.cli.serve_layout import PARTS, STOCK, GatewayFlags, Place, SiteLayout, off_switch, read_layout
from headway.cli.shadow import LEAST_WINDOW_S
from headway.engine.servers.instances_command import (
    KEY_VARIABLE,
    InstancesPlan,
    LocalInstances,
    bind_instances,
    check_kv_caches,
    check_memory,
)
from headway.engine.servers.kept_instances import InstancesFolder
from headway.engine.servers.server_command import ServerCommand
from headway.engine.servers.vllm_flags import VllmFlag, parse_vllm_flags, value_of
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.gateway.fleet.supervisor import FleetOptions
from headway.gateway.http.keys import Keys, read_keys
from headway.gateway.http.options import Cors, GatewayOptions
from headway.http_client import without_secrets
from headway.lab.grid import parse_policies
from headway.policies.presets import find_preset, known_presets
from headway.predict.lengths.choice import DEFAULT_PREDICTOR, NONE
from headway.routing.pools import STAGES
from headway.routing.scaling import DEFAULT_WINDOW_S

_KEY_FLAG = "--api-key"
"""vLLM's flag: a server that was given a key expects it from the gateway too."""

_CORS_LISTS = {
    "--allowed-origins": "allow_origins",
    "--allowed-methods": "allow_methods",
    "--allowed-headers": "allow_headers",
}
_CREDENTIALS = ("--allow-credentials", "--no-allow-credentials")
"""vLLM's flags for pages of other origins. The gateway applies them, since such pages call the gateway."""


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The user's request: the model and vLLM's flags (for launched instances), and settings for any policy."""

    model: str | None
    policy: str | None
    settings: Callable[[str], EngineSettings]
    vllm_flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """What is served where: the layout, the launcher (None if all instances are joined), and the limits."""

    layout: SiteLayout
    address: tuple[str, int]
    options: GatewayOptions
    fleet_options: FleetOptions
    local: LocalInstances | None = None
    upstream_key: str | None = None
    central: CentralFlags = field(default_factory=CentralFlags)
    rebalances: bool = False
    shadows: tuple[str, ...] = ()
    scale_window_s: float = DEFAULT_WINDOW_S

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return base_url(self.address, tls=self.options.ssl_certfile is not None)


def build_site(asked: ServeRequest, flags: GatewayFlags, address: tuple[str, int]) -> Site:
    """Build the site after every check that is possible before a start. Raises ConfigError."""
    layout = read_layout(
        instances=flags.instances,
        scale=flags.scale,
        pools=flags.pools,
        join=flags.join,
        policy=asked.policy,
        router=flags.router,
        tickets=flags.tickets,
        batched=flags.central.batches is not None,
    )
    asked, central = _central(asked, flags)
    _check_model(asked, flags)
    _check_tls(asked, layout)
    options = _options(asked, flags, layout)
    folder = _folder(flags)
    key = _upstream_key(asked, layout, options.keys, folder)
    return Site(
        layout,
        address,
        options,
        FleetOptions(drain_s=options.drain_s, keeps_instances=folder is not None),
        local=_local(asked, layout, address[1], key, folder) if layout.launched else None,
        upstream_key=key,
        central=central,
        rebalances=_rebalances(flags, layout),
        shadows=_shadows(asked, flags, layout),
        scale_window_s=flags.scale_window,
    )


def introduction(site: Site, model: str | None) -> str:
    """Three lines about what is about to run, then one for each instance, then warnings."""
    layout, count = site.layout, len(site.layout.places)
    commands = _commands(site)
    served = f"{model} from " if model else ""
    engine = f", {engine_here(commands[0].chosen)}" if commands else ""
    policy = f"{layout.policy}, " if layout.launched else ""
    predictors = dict.fromkeys(filter(None, (command.settings.length_predictor() for command in commands)))
    decides = [
        f"{policy}router {layout.router}",
        targets(site.options.slo.ttft_s, site.options.slo.tbt_s),
        *(f"each instance predicts lengths of answers, with {predictor}" for predictor in predictors),
        *_batches(site.central),
        *(off_switch(commands[0].settings) if commands else ()),
    ]
    width = max(len(place.name) for place in layout.places)
    warnings = site.local.binding.warnings if site.local is not None else ()
    return "\n".join(
        [
            three_lines(
                f"{served}{count} instance{'s' if count > 1 else ''} at {site.url}{engine}",
                "; ".join(decides),
                f"{site.url}/dashboard (page), /metrics (Prometheus), /ready; headway top --url {site.url}",
            ),
            *(f"  {place.name:{width}}  {_what(site, place)}" for place in layout.places),
            *(f"Warning: {warning}." for warning in warnings),
            *_kept(site),
        ]
    )


def _batches(central: CentralFlags) -> list[str]:
    """Describe the central queue."""
    if central.batches.batches is None:
        return []
    lengths = "not predicted" if central.predictor is None else f"predicted with {central.predictor}"
    kept = "" if central.length_model is None else f", kept in {central.length_model}"
    return [f"one queue of batches, {central.batches.batches!r}; lengths of answers are {lengths}{kept}"]


def _kept(site: Site) -> list[str]:
    """Describe what happens to the instances when the gateway ends."""
    if site.local is None or site.local.folder is None:
        return []
    running = site.local.folder.running()
    found = f"{', '.join(running)} run already. " if running else ""
    return [f"{found}Instances go on when the gateway ends; their logs are in {site.local.folder.folder}."]


def _what(site: Site, place: Place) -> str:
    """Describe one instance: its policy and devices, or its URL."""
    if place.url is not None:
        return f"joined at {without_secrets(place.url)}"
    assert site.local is not None
    preset = site.layout.presets[place.pool]
    shown = site.local.binding.shown
    devices = f", {shown[site.layout.places.index(place)]}" if shown else ""
    later = "" if site.layout.begins(place) else ", when it is needed"
    return f"{preset} ({known_presets()[preset].summary}){devices}{later}"


def _commands(site: Site) -> list[ServerCommand]:
    if site.local is None:
        return []
    return [site.local.prepare(place.name, place.pool) for place in site.layout.launched]


def _central(asked: ServeRequest, flags: GatewayFlags) -> tuple[ServeRequest, CentralFlags]:
    """Return the central queue, and the request without a predictor: instances behind a queue predict nothing.

    Raises ConfigError for bad batch settings, and for ones that contradict the gateway's.
    """
    if flags.central.batches is None:
        return asked, flags.central.central(None, None)
    if flags.options.get("max_in_flight") is not None:
        raise ConfigError(
            "--max-in-flight with --batches; use --batch-size N, which an instance has at a time"
        )
    given = asked.settings(STOCK)
    predictor = None if given.predictor == NONE else given.predictor or DEFAULT_PREDICTOR
    central = flags.central.central(predictor, given.length_model)

    def settings(preset: str) -> EngineSettings:
        return replace(asked.settings(preset), predictor=NONE, length_model=None)

    return replace(asked, settings=settings), central


def _check_model(asked: ServeRequest, flags: GatewayFlags) -> None:
    """Raise ConfigError if launched instances lack a model, or if instance settings are given and none is launched."""
    if flags.launches and asked.model is None:
        raise ConfigError("MODEL is missing; write headway serve MODEL --pools lp=1,hp=1")
    if flags.launches:
        return
    given = parse_vllm_flags(asked.vllm_flags)
    if asked.model is not None or any(flag.name not in {*_CORS_LISTS, *_CREDENTIALS} for flag in given):
        words = " ".join(filter(None, [asked.model, *asked.vllm_flags]))
        raise ConfigError(
            f"no instance is started here, so {words!r} has no use: joined servers have their model. Accepted: "
            "--instances N or --pools beside it, or --join alone"
        )
    settings, without = asked.settings(STOCK), EngineSettings()
    predictor = None if settings.predictor == NONE else settings.predictor  # no instance here would use it
    if replace(settings, slo_ttft_s=None, slo_tbt_s=None, predictor=predictor) != without:
        raise ConfigError(
            "settings of an engine (--records, --batch-width, --host-kv-gib, --order, ...) are for instances that are "
            "started here; joined servers keep their own. Accepted: --instances N or --pools"
        )


def _local(
    asked: ServeRequest, layout: SiteLayout, port: int, key: str | None, folder: InstancesFolder | None
) -> LocalInstances:
    """Build the launcher after checking the command of every instance."""
    assert asked.model is not None
    settings = {pool: asked.settings(preset) for pool, preset in layout.presets.items()}
    # Stock order has no rules of its own, so any part found under it was named by the user.
    named = asked.settings(STOCK)
    for pool in settings:
        if pool not in ("", *STAGES) and any(getattr(named, part) is not None for part in PARTS):
            raise ConfigError(
                "--order, --batching, --eviction, --leaving, --tail or --decode-share with --pools: each pool has "
                "parts of its own; use a --policy made for pools, as `headway policies` lists them"
            )
    own_key = key is not None and key not in _instances_keys(asked.vllm_flags)
    words = _without(_KEY_FLAG, asked.vllm_flags) if own_key else asked.vllm_flags
    plan = InstancesPlan(asked.model, settings, words)
    count = len(layout.launched)
    check_memory(next(iter(settings.values())), count)
    check_kv_caches(plan, count)
    binding = bind_instances(plan, count)
    local = LocalInstances(plan, binding, port + 1, api_key=key if own_key else None, folder=folder)
    for place in layout.launched:
        check_engine_files(local.prepare(place.name, place.pool).settings)
    local.check_running([(place.name, place.pool) for place in layout.launched])
    return local


def _folder(flags: GatewayFlags) -> InstancesFolder | None:
    """The folder that keeps instances. Raises ConfigError for joined instances, and for roles that change."""
    if flags.keep_instances is None:
        return None
    if not flags.launches or flags.rebalance:
        needed = "use it with --instances N or --pools, and without --rebalance"
        raise ConfigError.of("keep_instances", f"{flags.keep_instances}; {needed}")
    return InstancesFolder(flags.keep_instances)


def _options(asked: ServeRequest, flags: GatewayFlags, layout: SiteLayout) -> GatewayOptions:
    options = GatewayOptions(
        slo=asked.settings(STOCK).default_slo(),
        keys=_keys(asked, flags, layout),
        cors=_cors(parse_vllm_flags(asked.vllm_flags)),
        **flags.options,
    )
    if options.ssl_certfile is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certfile, options.ssl_keyfile)
        except OSError as error:  # ssl's own errors are OSErrors too
            files = " and ".join(str(file) for file in (options.ssl_certfile, options.ssl_keyfile) if file)
            raise ConfigError.of("ssl_certfile", f"no certificate with its key ({files}: {error})") from None
    return options


def _cors(flags: Sequence[VllmFlag]) -> Cors | None:
    """The origins that vLLM's flags allow; None, vLLM's default, if `--allowed-origins` names none.

    Raises ConfigError for a list that vLLM would not read.
    """
    lists: dict[str, tuple[str, ...]] = {}
    for name, wanted in _CORS_LISTS.items():
        text = value_of(flags, name)
        if text is None:
            continue
        try:
            found = msgspec.json.decode(text, type=list[str] | str)
        except msgspec.DecodeError:
            raise ConfigError.of(name, repr(text), "a JSON list of texts, as '[\"*\"]'") from None
        lists[wanted] = (found,) if isinstance(found, str) else tuple(found)
    if not lists.get("allow_origins"):
        return None
    credentials = [flag.name for flag in flags if flag.name in _CREDENTIALS]
    return Cors(**lists, allow_credentials=credentials[-1:] == [_CREDENTIALS[0]])


def _keys(asked: ServeRequest, flags: GatewayFlags, layout: SiteLayout) -> Keys:
    """The clients' keys: the gateway's own, else those that vLLM's flags demand."""
    keys = read_keys(flags.api_keys, os.environ)
    if keys or not layout.launched:
        return keys
    return Keys(dict.fromkeys((key.encode() for key in _instances_keys(asked.vllm_flags)), ""))


def _instances_keys(vllm_flags: Sequence[str]) -> tuple[str, ...]:
    """The keys that the instances demand, read as vLLM reads them."""
    given = [flag.values for flag in parse_vllm_flags(vllm_flags) if flag.name == _KEY_FLAG and flag.values]
    return tuple(filter(None, given[-1] if given else [os.environ.get(KEY_VARIABLE)]))


def _upstream_key(
    asked: ServeRequest, layout: SiteLayout, keys: Keys, folder: InstancesFolder | None
) -> str | None:
    """The key that the gateway sends to instances.

    If the gateway demands keys, launched instances get a random one that only the gateway knows. A key for joined
    servers, or one in vLLM's own configuration file, is used for all instead.
    """
    given = next(reversed(_instances_keys(asked.vllm_flags)), None)
    in_file = any(flag.name == _KEY_FLAG and not flag.words for flag in parse_vllm_flags(asked.vllm_flags))
    shared = given is not None and (bool(layout.joined) or in_file)
    if not keys or not layout.launched or shared:
        return given
    return secrets.token_urlsafe() if folder is None else folder.key()


def _without(name: str, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for flag in parse_vllm_flags(words) if flag.name != name for word in flag.words)


def _check_tls(asked: ServeRequest, layout: SiteLayout) -> None:
    """Raise ConfigError if launched instances would serve HTTPS: clients connect to the gateway."""
    told = [flag.name for flag in parse_vllm_flags(asked.vllm_flags) if flag.name.startswith("--ssl-")]
    if layout.launched and told:
        raise ConfigError(
            f"{told[0]} after the `--` is for instances, which are asked on this machine alone; put "
            "--ssl-certfile FILE --ssl-keyfile FILE before the `--`"
        )


def _shadows(asked: ServeRequest, flags: GatewayFlags, layout: SiteLayout) -> tuple[str, ...]:
    """The policies to simulate beside. Raises ConfigError for an unknown policy, and if there would be nothing to
    simulate.
    """
    if flags.shadow is None and layout.scale is None:
        return ()
    if not LEAST_WINDOW_S <= flags.scale_window < inf:
        raise ConfigError(f"--scale-window is {flags.scale_window:g}; accepted: {LEAST_WINDOW_S:g} s or more")
    flag = "--scale" if flags.shadow is None else "--shadow"
    found = () if flags.shadow is None else parse_policies(flags.shadow, "--shadow")
    for name in found:
        find_preset(name)
    if any(place.pool in STAGES for place in layout.places):
        raise ConfigError(
            "--shadow with the pools prefill and decode: a shadow would take the two stages of a request for two "
            "requests; leave out --shadow"
        )
    if layout.launched and not asked.settings(STOCK).explain:
        raise ConfigError(f"{flag} with --explain 0: shadows are told of followed requests; use --explain N")
    return found


def _rebalances(flags: GatewayFlags, layout: SiteLayout) -> bool:
    if flags.rebalance and (len(layout.presets) < 2 or layout.presets.keys() & STAGES):
        raise ConfigError("--rebalance moves instances between pools; add --pools lp=N,hp=M")
    return flags.rebalance
