"""One vLLM server with all of its processes: start, wait, stop."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Protocol, Self

from headway.engine.servers.launcher import PARENT_FLAG
from headway.errors import UpstreamError
from headway.whole_file import number_earlier

_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ")
"""vLLM's prefix of each process's log lines."""

_ERROR = re.compile(
    r"^(?:(?:vllm[\w ]*: )?error: |Value error, |(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )"
)
"""Last lines with an error: Headway's own (`last_words`), vLLM's about flags, pydantic's about values, or a
traceback's.
"""

_LONGEST_LINE_BYTES = 64 << 10
_LONGEST_REASON = 300
_CATCH_UP_S = 1.0


class LabelledOutput:
    """Reads a server's output from `pipe` on a thread and forwards it, with `[label] ` before each line.

    Lines over 64 KiB are forwarded in pieces. Output that is not read is dropped, so that the server never waits for a
    reader.
    """

    def __init__(self, label: str, output: int | IO[bytes]) -> None:
        self._label = f"[{label}] ".encode()
        # A copy, since the caller may close its own once the server has started.
        self._out = _copy(output if isinstance(output, int) else output.fileno())
        self._error = ""
        self._lock = threading.Lock()
        self._source, self.pipe = os.pipe()
        self._thread = threading.Thread(target=self._read, name=f"output of {label}", daemon=True)

    def start(self) -> None:
        """Begin to read, after the server got its end of the pipe."""
        os.close(self.pipe)
        self._thread.start()

    def abandon(self) -> None:
        """Close everything: the server did not start."""
        for each in (self._source, self.pipe, self._out):
            os.close(each)

    def last_words(self) -> str:
        """The last line that reports an error, without vLLM's prefix; empty if there is none.

        Waits a moment for the last output of a server that has ended.
        """
        self._thread.join(_CATCH_UP_S)
        with self._lock:
            return self._error

    def _read(self) -> None:
        with open(self._source, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE_BYTES):
                self._remember(line)
                with suppress(OSError):
                    os.write(self._out, self._label + line.rstrip(b"\r\n") + b"\n")
        os.close(self._out)

    def _remember(self, line: bytes) -> None:
        if error := error_told(line):
            with self._lock:
                self._error = error


def error_told(line: bytes) -> str:
    """The error in a line of a server's output, without vLLM's prefix; empty if there is none."""
    text = _PREFIX.sub("", line.decode(errors="replace").strip())
    return text.removeprefix("error: ")[:_LONGEST_REASON] if _ERROR.match(text) else ""


def _copy(output: int) -> int:
    return os.open(os.devnull, os.O_WRONLY) if output == subprocess.DEVNULL else os.dup(output)


def put_aside(records: str | None) -> None:
    """Rename an earlier server's records, since each server begins its file anew: `served.jsonl` becomes
    `served.1.jsonl`.

    Files of data-parallel engines are renamed too. A file that cannot be renamed stays, and the server still starts.
    """
    if records is None:
        return
    file = Path(records)
    parallel = file.parent.glob(f"{escape(file.stem)}-dp*{escape(file.suffix)}")
    ranks = [each for each in parallel if each.stem.rpartition("-dp")[2].isdecimal()]
    for each in (file, *ranks):
        number_earlier(each)


LAUNCHER = (sys.executable, "-m", "headway.engine.servers.launcher")

GRACE_S = 30.0
"""How long a server may take to end by itself."""

CHILDREN_GRACE_S = 5.0
"""How long its children may take after the server has ended."""

_POLL_S = 0.2


class Process(Protocol):
    """The process operations that a server's owner needs; `subprocess.Popen` has them."""

    pid: int

    def poll(self) -> int | None:
        """Exit code if the process has ended, without waiting."""

    def wait(self, timeout: float | None = None) -> int:
        """Exit code once the process has ended. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""


class Output(Protocol):
    """The destination of a server's output."""

    def last_words(self) -> str:
        """The last line that reports an error; empty if there is none."""


