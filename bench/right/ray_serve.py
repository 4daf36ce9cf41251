"""A replica killed under load, on Ray Serve and behind the gateway: `make ray`.

Two replicas of the demo model (`deploy/ray`), then two instances (`headway serve --instances 2`), under the same
policy and flags. Each deployment gets the same stream. Halfway the process of one replica gets SIGKILL, and the
deployment is given time to replace it. Printed for each, beside the summary of its records:

    ready_s   seconds from the start to the first answer
    back_s    seconds from the kill until two replicas are ready again; null: not within the limit
    steps     [decided by the policy, all] of each engine that lives: before the kill and at the end
    errors    how often requests failed, by the reason that their clients were given

Exit status 1 if a request has no end, if an engine took a step without the policy's plan, if the killed replica is not
replaced, or if the gateway, which can go on with a stream elsewhere, lost a request.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, say
from bench.right.gateway_storm import REAL_FLAGS, GatewayProcess, instances_of
from headway.core.record import Outcome, Record
from headway.errors import UpstreamError
from headway.lab.server import HOST, free_port
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.results import summarize
from headway.traces import TraceRequest
from headway.traces.demo_tasks import demo_requests

REPLICAS = 2
BACK_LIMIT_S = 300.0
SHOWN = ("requests", "finished", "failed", "mean_ttft_s", "p99_ttft_s", "mean_jct_s", "p99_jct_s")
CPU_CORES = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""With vLLM's default thread binding, both replicas of one Ray node would share a core."""
MODEL_SERVER = "LLMServer"
"""Part of the names that Ray Serve LLM gives to the model's deployment and its replicas."""
STEPS = ("headway_planned_steps_total", "headway_steps_total")


class Deployment(Protocol):
    """Two replicas behind one URL."""

    url: str

    def steps(self) -> dict[int, tuple[int, int]]:
        """Process of each replica -> steps decided by the policy, and all; empty until all are ready."""


@dataclass(frozen=True)
class Gateway:
    """`headway serve --instances 2`."""

    process: GatewayProcess

    @property
    def url(self) -> str:
        """The URL for clients."""
        return self.process.url

    def steps(self) -> dict[int, tuple[int, int]]:
        """As `Deployment.steps`, from the metrics of each instance."""
        ready = [each["condition"] == "ready" for each in self.process.instances()]
        servers = instances_of(self.process.pid) if all(ready) else []
        with suppress(OSError, UpstreamError, ValueError):  # an instance has just ended
            return {pid: _counted(asyncio.run(scrape(_url(pid), "headway_"))) for pid in servers}
        return {}


class Ray:
    """The application of `deploy/ray`, deployed by this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def steps(self) -> dict[int, tuple[int, int]]:
        """As `Deployment.steps`, asked of each replica's process."""
        import ray

        if _running() != REPLICAS:
            return {}
        with suppress(ray.exceptions.RayError, ValueError):  # a replica has just ended
            actors = [
                ray.get_actor(each["name"], namespace=each["namespace"])
                for each in ray.util.list_named_actors(all_namespaces=True)
                if MODEL_SERVER in each["name"]
            ]
            told = ray.get([actor.__ray_call__.remote(_process_and_steps) for actor in actors], timeout=5)
            return {pid: _counted(samples) for pid, samples in told}
        return {}


def _running() -> int:
    """How many replicas have started their engine, according to Ray."""
    from ray import serve

    found = [
        count
        for application in serve.status().applications.values()
        for name, deployment in application.deployments.items()
        for state, count in deployment.replica_states.items()
        if MODEL_SERVER in name and state == "RUNNING"
    ]
    return sum(found)


def _process_and_steps(_replica: object) -> tuple[int, dict[str, float]]:
    """In a replica: its process id, and Headway's values in its Prometheus registry."""
    from prometheus_client import REGISTRY

    found = {sample.name: sample.value for metric in REGISTRY.collect() for sample in metric.samples}
    return os.getpid(), {name: found.get(name, 0.0) for name in STEPS}


def _counted(samples: Mapping[str, float]) -> tuple[int, int]:
    planned, steps = (int(samples.get(name, 0)) for name in STEPS)
    return planned, steps


