"""Programs that a storm runs in place of vLLM and `headway serve`: `storm_servers.py gateway PORT POOLS ACCESS_LOG
[KEYS]`.

With a file of keys the gateway has few files and little room, so that attackers reach its limits.

The gateway is the one of `headway serve --pools`, except that it launches small instances in vLLM's place, and checks
health at a pace that suits instances which start in a second. Each instance is `storm_servers.py --end-with-parent PID
... --port PORT`: it answers as vLLM does, always the same to the same prompt, with `$STORM_DELAY_S` before each token.
Requests with a target for their first token that may move are handed off now and then, as by a policy that sees them
running late, and a few expire. SIGUSR1 makes it answer garbage for a while: text that is no JSON, half an event, an end
in the middle, HTTP errors.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from aiohttp import web

from bench.right.storm_hostile import BODY_MIB, BUFFERED_MIB, FILES, PER_TENANT
from headway.engine.servers.launcher import end_with_parent
from tests.gateway.upstream import Turn, upstream

GARBAGE_S = 3.0
HANDED_OFF_SHARE = 0.2
EXPIRED_SHARE = 0.02
"""Share of expired requests, among those with a target for their first token."""
DELAY = "STORM_DELAY_S"


class Moods:
    """How an instance answers: with garbage until some time has passed, else in full, unless the policy gives the
    request up.
    """

    def __init__(self) -> None:
        self._garbage_until_s = 0.0
        self._rng = random.Random(os.getpid())

    def begin_garbage(self) -> None:
        """Answer garbage from now on for a while."""
        self._garbage_until_s = time.monotonic() + GARBAGE_S

    async def act(self, turn: Turn) -> None:
        """Give one answer."""
        late = "headway_ttft_ms" in turn.xargs and self._rng.random()
        if time.monotonic() < self._garbage_until_s:
            kinds = [self._page, self._half_an_event, self._cut, self._half_an_object, self._error]
            await self._rng.choice(kinds)(turn)
        elif late > 1 - HANDED_OFF_SHARE and turn.xargs.get("headway_may_move"):
            await turn.leave("handed_off")
        elif 0 < late < EXPIRED_SHARE:
            await turn.leave("expired")
        else:
            await turn.answer()

    async def _page(self, turn: Turn) -> None:
        turn.response = web.Response(text="<html>not what you asked for</html>", content_type="text/html")

    async def _half_an_event(self, turn: Turn) -> None:
        turn.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await turn.response.prepare(turn.request)
        await turn.raw(b'data: {"id": "x", "choi')

    async def _cut(self, turn: Turn) -> None:
        await turn.begin()  # a stream, also for a request that asked for none
        await turn.token()
        turn.die()

    async def _half_an_object(self, turn: Turn) -> None:
        turn.response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await turn.response.prepare(turn.request)
        await turn.raw(b'{"id": "x", "choices": [')
        turn.die()

    async def _error(self, turn: Turn) -> None:
        await turn.refuse(500, b"\xff\xfe no text either")


async def serve(port: int, delay_s: float) -> None:
    """Serve until killed."""
    moods = Moods()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, moods.begin_garbage)
    async with upstream(port=port, delay_s=delay_s, act=moods.act):
        await asyncio.Event().wait()


def gateway(port: int, pools: str, access_log: Path, keys: Path | None) -> int:
    """Run the gateway; return its exit code."""
    # Instances start sooner without these modules, which they do not need.
    from headway.cli.serve_gateway import run_gateway
    from headway.cli.serve_layout import read_layout
    from headway.cli.serve_site import Site
    from headway.engine.servers.instances_command import Binding, InstancesPlan, LocalInstances
    from headway.engine.settings import EngineSettings
    from headway.gateway.fleet.supervisor import FleetOptions
    from headway.gateway.http.keys import read_keys
    from headway.gateway.http.options import GatewayOptions

    fleet = FleetOptions(
        interval_s=0.2,
        timeout_s=1.0,
        misses=2,
        frozen_s=10.0,
        garbage_pause_s=1.0,
        backoff_s=0.2,
        longest_backoff_s=2.0,
    )
    layout = read_layout(pools=pools)
    settings = {pool: EngineSettings(policy=policy) for pool, policy in layout.presets.items()}
    plan = InstancesPlan(str(Path(__file__).parent), settings)
    local = LocalInstances(plan, Binding(), port + 1, program=(sys.executable, __file__))
    options = GatewayOptions(access_log=access_log, max_queue=500)
    if keys is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
        options = replace(
            options,
            keys=read_keys(keys, {}),
            max_body_mib=BODY_MIB,
            max_buffered_mib=BUFFERED_MIB,
            max_per_tenant=PER_TENANT,
        )
    return run_gateway(Site(layout, ("127.0.0.1", port), options, fleet, local=local))


if __name__ == "__main__":
    if sys.argv[1] == "gateway":
        port, pools, log, *keys = sys.argv[2:]
        sys.exit(gateway(int(port), pools, Path(log), Path(keys[0]) if keys else None))
    end_with_parent(int(sys.argv[2]))
    asyncio.run(serve(int(sys.argv[sys.argv.index("--port") + 1]), float(os.environ[DELAY])))