class Server:
    """A running `vllm serve` in a session of its own, so that Ctrl-C in a terminal reaches only its owner.

    vLLM ignores SIGTERM until it serves, and ends its engine cleanly only if the signal goes to the API server alone;
    `ask_to_stop` handles both. As a context manager it never leaves a process behind.
    """

    def __init__(
        self, process: Process, address: tuple[str, int], output: Output | None, grace_s: float
    ) -> None:
        self.address = address
        self._process = process
        self._output = output
        self._grace_s = grace_s
        self._ended = False

    @property
    def url(self) -> str:
        """Base URL of the server."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def pid(self) -> int:
        """Process id of the API server, which is also its session's and its process group's."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code of the server if it has ended, without waiting."""
        return self._process.poll()

    def last_words(self) -> str:
        """Why the server ended, according to its output; empty if unknown, or without a label."""
        return "" if self._output is None else self._output.last_words()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the server's end; return its exit code (negative: the signal that ended it)."""
        code = self._process.wait(timeout_s)
        if not self._ended:
            self._end_children()
            self._ended = True
            self.last_words()  # so that the server's last lines come before those of its owner
        return code

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server answers `/health`.

        Raises UpstreamError if it ends first or is not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_healthy():
            if (code := self._process.poll()) is not None:
                raise UpstreamError(f"the server at {self.url} ended with code {code} before it was ready")
            if time.monotonic() > deadline:
                raise UpstreamError(f"the server at {self.url} was not ready within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def ask_to_stop(self) -> None:
        """Ask the server to end by itself; kill what is left after the grace period."""
        with suppress(ProcessLookupError):
            if self._is_listening():
                os.kill(self.pid, signal.SIGTERM)
            else:
                self._signal_group(signal.SIGINT)
        timer = threading.Timer(self._grace_s, self.kill)
        timer.daemon = True
        timer.start()

    def stop(self) -> int:
        """End the server, wait for it, and return its exit code."""
        if self._process.poll() is None:
            self.ask_to_stop()
        return self.wait()

    def let_go(self) -> bool:
        """Stop using the server. Returns True if no other owner uses it, so that it is to be ended."""
        return True

    def kill(self) -> None:
        """Kill every process of the server at once. Does nothing after its end was waited for."""
        with suppress(ProcessLookupError):
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        """Send a signal to every process of the server. Raises ProcessLookupError if none is left."""
        if self._ended or self._is_replaced():
            raise ProcessLookupError
        os.killpg(self.pid, number)

    def _is_replaced(self) -> bool:
        """Whether another group may have the group's number by now: possible only after the process was waited for."""
        return False

    def _end_children(self) -> None:
        """End processes that outlived the server; Python's resource tracker, which ignores SIGTERM, first frees
        shared memory.
        """
        deadline = time.monotonic() + CHILDREN_GRACE_S
        with suppress(ProcessLookupError):
            self._signal_group(signal.SIGTERM)
            while time.monotonic() < deadline:
                self._signal_group(0)
                time.sleep(_POLL_S / 10)
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(_reachable(self.address), timeout=1.0):
            return True
        return False

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection(*_reachable(self.address), timeout=5.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class ServerProcess(Server):
    """A server that this process starts, and that ends with it."""

    def __init__(
        self,
        arguments: Sequence[str],
        address: tuple[str, int],
        *,
        environment: Mapping[str, str] | None = None,
        log: int | IO[bytes] | None = None,
        label: str | None = None,
        grace_s: float = GRACE_S,
        program: Sequence[str] = LAUNCHER,
    ) -> None:
        """Start `vllm ARGUMENTS`, which must listen on `address`; its output goes to `log` (default: stderr).

        With a `label` every output line is prefixed, and `last_words` works. Raises OSError if the server cannot be
        started.
        """
        out = sys.stderr.fileno() if log is None else log
        output = None if label is None else LabelledOutput(label, out)
        try:
            process = subprocess.Popen(
                [*program, PARENT_FLAG, str(os.getpid()), *arguments],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out if output is None else output.pipe,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            if output is not None:  # the start may be retried many times
                output.abandon()
            raise
        if output is not None:
            output.start()
        super().__init__(process, address, output, grace_s)


def end_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM, and SIGHUP unless it is ignored: a server under `nohup` outlives its terminal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def run_until_signalled(start: Callable[[], ServerProcess]) -> int:
    """Start a server and wait until it ends by itself or by one of the `end_signals`; return the shell's exit code.

    The first signal asks it to stop, a second one kills it. Interrupted: 130; terminated cleanly: 0.
    """
    received: list[int] = []
    servers: list[ServerProcess] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        for server in servers:
            if len(received) == 1:
                server.ask_to_stop()
            else:
                server.kill()

    for number in end_signals():
        signal.signal(number, on_signal)
    with start() as server:
        servers.append(server)
        if received:  # a signal came during the start
            server.ask_to_stop()
        code = server.wait()
    if received:
        return 128 + signal.SIGINT if received[0] == signal.SIGINT else 0
    return code if code >= 0 else 128 - code


def _reachable(address: tuple[str, int]) -> tuple[str, int]:
    """The address by which this machine reaches a server that listens on `address`."""
    host, port = address
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
