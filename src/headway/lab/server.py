"""Servers for an experiment: started on this machine, awaited until ready, and ended afterwards."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.engine.servers.server_command import ServerCommand
from headway.engine.servers.server_process import ServerProcess, error_told
from headway.errors import UpstreamError
from headway.with_parent import signal_with_parent

HOST = "127.0.0.1"
START_TIMEOUT_S = 600.0
DEPLOY_TIMEOUT_S = 300.0
END_S = 60.0
_POLL_S = 0.3


def free_port() -> int:
    """A port of this machine on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def why_not_ready(error: UpstreamError | str, log: Path) -> str:
    """The error, the last lines of the log, and the log's path."""
    with log.open("rb") as lines:
        told = [found for found in map(error_told, lines) if found]
    return f"{error}{f': {told[-1]}' if told else ''}; its messages are in {log}"


@contextmanager
def vllm_server(
    command: ServerCommand, address: tuple[str, int], log: Path, *, name: str
) -> Iterator[ServerProcess]:
    """Run one vLLM server until the block ends.

    Raises UpstreamError, which begins with `name`, if the server does not become ready.
    """
    with log.open("wb") as output, ServerProcess(command.arguments, address, log=output) as server:
        try:
            server.wait_ready(START_TIMEOUT_S)
        except UpstreamError as error:
            raise UpstreamError(f"{name}: {why_not_ready(error, log)}") from None
        yield server


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server: its URL, and the process at the top of its process tree."""

    url: str
    pid: int


class CommandProcess:
    """A command that serves on a port, with all of its processes. All end with this process, even if that is killed.

    The command's output is appended to `log`. `name` begins the error if it does not become ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        name: str = "the deployment",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = f"http://{HOST}:{port}"
        self.log = log
        self._port, self._name = port, name
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(signal_with_parent, signal.SIGTERM),
            )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, once it has ended."""
        return self._process.poll()

    def wait_ready(self, ready: str | Callable[[str], bool], timeout_s: float) -> None:
        """Wait until a path of the command answers, or a function of its URL says so.

        Raises UpstreamError, with the end of its log, if the command ends before or takes too long.
        """
        deadline_s = time.monotonic() + timeout_s
        while not (_answers(self._port, ready) if isinstance(ready, str) else ready(self.url)):
            if self.exit_code is not None or time.monotonic() > deadline_s:
                raise UpstreamError(why_not_ready(f"{self._name} did not get ready", self.log))
            time.sleep(_POLL_S)

    def end(self, number: int = signal.SIGTERM, timeout_s: float = END_S) -> int:
        """Ask the command to end, as its user would; return its exit code. What is left after a while is killed."""
        self._process.send_signal(number)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def command_server(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    name: str = "the deployment",
    ready: str | Callable[[str], bool] = "/health",
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:
    """Run a command that serves on a port; yield when it is ready: a path answers, or a function of its URL says so.

    The command and all of its processes end with the block, and with this process if that is killed. Raises
    UpstreamError, with the end of its log, if the command does not become ready.
    """
    log.unlink(missing_ok=True)
    process = CommandProcess(command, port, log, name=name, environment=environment)
    try:
        process.wait_ready(ready, DEPLOY_TIMEOUT_S)
        yield RunningServer(process.url, process.pid)
    finally:
        process.end()


def headway_command(*words: str) -> list[str]:
    """The command line of `headway WORDS` in this environment."""
    return [sys.executable, "-m", "headway.cli", *words]


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
