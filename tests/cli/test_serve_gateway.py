"""A whole gateway as a process, with small servers in vLLM's place, and real signals sent to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

SMALL_SERVER = Path(__file__).parents[1] / "gateway" / "small_server.py"

OWNER = """
import json
import sys
from pathlib import Path
from headway.cli import serve_gateway
from headway.cli.serve_gateway import run_gateway
from headway.cli.serve_layout import read_layout
from headway.cli.serve_site import Site
from headway.engine.servers.instances_command import Binding
from headway.engine.servers.instances_command import InstancesPlan, LocalInstances
from headway.engine.servers.kept_instances import InstancesFolder
from headway.engine.settings import EngineSettings
from headway.gateway.fleet.supervisor import FleetOptions
from headway.gateway.http.options import GatewayOptions

folder, script, port, kept, drain_s, layout, *shadow = sys.argv[1:]
layout = read_layout(**json.loads(layout))
serve_gateway._command = lambda *_: [sys.executable, *shadow]
plan = InstancesPlan(folder, {pool: EngineSettings(policy=policy) for pool, policy in layout.presets.items()})
kept = InstancesFolder(Path(kept)) if kept else None
local = LocalInstances(plan, Binding(), int(port) + 1, program=(sys.executable, script), folder=kept)
local.check_running([(place.name, place.pool) for place in layout.launched])
fleet_options = FleetOptions(
    interval_s=0.1, timeout_s=5.0, backoff_s=0.1, drain_s=60.0, keeps_instances=kept is not None
)
options = GatewayOptions(drain_s=float(drain_s))
site = Site(layout, ("127.0.0.1", int(port)), options, fleet_options, local=local, scale_window_s=0.1)
sys.exit(run_gateway(site))
"""

POOLS = {"pools": "lp=1,hp=1"}


class Running:
    """A gateway at work, and what can be seen of it from outside."""

    def __init__(
        self,
        folder: Path,
        port: int,
        kept: Path | None = None,
        drain_s: float = 60.0,
        layout: Mapping[str, Any] = POOLS,
        shadow: Sequence[str] = (),
    ) -> None:
        self.port = port
        self.log = folder / f"log-{port}"
        self._state_file = folder / "state.json"
        self.behave()
        words = [sys.executable, "-c", OWNER, str(folder), str(SMALL_SERVER), str(port)]
        words += ["" if kept is None else str(kept), str(drain_s), json.dumps(layout), *shadow]
        with self.log.open("ab") as log:
            environment = {**os.environ, "SMALL_STATE": str(self._state_file)}
            self.process = subprocess.Popen(words, stderr=log, env=environment)

    def behave(self, **ways: Any) -> None:
        """Set how its instances behave from now on."""
        self._state_file.with_suffix(".new").write_text(json.dumps(ways))
        self._state_file.with_suffix(".new").replace(self._state_file)

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of its answer; status 0 if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def instances(self) -> dict[str, dict[str, Any]]:
        """What the dashboard's page receives about each instance."""
        status, body = self.get("/dashboard/state")
        return {each["name"]: each for each in json.loads(body)["instances"]} if status == 200 else {}

    def until_ready(self) -> None:
        wait_for(
            lambda: (found := self.instances()) and {one["condition"] for one in found.values()} == {"ready"}
        )

    def pids(self, command: str = SMALL_SERVER.name) -> list[int]:
        """Its processes with this text in their commands, newest last: those of its instances."""
        there = (Path(f"/proc/{pid}") for pid in os.listdir("/proc") if pid.isdecimal())
        return [int(each.name) for each in there if self._is_child(each, command)]

    def _is_child(self, process: Path, command: str) -> bool:
        try:
            is_own = f"PPid:\t{self.process.pid}\n" in (process / "status").read_text()
            return is_own and command in (process / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def gateway(tmp_path: Path, unused_tcp_port: int) -> Iterator[Running]:
    running = Running(tmp_path, unused_tcp_port)
    yield running
    running.process.kill()
    running.process.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_lets_requests_finish_and_ends_everything(
    gateway: Running, number: signal.Signals, code: int
) -> None:
    gateway.until_ready()
    pids = gateway.pids()
    assert len(pids) == 2
    gateway.behave(slow_s=1.0)
    answers: list[tuple[int, bytes]] = []
    asking = threading.Thread(target=lambda: answers.append(gateway.get("/slow")))
    asking.start()
    time.sleep(0.3)  # it is on its way; if it were not, the test would only be weaker
    gateway.process.send_signal(number)
    assert gateway.process.wait() == code
    asking.join()
    assert answers == [(200, b"at last")]
    assert not any(map(is_alive, pids))
    log = gateway.log.read_text()
    assert "headway: 2 of 2 instances ready after" in log
    assert "Traceback" not in log


def test_the_process_that_reads_large_bodies_is_there_before_one_comes(gateway: Running) -> None:
    gateway.until_ready()
    assert len(gateway.pids("multiprocessing.spawn")) == 1


def test_a_second_signal_does_not_wait(gateway: Running) -> None:
    gateway.until_ready()
    pids = gateway.pids()
    gateway.behave(slow_s=1000.0)
    asking = threading.Thread(target=gateway.get, args=("/slow",))
    asking.start()
    time.sleep(0.3)
    gateway.process.send_signal(signal.SIGINT)
    wait_for(
        lambda: gateway.get("/health")[0] == 0
    )  # it takes nothing new, and waits for the one that is there
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait() == 130
    wait_for(lambda: not any(map(is_alive, pids)))
    asking.join()


def test_a_signal_while_instances_start(gateway: Running) -> None:
    gateway.behave(starts_after_s=1000)
    wait_for(lambda: gateway.get("/health")[0] == 200)
    assert gateway.get("/ready")[0] == 503
    wait_for(lambda: len(gateway.pids()) == 2)
    pids = gateway.pids()
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait() == 0
    assert not any(map(is_alive, pids))


def test_an_instance_that_is_killed_comes_back_and_all_serve(gateway: Running) -> None:
    gateway.until_ready()
    killed = gateway.pids()[0]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: sum(one["restarts"] for one in gateway.instances().values()) == 1)
    gateway.until_ready()
    assert killed not in gateway.pids()
    assert len(gateway.pids()) == 2
    assert gateway.get("/v1/models")[0] == 200


def test_it_ends_with_the_reason_if_nothing_can_be_started(gateway: Running) -> None:
    gateway.behave(crash="no memory for a block")
    assert gateway.process.wait() == 1
    said = gateway.log.read_text()
    assert said.endswith("error: no instance could be started: ended with code 3: no memory for a block\n")
    assert "[lp-0] error: no memory for a block" in said
    assert "[hp-0] error: no memory for a block" in said


def test_instances_end_with_a_gateway_that_is_killed(gateway: Running) -> None:
    gateway.until_ready()
    pids = gateway.pids()
    gateway.process.kill()
    gateway.process.wait()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_a_port_that_is_taken_is_an_error(tmp_path: Path, unused_tcp_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", unused_tcp_port))
        taken.listen()
        running = Running(tmp_path, unused_tcp_port)
        assert running.process.wait() == 1
    assert f"ConfigError: cannot listen on 127.0.0.1:{unused_tcp_port}" in running.log.read_text()
