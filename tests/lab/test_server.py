"""Commands that serve for an experiment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from headway.errors import UpstreamError
from headway.lab.server import CommandProcess, command_server, free_port

pytestmark = pytest.mark.engine  # each starts a program


def files(port: int) -> list[str]:
    """A command that serves files."""
    return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]


def test_a_command_serves_until_the_block_ends(tmp_path: Path) -> None:
    port = free_port()
    with command_server(files(port), port, tmp_path / "log", ready="/") as server:
        assert server.url == f"http://127.0.0.1:{port}"
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_command_that_ends_before_it_is_ready_is_told_of(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with (
        pytest.raises(UpstreamError, match=r"the gateway did not get ready.*its messages are in"),
        command_server(command, free_port(), tmp_path / "log", name="the gateway"),
    ):
        pass


def test_a_command_is_killed_and_begun_again_with_one_log(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM)):
        process = CommandProcess(files(port), port, log)
        process.wait_ready("/", 60.0)
        assert process.exit_code is None
        assert process.end(number) == process.end() == process.exit_code == code
    assert log.read_text().count('"GET / HTTP/1.1" 200') == 2
