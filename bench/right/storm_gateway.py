"""A gateway over small instances of `storm_upstream.py`: `storm_gateway.py PORT POOLS ACCESS_LOG`.

As `headway serve --pools` runs it, but for what is started in vLLM's place, and health checks at a pace that suits
instances which start in a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headway.cli.serve_gateway import run_gateway
from headway.cli.serve_layout import read_layout
from headway.cli.serve_site import Site
from headway.engine.servers.core_binding import Binding
from headway.engine.servers.instances_command import InstancesPlan, LocalInstances
from headway.engine.settings import EngineSettings
from headway.gateway.fleet.fleet import FleetOptions
from headway.gateway.http.options import GatewayOptions

UPSTREAM = Path(__file__).with_name("storm_upstream.py")
FLEET = FleetOptions(
    interval_s=0.2,
    timeout_s=1.0,
    misses=2,
    frozen_s=10.0,
    garbage_pause_s=1.0,
    backoff_s=0.2,
    longest_backoff_s=2.0,
)


def main() -> int:
    """Exit code of the gateway."""
    port, pools, access_log = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    layout = read_layout(pools=pools)
    settings = {pool: EngineSettings(policy=policy) for pool, policy in layout.presets.items()}
    plan = InstancesPlan(str(UPSTREAM.parent), settings)
    local = LocalInstances(plan, Binding(), port + 1, program=(sys.executable, str(UPSTREAM)))
    options = GatewayOptions(access_log=access_log, max_queue=500)
    return run_gateway(Site(layout, ("127.0.0.1", port), options, FLEET, local=local))


if __name__ == "__main__":
    sys.exit(main())
