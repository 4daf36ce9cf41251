"""Starting and ending a server, with a small one of our own in vLLM's place: it too has a child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.engine.servers.server_process import ServerProcess
from headway.errors import UpstreamError

pytestmark = pytest.mark.engine

# Listens only when asked to, answers /health with 200, and shares vLLM's two habits: SIGTERM is ignored
# until it listens, and its child does not end with it.
SERVER = """
import http.server, signal, subprocess, sys, threading, time

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
behaviour, port = sys.argv[-2], int(sys.argv[-1])
if behaviour == "crashes":
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
if behaviour != "serves":
    time.sleep(600)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)


def stop(number, frame):
    threading.Thread(target=server.shutdown).start()


signal.signal(signal.SIGTERM, stop)
server.serve_forever()
server.server_close()
print("ended cleanly", flush=True)
"""

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path, unused_tcp_port: int) -> Start:
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def start(behaviour: str, grace_s: float = 30.0) -> ServerProcess:
        with (tmp_path / "log").open("wb") as log:
            return ServerProcess(
                [behaviour, str(unused_tcp_port)],
                ("127.0.0.1", unused_tcp_port),
                log=log,
                grace_s=grace_s,
                program=(sys.executable, str(script)),
            )

    return start


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended; one that nobody has waited for yet has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def child_of(tmp_path: Path) -> int:
    """Process id of the server's child, once both are up."""
    log = tmp_path / "log"
    wait_for(lambda: "up" in log.read_text())
    return int(log.read_text().split()[1])


def test_it_is_ready_when_it_answers_and_ends_by_itself(start: Start, tmp_path: Path) -> None:
    with start("serves") as server:
        server.wait_ready(timeout_s=60)
        child = child_of(tmp_path)
    assert "ended cleanly" in (tmp_path / "log").read_text()
    wait_for(lambda: not is_alive(child))
    assert server.stop() == 0


def test_one_that_is_still_starting_is_interrupted_as_a_group(start: Start, tmp_path: Path) -> None:
    with start("starts") as server:
        child = child_of(tmp_path)
    wait_for(lambda: not is_alive(server.pid) and not is_alive(child))
    assert server.wait() == -signal.SIGINT


def test_one_that_does_not_listen_to_signals_is_killed(start: Start, tmp_path: Path) -> None:
    server = start("deaf", grace_s=0.1)
    child = child_of(tmp_path)
    assert server.stop() == -signal.SIGKILL
    wait_for(lambda: not is_alive(child))


def test_one_that_ends_by_itself_leaves_no_child(start: Start, tmp_path: Path) -> None:
    server = start("crashes")
    with pytest.raises(UpstreamError, match="ended with code 3 before it was ready"):
        server.wait_ready(timeout_s=60)
    assert server.wait() == 3
    child = int((tmp_path / "log").read_text().split()[1])
    wait_for(lambda: not is_alive(child))


def test_one_that_is_never_ready_is_given_up(start: Start) -> None:
    with start("starts") as server, pytest.raises(UpstreamError, match=r"was not ready within 0\.3 s"):
        server.wait_ready(timeout_s=0.3)


def test_one_that_cannot_be_started_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        ServerProcess([], ("127.0.0.1", 1), label="lp-0", program=("/nowhere/python",))
    assert set(os.listdir("/proc/self/fd")) == before


def test_its_environment_is_ours_with_additions(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text("import os; print(os.environ['HOME'], os.environ['EXTRA'])")
    with (tmp_path / "log").open("wb") as log:
        server = ServerProcess(
            [], ("127.0.0.1", 1), log=log, environment={"EXTRA": "x"}, program=(sys.executable, str(script))
        )
        assert server.wait() == 0
    assert (tmp_path / "log").read_text().split() == [os.environ["HOME"], "x"]


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:1"), ("::1", "http://[::1]:1"), ("0.0.0.0", "http://0.0.0.0:1")],
)
def test_its_url_is_well_formed(host: str, url: str) -> None:
    server = ServerProcess([], (host, 1), log=subprocess.DEVNULL, program=(sys.executable, "-c", ""))
    assert server.url == url
    server.wait()


# The owner: what `headway serve` does around a server, with real signals sent to it.
OWNER = """
import sys
from headway.engine.servers.server_process import ServerProcess, run_until_signalled

script, behaviour, port = sys.argv[1:]
address = ("127.0.0.1", int(port))
program = (sys.executable, script)
sys.exit(run_until_signalled(lambda: ServerProcess([behaviour, port], address, program=program)))
"""


@pytest.fixture
def own(start: Start, tmp_path: Path, unused_tcp_port: int) -> Callable[[str], subprocess.Popen[bytes]]:
    def own(behaviour: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", OWNER, str(tmp_path / "server.py"), behaviour, str(unused_tcp_port)]
        with (tmp_path / "log").open("wb") as log:
            return subprocess.Popen(words, stderr=log)

    return own


Own = Callable[[str], subprocess.Popen[bytes]]


@pytest.mark.parametrize("behaviour", ["starts", "serves"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_signal_to_the_owner_ends_everything(
    own: Own, tmp_path: Path, unused_tcp_port: int, behaviour: str, number: signal.Signals, code: int
) -> None:
    owner = own(behaviour)
    child = child_of(tmp_path)
    if behaviour == "serves":
        wait_for(lambda: listens(unused_tcp_port))
    owner.send_signal(number)
    assert owner.wait() == code
    wait_for(lambda: not is_alive(child))


def test_what_nohup_started_outlives_its_terminal(own: Own, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    owner = own("starts")
    signal.signal(signal.SIGHUP, before)
    child = child_of(tmp_path)
    owner.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        owner.wait(0.5)
    owner.send_signal(signal.SIGINT)
    assert owner.wait() == 130
    wait_for(lambda: not is_alive(child))


def test_a_second_signal_kills(own: Own, tmp_path: Path) -> None:
    owner = own("deaf")
    child = child_of(tmp_path)
    owner.send_signal(signal.SIGTERM)
    while owner.poll() is None:
        owner.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    wait_for(lambda: not is_alive(child))


def test_the_servers_own_code_is_passed_on(own: Own) -> None:
    assert own("crashes").wait() == 3


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
