"""Real instances on this machine, each on cores of its own, and a gateway in front of them for each system."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
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
from headway.routing.pools import instance_names, pool_of
from headway_reproduce.ascendra.real_systems import SERVICES, SYSTEMS, RealService, RealSystem, pool_sizes

VLLM_FLAGS = ("--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20))
"""Everything else is vLLM's default. A stream is sent to the same instances more than once, so no prefix is kept."""
SETTLE_S = 30.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AscendraServers:
    """What runs: the instances of each service by name, and the gateway of each system."""

    instances: Mapping[str, Mapping[str, RunningServer]]
    gateways: Mapping[str, RunningServer]


@contextmanager
def fleet(systems: Iterable[str], instances: int, logs: Path, tell: Tell) -> Iterator[AscendraServers]:
    """Start what the systems need, side by side; everything ends with the block.

    Instances that are not asked anything are idle, so all stay up while the systems take turns. Each instance
    computes on cores of its own, shared only where there are fewer cores than instances of one service. What the
    servers say goes to files in `logs`. Raises UpstreamError if one does not start.
    """
    chosen = {name: SYSTEMS[name] for name in systems}
    with ExitStack() as stack:
        started = {
            name: start_instances(stack, name, SERVICES[name], instances, logs)
            for name in {system.service: None for system in chosen.values()}
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
            name: stack.enter_context(gateway(name, system, running[system.service], logs))
            for name, system in chosen.items()
        }
        yield AscendraServers(running, gateways)


def start_instances(
    stack: ExitStack,
    name: str,
    service: RealService,
    count: int,
    logs: Path,
    vllm_flags: Sequence[str] = VLLM_FLAGS,
) -> dict[str, ServerProcess]:
    """Servers that were started and are not ready yet, by the names that a gateway gives those that join."""
    binding = bind_cores(Workers(count), usable_cores())
    started: dict[str, ServerProcess] = {}
    for index, instance in enumerate(instance_names(pool_sizes(service, count))):
        settings = EngineSettings(policy=service.presets[pool_of(instance)], leaving=service.leaving)
        address = ("127.0.0.1", free_port())
        command = server_command(DEMO, settings, address, vllm_flags)
        log = stack.enter_context((logs / f"{name}-{instance}.log").open("wb"))
        started[instance] = stack.enter_context(
            ServerProcess(command.arguments, address, environment=binding.environment(index), log=log)
        )
    return started


@contextmanager
def gateway(
    name: str, system: RealSystem, instances: Mapping[str, RunningServer], logs: Path
) -> Iterator[RunningServer]:
    """A gateway over these instances, once it is ready. Raises UpstreamError if it does not get ready."""
    port = free_port()
    log = logs / f"{name.replace(' ', '-')}-gateway.log"
    with command_server(
        gateway_command(system, instances, port),
        port,
        log,
        name=f"the gateway of {name}",
        ready=lambda url: ready_instances(url) >= len(instances),
    ) as server:
        yield server


def gateway_command(system: RealSystem, instances: Mapping[str, RunningServer], port: int) -> list[str]:
    """`headway serve` with everything joined: it launches nothing itself."""
    joined: list[str] = []
    for name, place in instances.items():
        pool = pool_of(name)
        joined += ["--join", f"{pool}={place.url}" if pool else place.url]
    return headway_command("serve", *joined, "--router", system.router, "--port", str(port))


class GatewayInstance(msgspec.Struct):
    """An instance as its gateway sees it: `served` requests got their answer there, `in_flight` wait for it."""

    name: str
    condition: str
    in_flight: int
    served: int


class HandOffs(msgspec.Struct):
    """Requests that one instance gave up and another took."""

    total: int


class GatewayState(msgspec.Struct):
    """What a gateway says of itself on `/dashboard/state`, as far as it is of interest here."""

    instances: list[GatewayInstance]
    hand_offs: list[HandOffs]


def gateway_state(url: str) -> GatewayState | None:
    """What a gateway says of itself; None where it does not answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5.0)
    try:
        connection.request("GET", "/dashboard/state")
        return msgspec.json.decode(connection.getresponse().read(), type=GatewayState)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


def settled_state(url: str) -> GatewayState:
    """What a gateway says of itself once nothing is in flight there. Raises UpstreamError if that does not come."""
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        state = gateway_state(url)
        if state is not None and not any(each.in_flight for each in state.instances):
            return state
        time.sleep(_POLL_S)
    raise UpstreamError(f"the gateway at {url} does not come to rest within {SETTLE_S:g} s")


def ready_instances(url: str) -> int:
    """How many instances a gateway says are ready; 0 where it does not answer."""
    state = gateway_state(url)
    return 0 if state is None else sum(each.condition == "ready" for each in state.instances)
