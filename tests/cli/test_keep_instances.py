"""Instances that outlive their gateway: whole gateways as processes, small servers, and real signals."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headway.cli.serve_gateway import members
from headway.cli.serve_layout import read_layout
from headway.cli.serve_site import Site
from headway.engine.servers.instances_command import Binding, InstancesPlan, LocalInstances
from headway.engine.servers.kept_instances import (
    InstancesFolder,
    KeptInstance,
    KnownProcess,
    Start,
    process_start,
)
from headway.engine.servers.server_command import ServerCommand
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, UpstreamError
from headway.gateway.fleet.adapters import Adapters
from headway.gateway.fleet.member import Condition
from headway.gateway.fleet.supervisor import FleetOptions
from headway.gateway.http.options import GatewayOptions
from headway.json_file import write_json
from tests.cli.test_serve_gateway import Running, is_alive, wait_for

pytestmark = pytest.mark.engine

Open = Callable[..., Running]
START = Start((), ServerCommand(("serve",), EngineSettings(), (), 0.0), {})


def unprepared(_ports: set[int]) -> int:
    raise AssertionError("it runs already")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def gateways(tmp_path: Path, kept: Path) -> Iterator[Open]:
    """Starts gateways over the same instances; all of them, and the instances, end with the test."""
    opened: list[Running] = []

    def start(port: int, **options: Any) -> Running:
        opened.append(Running(tmp_path, port, kept, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.process.kill()
        each.process.wait()
    for pid in InstancesFolder(kept).running().values():
        os.killpg(pid, signal.SIGKILL)


class Stream(threading.Thread):
    """A completion that is being read. `text` is what came, `ended` whether the end mark did."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__()
        self.text = b""
        self._body = json.dumps({"prompt": "a", "max_tokens": tokens, "stream": True}).encode()
        self._port = port
        self.start()
        wait_for(lambda: b" w0" in self.text)

    @property
    def ended(self) -> bool:
        return b"data: [DONE]" in self.text

    def run(self) -> None:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(self._body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port)) as client:
            client.sendall(head.encode() + self._body)
            while not self.ended and (part := client.recv(2**16)):
                self.text += part


