"""The proxies that `gateway_overhead` holds side by side, each started on a core of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench.sse_client import completion
from headway.errors import UpstreamError

FOLDER = Path(__file__).parent
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0
DIRECT, BARE, HEADWAY, PLAIN_HEADWAY, RUST = "direct", "bare", "headway", "headway-no-resume", "vllm-router"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: where, and the process whose CPU time counts."""

    url: str
    pid: int


def commands(upstream: str, rust: Path | None) -> dict[str, list[str]]:
    """How each proxy is started before `upstream`, `{port}` left open; the Rust router only where it is."""
    headway = [
        *(sys.executable, "-m", "headway.cli", "serve", "--join", upstream),
        *("--router", "round-robin", "--port", "{port}"),
    ]
    found = {
        BARE: [sys.executable, str(FOLDER / "bare_proxy.py"), "{port}", upstream],
        HEADWAY: headway,
        PLAIN_HEADWAY: [*headway, "--no-resume"],
    }
    if rust is not None:
        found[RUST] = [
            *(str(rust), "--worker-urls", upstream, "--host", "127.0.0.1", "--port", "{port}"),
            *("--policy", "round_robin", "--log-level", "error"),
        ]
    return found


@contextmanager
def running(core: int, rust: Path | None) -> Iterator[dict[str, Running]]:
    """The stub beside this process, and every proxy on `core`; all end with the block.

    Raises UpstreamError if one of them does not answer in time.
    """
    with ExitStack() as stack:
        found = {DIRECT: stack.enter_context(stub())}
        for name, words in commands(found[DIRECT].url, rust).items():
            port = free_port()
            with on_core(core):  # a process starts where the one that starts it is
                command = [word.format(port=port) for word in words]
                proxy = stack.enter_context(_process(command))
            found[name] = Running(f"http://127.0.0.1:{port}", proxy.pid)
            _wait_until_it_streams(name, found[name].url, proxy)
        yield found


@contextmanager
def stub() -> Iterator[Running]:
    """The upstream, in a process of its own. Raises UpstreamError if it does not answer in time."""
    port = free_port()
    with _process([sys.executable, str(FOLDER / "sse_stub.py"), str(port)]) as process:
        url = f"http://127.0.0.1:{port}"
        _wait_until_it_streams(DIRECT, url, process)
        yield Running(url, process.pid)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run this process on one core, and after the block where it ran before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _process(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block; what it says goes to stderr."""
    process = subprocess.Popen(command, stdout=sys.stderr, env=_environment())
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> Mapping[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]),
    }


def _wait_until_it_streams(name: str, url: str, process: subprocess.Popen[bytes]) -> None:
    request = Request(
        f"{url}/v1/completions", data=completion(2, 0.0), headers={"Content-Type": "application/json"}
    )
    deadline_s, problem = time.monotonic() + START_TIMEOUT_S, "no answer"
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urlopen(request, timeout=5.0) as answer:
                if b"[DONE]" in answer.read():
                    return
                problem = "an answer without an end"
        except (URLError, OSError) as error:
            problem = str(error)
        time.sleep(0.2)
    raise UpstreamError(f"{name} does not stream ({problem})")


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