def _url(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return f"http://{HOST}:{words[words.index('--port') + 1]}"


@contextmanager
def gateway(policy: str, folder: Path) -> Iterator[Gateway]:
    """Start instances behind the gateway and wait until they are ready."""
    layout = ("--instances", str(REPLICAS), "--policy", policy, "--router", "least-work")
    process = GatewayProcess("", folder, real=True, layout=layout)
    try:
        process.wait_all_ready()
        yield Gateway(process)
    finally:
        process.stop()


@contextmanager
def ray_serve(policy: str, _folder: Path) -> Iterator[Ray]:
    """Start replicas on Ray Serve and wait until they are ready."""
    import ray
    from headway_ray.app import build
    from ray import serve

    port = free_port()
    engine = {name.removeprefix("--").replace("-", "_"): value for name, value in _pairs(REAL_FLAGS)}
    arguments = {"model": "demo", "replicas": REPLICAS, "policy": policy, "accelerator": "cpu"}
    # More cores than the machine has: Ray only counts them, and a replica asks for several.
    ray.init(num_cpus=4 * REPLICAS, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": HOST, "port": port})
        serve.run(build({**arguments, "engine": engine}))
        yield Ray(f"http://{HOST}:{port}")
    finally:
        serve.shutdown()
        ray.shutdown()


def _pairs(words: tuple[str, ...]) -> list[tuple[str, Any]]:
    values = [int(word) if word.isdecimal() else word for word in words[1::2]]
    return list(zip(words[::2], values, strict=True))


DEPLOYMENTS: dict[str, Callable[[str, Path], Any]] = {"ray": ray_serve, "gateway": gateway}


def measured(name: str, policy: str, count: int, rate: float) -> dict[str, Any]:
    """Deploy, send the stream, kill a replica halfway, and report the requests and the replacement."""
    say(f"{name}: starting {REPLICAS} replicas")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, DEPLOYMENTS[name](policy, Path(folder)) as deployed:
        asyncio.run(replay(demo_requests(REPLICAS, rate, 1), ReplayOptions(url=deployed.url)))
        ready_s = time.monotonic() - began_s
        requests = demo_requests(count, rate, 0)
        say(
            f"{name}: ready after {ready_s:.0f} s; sending {count} requests in {requests[-1].arrival_s:.0f} s"
        )
        records, before, back_s = asyncio.run(_under_load(deployed, requests))
        steps = [*before.values(), *deployed.steps().values()]
    return told(records, ready_s=ready_s, back_s=back_s, steps=steps)


async def _under_load(
    deployed: Deployment, requests: Sequence[TraceRequest]
) -> tuple[list[Record], dict[int, tuple[int, int]], float | None]:
    """The stream's records, the replicas' steps before one is killed halfway, and how long its replacement took."""
    sending = asyncio.create_task(replay(requests, ReplayOptions(url=deployed.url)))
    await asyncio.sleep(requests[len(requests) // 2].arrival_s)
    before = await asyncio.to_thread(deployed.steps)
    if len(before) != REPLICAS:
        raise SystemExit(f"{len(before)} of {REPLICAS} replicas are ready before anything is killed")
    os.kill(min(before), signal.SIGKILL)
    say(f"killed process {min(before)}")
    back_s = await asyncio.to_thread(_seconds_until_back, deployed, set(before))
    return (await sending).records, before, back_s


def _seconds_until_back(deployed: Deployment, old: set[int]) -> float | None:
    """How long it takes until all replicas are ready, one of them new; None beyond the limit."""
    began_s = time.monotonic()
    while (taken_s := time.monotonic() - began_s) < BACK_LIMIT_S:
        now = deployed.steps()
        if len(now) == REPLICAS and set(now) - old:
            return taken_s
        time.sleep(1)
    return None


def told(
    records: list[Record], *, ready_s: float, back_s: float | None, steps: list[tuple[int, int]]
) -> dict[str, Any]:
    """The printed figures of one deployment."""
    summary = summarize(records)
    failed = (record.error or "" for record in records if record.outcome is Outcome.FAILED)
    return {
        **{name: getattr(summary, name) for name in SHOWN},
        "ready_s": ready_s,
        "back_s": back_s,
        "steps": [list(pair) for pair in steps],
        "errors": dict(Counter(failed)),
    }


def is_wrong(name: str, found: Mapping[str, Any], count: int) -> bool:
    """Whether a deployment failed in a way that the module names."""
    ended: bool = found["finished"] + found["failed"] == found["requests"] == count
    planned = all(decided == steps > 0 for decided, steps in found["steps"][:REPLICAS])
    return not (ended and planned and found["back_s"] is not None) or (
        name == "gateway" and found["failed"] > 0
    )


def main() -> int:
    """Print `{"ray": {...}, "gateway": {...}}`."""
    parser = command_line(__doc__)
    parser.add_argument("--deployment", action="append", choices=[*DEPLOYMENTS], help="default: both")
    parser.add_argument("--policy", default="headway", help="default: headway")
    parser.add_argument("--requests", type=int, default=240, help="of the stream (default 240)")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (default 4)")
    given = parser.parse_args()
    os.environ |= CPU_CORES
    found = {
        name: measured(name, given.policy, given.requests, given.rate)
        for name in given.deployment or DEPLOYMENTS
    }
    print(json.dumps(found))
    return int(any(is_wrong(name, each, given.requests) for name, each in found.items()))


if __name__ == "__main__":
    sys.exit(main())
