"""Derives from the flags of `headway serve` which instances stand behind one address, and under which policies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from headway.cli.batch_flags import BatchFlags
from headway.cli.options import Given, OptionGroup, flag_name
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.gateway.http.options import GatewayOptions
from headway.policies.presets import POOLED
from headway.routing import DEFAULT_ROUTER, POOL_ROUTER, STAGE_ROUTER, build_router
from headway.routing.pools import (
    DECODE,
    PREFILL,
    STAGES,
    PoolSizes,
    check_low_priority,
    instance_name,
    parse_pools,
)
from headway.routing.scaling import DEFAULT_WINDOW_S, Bounds
from headway.setting import Setting, Shown, settings_of

NO_POOL = ""
NO_TICKET_ROUTER = "ascendra-no-ticket"
DEFAULT_POLICY = "headway"
STOCK = "vllm"
POOLED_POLICY = "ascendra"
BATCHED_POLICY = "batched"
BATCHED_ROUTER = "least-work"
"""Router for requests that are in no batch."""
PARTS = ("order", "batching", "eviction", "leaving", "tail", "decode_share")
"""Settings that replace a part of the policy."""


def default_policy(pools: Set[str], *, batched: bool) -> str:
    """The policy of instances in these pools if the user names none; NO_POOL stands for instances in no pool."""
    if pools - {NO_POOL} and not pools & STAGES:
        return POOLED_POLICY
    return BATCHED_POLICY if batched else DEFAULT_POLICY


def off_switch(settings: EngineSettings) -> list[str]:
    """What a start line says of the default policy: how to have stock order instead; nothing beside other parts."""
    named = any(getattr(settings, part) is not None for part in PARTS)
    return [f"stock order: --policy {STOCK}"] if settings.policy == DEFAULT_POLICY and not named else []


@dataclass(frozen=True, slots=True)
class Place:
    """One instance: launched here, or joined at its URL."""

    name: str
    pool: str
    url: str | None = None


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """All instances (launched ones first), the policy's name, pool -> preset for launched instances, and the router.

    `scale` bounds the recommended number of instances, if there is a recommendation. With `elastic` the gateway follows
    it, and `places` holds as many instances as its maximum.
    """

    places: tuple[Place, ...]
    policy: str
    presets: Mapping[str, str]
    router: str
    scale: Bounds | None = None
    elastic: bool = False

    def begins(self, place: Place) -> bool:
        """Whether an instance is launched at start. The others are launched when they are needed."""
        return not self.elastic or self.scale is None or self.places.index(place) < self.scale.floor

    @property
    def launched(self) -> tuple[Place, ...]:
        """The instances that are started here."""
        return tuple(place for place in self.places if place.url is None)

    @property
    def joined(self) -> tuple[Place, ...]:
        """The instances that already run elsewhere."""
        return tuple(place for place in self.places if place.url is not None)


def read_layout(
    *,
    instances: str | None = None,
    scale: str | None = None,
    pools: str | None = None,
    join: Sequence[str] = (),
    policy: str | None = None,
    router: str | None = None,
    tickets: bool = True,
    batched: bool = False,
) -> SiteLayout:
    """Read the layout from the flags of `headway serve`. Raises ConfigError if they contradict one another."""
    if instances is not None and pools is not None:
        raise ConfigError("--instances and --pools are both given; accepted: one of them (--pools lp=2,hp=1)")
    count = None if instances is None else Bounds.parse(instances, "--instances")
    joined = [_joined(text) for text in join]
    _check_urls(joined)
    pooled = pools is not None or any(pool for pool, _ in joined)
    sizes: PoolSizes = {NO_POOL: count.ceiling} if count is not None else parse_pools(pools) if pools else {}
    given = {*sizes, *(pool for pool, _ in joined)}
    _check_pools(pooled, given)
    bounds = _scale(count, scale, pooled=pooled, joined=bool(joined), batched=batched)
    if batched:
        _check_batched(pooled, router)
        router = BATCHED_ROUTER
    staged = bool(given & STAGES)
    by_urgency = pooled and not staged
    if policy is not None and not sizes:
        raise ConfigError(
            f"--policy is {policy!r}, but no instance is started here; joined servers keep the policy they were "
            "started with. Add --instances or --pools, or leave out --policy"
        )
    name = policy or default_policy(given, batched=batched)
    return SiteLayout(
        tuple(_places(sizes, joined)),
        name,
        _presets(name, sizes, pooled=by_urgency),
        _router(router, pooled=pooled, staged=staged, tickets=tickets),
        bounds,
        elastic=bounds is not None and scale is None,
    )


def _scale(
    count: Bounds | None, scale: str | None, *, pooled: bool, joined: bool, batched: bool
) -> Bounds | None:
    """The bounds of `--instances MIN..MAX` or `--scale`. Raises ConfigError unless all instances are alike."""
    ranged = count is not None and count.floor < count.ceiling
    if not ranged and scale is None:
        return None
    flag = "--instances MIN..MAX" if ranged else "--scale"
    if pooled or batched or (ranged and (joined or scale is not None)):
        other = "pools" if pooled else "--batches" if batched else "--join" if joined else "--scale"
        raise ConfigError(
            f"{flag} with {other}; accepted: --instances MIN..MAX alone, or --scale MIN..MAX with --instances N or "
            "--join URL"
        )
    return count if scale is None else Bounds.parse(scale, "--scale")


def _check_batched(pooled: bool, router: str | None) -> None:
    """Raise ConfigError for flags that tell instances apart: a central queue of batches needs equal ones."""
    if pooled:
        raise ConfigError("--batches with pools; use --instances N or --join URL, all alike")
    if router is not None:
        raise ConfigError(
            f"--batches with --router {router}; accepted: one of the two, which say where requests go"
        )


def _joined(text: str) -> tuple[str, str]:
    """Split a `--join` into pool (may be empty) and URL."""
    pool, _, url = (NO_POOL, "", text) if "://" in text.partition("=")[0] else text.partition("=")
    if pool:
        parse_pools(f"{pool}=1")
    if not re.match("https?://[^/]", url):
        raise ConfigError(f"--join is {text!r}; accepted: URL or POOL=URL, as hp=http://10.0.0.2:8000")
    return pool, url.rstrip("/").removesuffix("/v1")


def _check_urls(joined: Sequence[tuple[str, str]]) -> None:
    urls = [url for _, url in joined]
    for url in urls:
        if urls.count(url) > 1:
            raise ConfigError(f"--join names {url} twice; name each server once")


def _check_pools(pooled: bool, given: Set[str]) -> None:
    """Raise ConfigError if only some instances are in a pool, or if a stage has no instances."""
    if pooled and NO_POOL in given:
        raise ConfigError(
            "some instances are in a pool and some are not; name a pool for each (--pools, --join POOL=URL), or "
            "for none (--instances, --join URL)"
        )
    check_low_priority(given)
    if given & STAGES and given != STAGES:
        raise ConfigError(
            f"pools are {', '.join(sorted(given))}; accepted: {PREFILL} and {DECODE} together, and no other pool"
        )


def _presets(policy: str, sizes: PoolSizes, *, pooled: bool) -> Mapping[str, str]:
    """Pool -> preset of the instances launched there."""
    if not pooled:
        if policy in POOLED:
            raise ConfigError(f"policy {policy!r} serves pools; add --pools lp=2,hp=1")
        return dict.fromkeys(sizes, policy)
    if not sizes:
        return {}
    if policy not in POOLED:
        return dict.fromkeys(sizes, policy)
    if unknown := [pool for pool in sizes if pool not in POOLED[policy]]:
        served = ", ".join(POOLED[policy])
        raise ConfigError(f"policy {policy!r} has none for pool {unknown[0]!r}; accepted: {served}")
    return {pool: POOLED[policy][pool] for pool in sizes}


def _router(router: str | None, *, pooled: bool, staged: bool, tickets: bool) -> str:
    chosen = router or (STAGE_ROUTER if staged else POOL_ROUTER if pooled else DEFAULT_ROUTER)
    if not tickets:
        if chosen != POOL_ROUTER:
            raise ConfigError(f"--no-tickets with router {chosen!r}; use router {POOL_ROUTER}")
        chosen = NO_TICKET_ROUTER
    build_router(chosen)
    if staged != (chosen == STAGE_ROUTER):
        needed = f"router {STAGE_ROUTER!r}" if staged else f"--pools {PREFILL}=1,{DECODE}=1"
        pools = "the pools prefill and decode" if staged else "other instances"
        raise ConfigError.of("router", f"{chosen!r} with {pools}", needed)
    if not pooled and chosen in (POOL_ROUTER, NO_TICKET_ROUTER):
        raise ConfigError(f"router {chosen!r} tells pools apart, and there are none; add --pools")
    return chosen


def _places(sizes: PoolSizes, joined: Sequence[tuple[str, str]]) -> list[Place]:
    """Name every instance by pool and number, launched ones of a pool first."""
    numbers: dict[str, int] = {}

    def place(pool: str, url: str | None = None) -> Place:
        number = numbers.get(pool, 0)
        numbers[pool] = number + 1
        return Place(instance_name(pool, number), pool, url)

    launched = [place(pool) for pool, count in sizes.items() for _ in range(count)]
    return [*launched, *(place(pool, url) for pool, url in joined)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFlags:
    """The gateway's flags as given; `options` go to the gateway itself."""

    instances: Annotated[
        str | None,
        Setting("Instances to launch, all alike; of MIN..MAX as many as demand needs.", "N|MIN..MAX"),
    ] = None
    scale: Annotated[
        str | None,
        Setting("Say at /v1/scale how many instances are needed, and start none.", "MIN..MAX"),
    ] = None
    scale_window: Annotated[
        float, Setting("Seconds of requests by which the number of instances is judged.", "S")
    ] = DEFAULT_WINDOW_S
    pools: Annotated[
        str | None,
        Setting("Instances to launch in each pool: lp=2,hp=1, or prefill=1,decode=1.", "POOL=N,..."),
    ] = None
    join: Annotated[tuple[str, ...], Setting("A server that runs already; repeatable.", "[POOL=]URL")] = ()
    router: Annotated[
        str | None,
        Setting(
            "How instances share requests (default: cache-aware; with pools ascendra or prefill-decode).",
            "NAME",
        ),
    ] = None
    tickets: Annotated[
        bool,
        Setting(
            "Let new requests go to high-priority instances that wait for work.",
            shown=Shown(flag="--tickets/--no-tickets"),
        ),
    ] = True
    central: Annotated[BatchFlags, OptionGroup()] = field(default_factory=BatchFlags)
    keep_instances: Annotated[
        Path | None,
        Setting(
            "Let instances outlive the gateway. The next one with this FOLDER finds them again.", "FOLDER"
        ),
    ] = None
    rebalance: Annotated[bool, Setting("Move instances between pools when one is short of time.")] = False
    api_keys: Annotated[
        Path | None,
        Setting(
            "File of lines KEY [TENANT]; or HEADWAY_API_KEYS. Without keys, vLLM's --api-key counts; "
            "without that, every client may ask.",
            "FILE",
        ),
    ] = None
    options: Annotated[Given, OptionGroup(of=GatewayOptions)] = field(default_factory=dict)
    shadow: Annotated[
        str | None,
        Setting(
            "Simulate the same requests under these policies beside serving; see `headway shadow`.", "A,B,..."
        ),
    ] = None

    @property
    def launches(self) -> bool:
        """Whether any instance is started here."""
        return self.instances is not None or self.pools is not None

    @property
    def want_gateway(self) -> bool:
        """Whether there is a gateway; otherwise one server runs by itself."""
        return self.launches or bool(self.join)

    def check_none_given(self) -> None:
        """Raise ConfigError if a gateway flag was given without a gateway."""
        self.central.check()
        default = GatewayFlags()
        given = [
            flag_name(name, setting, negated=value is False)
            for name, (_, setting) in settings_of(GatewayFlags).items()
            if (value := getattr(self, name)) != getattr(default, name)
        ]
        defaults = GatewayOptions()
        given += [
            flag_name(name, settings_of(GatewayOptions)[name][1], negated=value is False)
            for name, value in self.options.items()
            if value != getattr(defaults, name)
        ]
        if given:
            raise ConfigError(
                f"{given[0]} is for several instances behind one address; add --instances, --pools or --join"
            )