def servers(folder: Path) -> set[int]:
    """Processes of all small servers whose model is this folder."""
    named = f"small_server.py\0--once-noted\0serve\0{folder}\0".encode()
    pids = filter(is_alive, map(int, filter(str.isdecimal, os.listdir("/proc"))))
    return {pid for pid in pids if named in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_a_gateway_that_is_killed_breaks_its_streams_alone(
    gateways: Open, kept: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    ports = unused_tcp_port_factory(), unused_tcp_port_factory()
    first, second = (gateways(port) for port in ports)
    first.until_ready()
    second.until_ready()
    pids = InstancesFolder(kept).running()
    assert set(pids) == {"lp-0", "hp-0"}
    first.behave(token_s=0.05)
    broken, whole = Stream(first.port, 1000), Stream(second.port, 40)
    first.process.kill()
    broken.join()
    assert not broken.ended
    whole.join()
    assert whole.ended
    assert b" w39" in whole.text

    again = gateways(first.port)
    again.until_ready()
    assert InstancesFolder(kept).running() == pids
    assert all(map(is_alive, pids.values()))
    assert {one["restarts"] for one in again.instances().values()} == {0}


def test_a_rolling_restart_loses_no_stream_that_ends_in_time(
    gateways: Open, kept: Path, unused_tcp_port: int
) -> None:
    old = gateways(unused_tcp_port)
    old.until_ready()
    pids = InstancesFolder(kept).running()
    old.behave(token_s=0.05)
    streams = [Stream(unused_tcp_port, 60) for _ in range(8)]
    old.process.terminate()
    wait_for(lambda: old.get("/health")[0] == 0)
    new = gateways(unused_tcp_port)
    new.behave(token_s=0.05)
    new.until_ready()
    streams.append(Stream(unused_tcp_port, 10))
    for stream in streams:
        stream.join()
    assert all(stream.ended for stream in streams)
    assert old.process.wait() == 0
    assert InstancesFolder(kept).running() == pids
    log = old.log.read_text()
    assert f"instances go on; `kill {' '.join(map(str, pids.values()))}` ends them" in log
    assert "Traceback" not in log


SHADOW = """
import sys, time
from pathlib import Path
while True:
    print(Path(sys.argv[1]).read_text(), flush=True)
    time.sleep(0.05)
"""
REPORT = (
    '{"at":1,"window_s":0.1,"requests":1,"assumed":0,"missed":0,"step_error":0,"figures":{},"failed":{},'
    '"advice":{"needed":%d,"low":1,"high":2}}'
)
"""Of a shadow that simulates nothing: the test says how many instances there should be."""


def advise(gateway: Running, needed: int) -> None:
    file = gateway.log.with_suffix(".advice")
    file.with_suffix(".new").write_text(REPORT % needed)
    file.with_suffix(".new").replace(file)


def is_second(gateway: Running, condition: Condition) -> Callable[[], bool]:
    return lambda: gateway.instances().get("1", {}).get("condition") == condition


def test_an_instance_that_two_gateways_use_is_ended_by_the_last_that_needs_it(
    gateways: Open, kept: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    both = []
    for port in (unused_tcp_port_factory(), unused_tcp_port_factory()):
        advice = kept.parent / f"log-{port}.advice"
        advice.write_text(REPORT % 2)
        both.append(
            gateways(
                port,
                layout={"instances": "1..2", "router": "round-robin"},
                shadow=["-c", SHADOW, str(advice)],
            )
        )
    one, other = both
    for each in both:
        wait_for(is_second(each, Condition.READY))
    pids = InstancesFolder(kept).running()
    one.behave(token_s=0.05)
    streams = [Stream(other.port, 60) for _ in range(4)]
    wait_for(lambda: other.instances()["1"]["in_flight"] > 0)

    advise(one, 1)
    wait_for(is_second(one, Condition.PARKED))
    for stream in streams:
        stream.join()
        assert stream.ended
        assert b" w59" in stream.text
    assert InstancesFolder(kept).running() == pids
    assert other.instances()["1"]["condition"] == Condition.READY

    advise(one, 2)  # it is taken up again as it is
    wait_for(is_second(one, Condition.READY))
    assert InstancesFolder(kept).running() == pids

    for each in both:
        advise(each, 1)
        wait_for(is_second(each, Condition.PARKED))
    wait_for(lambda: not is_alive(pids["1"]))
    assert InstancesFolder(kept).running() == {"0": pids["0"]}
    assert {each["restarts"] for gateway in both for each in gateway.instances().values()} == {0}


def test_what_another_gateway_is_ending_is_not_taken_up(kept: Path) -> None:
    folder, server, start = (
        InstancesFolder(kept),
        KnownProcess(os.getpid(), process_start(os.getpid())),
        START,
    )
    instance = KeptInstance(server.pid, server.started, 8001, start.digest, 0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gateway:
        its = KnownProcess(gateway.pid, process_start(gateway.pid))
        for left, ends in ((its, False), (None, True)):
            users = () if left is None else (left,)
            write_json(kept / "instances.json", {"instances": {"1": replace(instance, users=users)}})
            folder.find_or_start("1", start, unprepared)
            assert folder.let_go("1", server) is ends
        write_json(kept / "instances.json", {"instances": {"1": replace(instance, users=(its,), ends=True)}})
        with pytest.raises(UpstreamError, match="another gateway is ending it"):
            folder.find_or_start("1", start, unprepared)
        gateway.kill()
    # It did not come to that.
    assert folder.find_or_start("1", start, unprepared).pid == os.getpid()
    assert folder.let_go("1", KnownProcess(os.getpid(), "at another time"))


def _has_restarted(gateway: Running) -> bool:
    return bool(gateway.instances()["hp-0"]["restarts"] == 1)


def test_of_two_gateways_that_miss_an_instance_one_starts_it(
    gateways: Open, kept: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    both = [gateways(unused_tcp_port_factory()) for _ in range(2)]
    for each in both:
        each.until_ready()
    pids = InstancesFolder(kept).running()
    os.kill(pids["hp-0"], signal.SIGKILL)
    for each in both:
        wait_for(partial(_has_restarted, each))
        each.until_ready()
    now = InstancesFolder(kept).running()
    assert now["lp-0"] == pids["lp-0"]
    assert now["hp-0"] != pids["hp-0"]
    assert servers(kept.parent) == set(now.values())


def test_an_instance_that_ended_meanwhile_is_started_and_its_id_is_nobodys(
    gateways: Open, kept: Path, unused_tcp_port: int
) -> None:
    first = gateways(unused_tcp_port)
    first.until_ready()
    pids = InstancesFolder(kept).running()
    first.process.kill()
    first.process.wait()
    os.killpg(pids["lp-0"], signal.SIGKILL)
    wait_for(lambda: not is_alive(pids["lp-0"]))
    # Another process may have the id by now: here one that is there, with a start of its own.
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    file = kept / "instances.json"
    file.write_text(file.read_text().replace(f'"pid": {pids["lp-0"]}', f'"pid": {other.pid}'))
    assert set(InstancesFolder(kept).running()) == {"hp-0"}
    second = gateways(unused_tcp_port)
    second.until_ready()
    now = InstancesFolder(kept).running()
    assert now["hp-0"] == pids["hp-0"]
    assert now["lp-0"] not in (pids["lp-0"], other.pid)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_gateway_that_fails_says_why_and_leaves_a_log(
    gateways: Open, kept: Path, unused_tcp_port: int
) -> None:
    running = gateways(unused_tcp_port)
    running.behave(crash="no memory for a block")
    assert running.process.wait() == 1
    assert "no instance could be started: ended with code 3: no memory for a block" in running.log.read_text()
    assert "error: no memory for a block" in (kept / "lp-0.log").read_text()


def test_what_runs_otherwise_is_refused_by_name(
    gateways: Open, tmp_path: Path, kept: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    gateways(unused_tcp_port_factory()).until_ready()
    pids = InstancesFolder(kept).running()
    other = tmp_path / "other"
    other.mkdir()
    refused = Running(other, unused_tcp_port_factory(), kept)  # its model is another folder
    assert refused.process.wait() == 1
    accepted = f"another folder, or `kill {' '.join(map(str, pids.values()))}` before"
    assert accepted in refused.log.read_text()
    assert InstancesFolder(kept).running() == pids


@pytest.mark.parametrize("text", ["", '{"instances": {"lp-0"', "[]", '{"instances": {"lp-0": {"pid": "1"}}}'])
def test_a_file_that_is_half_written_is_refused(kept: Path, text: str) -> None:
    kept.mkdir(mode=0o700)
    (kept / "instances.json").write_text(text)
    with pytest.raises(ConfigError, match=r"accepted: a folder as a gateway left it, or an empty one"):
        InstancesFolder(kept)


def test_a_folder_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(ConfigError, match="with mode 750; accepted: a folder of user"):
        InstancesFolder(tmp_path)
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="accepted: a folder of user 12345"):
        InstancesFolder(tmp_path)
    with pytest.raises(ConfigError, match="accepted: a folder to write to"):
        InstancesFolder(Path("/proc/nothing"))


def test_a_key_is_made_once(kept: Path) -> None:
    assert InstancesFolder(kept).key() == InstancesFolder(kept).key() != ""


def test_adapters_are_known_to_the_next_gateway(kept: Path) -> None:
    folder = InstancesFolder(kept)
    folder.keep_adapter("sql", ("/adapters", b'{"name": "sql"}'))
    folder.keep_adapter("prose", ("/adapters", b"\xff"))
    folder.keep_adapter("prose", None)
    assert InstancesFolder(kept).adapters() == {"sql": ("/adapters", b'{"name": "sql"}')}


def test_a_gateway_that_stands_still_with_the_lock_holds_up_no_other(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = InstancesFolder(kept)
    monkeypatch.setattr("headway.engine.servers.kept_instances.LOCK_PATIENCE_S", 0.05)
    with (kept / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UpstreamError, match=r"another gateway has held .*lock for 0\.05 s"):
            folder.key()
        Adapters(folder).note("POST", "/adapters", b'{"name": "sql"}')
    assert "the adapter 'sql' is not kept for other gateways: another gateway has held" in caplog.text
    assert folder.adapters() == {}


def test_a_process_that_has_ended_has_no_start() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        wait_for(lambda: not is_alive(process.pid))
        assert process_start(process.pid) == ""
    assert process_start(process.pid) == ""
    assert process_start(os.getpid()) != ""


def test_a_server_whose_gateway_ends_before_it_is_noted_ends() -> None:
    start = "from headway.engine.servers.launcher import heed_parent; heed_parent(); print('goes on')"
    words = [sys.executable, "-c", start, "--once-noted"]
    assert subprocess.run(words, input=b".", capture_output=True).stdout == b"goes on\n"
    unnoted = subprocess.run(words, input=b"", capture_output=True)
    assert unnoted.returncode == 1
    assert b"ended before it had noted it" in unnoted.stderr


def test_instances_that_run_serve_on_although_fewer_begin(kept: Path) -> None:
    # A gateway of 1..3 had started a second one: its next life finds two, of which no one would end the second.
    folder = InstancesFolder(kept)
    running = KeptInstance(os.getpid(), process_start(os.getpid()), 8001, "", 0)
    write_json(kept / "instances.json", {"instances": {"1": running}})
    plan = InstancesPlan("m", {"": EngineSettings()})
    site = Site(
        read_layout(instances="1..3"),
        ("127.0.0.1", 8000),
        GatewayOptions(),
        FleetOptions(keeps_instances=True),
        local=LocalInstances(plan, Binding(), 8001, folder=folder),
    )
    found = {member.name: member.condition for member in members(site)}
    assert found == {"0": Condition.STARTING, "1": Condition.STARTING, "2": Condition.PARKED}
