"""Real instances on this machine, each on cores of its own, and a gateway in front of them for each system."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from headway.engine.demo_model import DEMO
from headway.engine.servers.instances_command import Workers, bind_cores, usable_cores
from headway.engine.servers.server_command import server_command
from headway.engine.servers.server_process import ServerProcess
from headway.engine.settings import EngineSettings
from headway.errors import UpstreamError
from headway.lab.papers import Tell
from headway.lab.server import START_TIMEOUT_S, RunningServer, command_server, free_port, headway_command
from headway.policies.presets import POOLED
from headway.routing.pools import HP, LP, PoolSizes, instance_names, pool_of

ASCENDRA, VLLM = "ascendra", "vllm"
SERVICES: Mapping[str, Mapping[str, str]] = {ASCENDRA: POOLED[ASCENDRA], VLLM: {"": VLLM}}
"""Schedules of a set of instances: pool -> preset. Instances of the one pool `""` are all alike."""
DROP = ("expired",)
"""Requests still waiting past their TTFT target leave (Ascendra section 3.9); Ascendra's own presets have this rule
too.
"""


class RealSystem(NamedTuple):
    """A gateway over the instances of a service, and its router."""

    service: str
    router: str


SYSTEMS = {
    ASCENDRA: RealSystem(ASCENDRA, ASCENDRA),
    "vllm round-robin, drop": RealSystem(VLLM, "round-robin"),
    "vllm least-work, drop": RealSystem(VLLM, "least-work"),
}
"""The compared systems. All drop requests still waiting past their TTFT target, as in the paper's overload."""

VLLM_FLAGS = ("--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20))
"""Everything else is vLLM's default. A stream is sent to the same instances more than once, so no prefix is kept."""
SETTLE_S = 30.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AscendraServers:
    """The running servers: the instances of each service by name, and the gateway of each system."""

    instances: Mapping[str, Mapping[str, RunningServer]]
    gateways: Mapping[str, RunningServer]


@contextmanager
def fleet(instances: int, logs: Path, tell: Tell) -> Iterator[AscendraServers]:
    """Start the servers of all systems, side by side; everything ends with the block.

    Instances without requests are idle, so all stay up while the systems take turns. Each instance computes on cores of
    its own, shared only where there are fewer cores than instances of one service. The servers' output goes to files in
    `logs`. Raises UpstreamError if one does not start.
    """
    with ExitStack() as stack:
        started = {
            name: start_instances(
                stack, name, presets, instances, logs, leaving=DROP if name == VLLM else None
            )
            for name, presets in SERVICES.items()
        }
        for name, servers in started.items():
            for server in servers.values():
                server.wait_ready(START_TIMEOUT_S)
            tell(f"{name}: {', '.join(servers)} serve")
        running = {
            name: {instance: RunningServer(server.url, server.pid) for instance, server in servers.items()}
            for name, servers in started.items()
        }
        gateways = {
            name: stack.enter_context(gateway(name, system.router, running[system.service], logs))
            for name, system in SYSTEMS.items()
        }
        yield AscendraServers(running, gateways)


def pool_sizes(presets: Mapping[str, str], instances: int) -> PoolSizes:
    """The sizes of the pools for this many instances: one is for high priority, all others for low."""
    return dict.fromkeys(presets, instances) if len(presets) == 1 else {LP: instances - 1, HP: 1}


def start_instances(
    stack: ExitStack,
    name: str,
    presets: Mapping[str, str],
    count: int,
    logs: Path,
    vllm_flags: Sequence[str] = VLLM_FLAGS,
    *,
    leaving: tuple[str, ...] | None = None,
) -> dict[str, ServerProcess]:
    """Start servers without waiting until they are ready, by the names that a gateway gives to joining instances.

    `leaving` are rules that replace the presets' own.
    """
    binding = bind_cores(Workers(count), usable_cores())
    started: dict[str, ServerProcess] = {}
    for index, instance in enumerate(instance_names(pool_sizes(presets, count))):
        settings = EngineSettings(policy=presets[pool_of(instance)], leaving=leaving)
        address = ("127.0.0.1", free_port())
        command = server_command(DEMO, settings, address, vllm_flags)
        log = stack.enter_context((logs / f"{name}-{instance}.log").open("wb"))
        started[instance] = stack.enter_context(
            ServerProcess(command.arguments, address, environment=binding.environment(index), log=log)
        )
    return started


@contextmanager
def gateway(
    name: str, router: str, instances: Mapping[str, RunningServer], logs: Path
) -> Iterator[RunningServer]:
    """A gateway over these instances, once it is ready. Raises UpstreamError if it does not get ready."""
    port = free_port()
    log = logs / f"{name.replace(' ', '-')}-gateway.log"
    with command_server(
        gateway_command(router, instances, port),
        port,
        log,
        name=f"the gateway of {name}",
        ready=lambda url: ready_instances(url) >= len(instances),
    ) as server:
        yield server


def gateway_command(router: str, instances: Mapping[str, RunningServer], port: int) -> list[str]:
    """`headway serve` with everything joined: it launches nothing itself."""
    joined: list[str] = []
    for name, place in instances.items():
        pool = pool_of(name)
        joined += ["--join", f"{pool}={place.url}" if pool else place.url]
    return headway_command("serve", *joined, "--router", router, "--port", str(port))


class GatewayInstance(msgspec.Struct):
    """An instance as its gateway sees it: `in_flight` requests wait for their answer there."""

    name: str
    condition: str
    in_flight: int


class GatewayState(msgspec.Struct):
    """The part of a gateway's `/dashboard/state` that is of interest here."""

    instances: list[GatewayInstance]


def gateway_state(url: str) -> GatewayState | None:
    """A gateway's state; None where it does not answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5.0)
    try:
        connection.request("GET", "/dashboard/state")
        return msgspec.json.decode(connection.getresponse().read(), type=GatewayState)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


def settle(url: str) -> None:
    """Wait until nothing is in flight at a gateway. Raises UpstreamError if that does not happen."""
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        state = gateway_state(url)
        if state is not None and not any(each.in_flight for each in state.instances):
            return
        time.sleep(_POLL_S)
    raise UpstreamError(f"the gateway at {url} does not come to rest within {SETTLE_S:g} s")


def ready_instances(url: str) -> int:
    """The number of ready instances according to a gateway; 0 where it does not answer."""
    state = gateway_state(url)
    return 0 if state is None else sum(each.condition == "ready" for each in state.instances)
