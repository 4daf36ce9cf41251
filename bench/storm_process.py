"""The gateway of a storm as a process: started, looked at from outside, and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DELAY_S = 0.01
"""Before each token of a small instance."""

REAL_FLAGS = ("--dtype", "float32", "--max-num-seqs", "64")
"""In float32 a greedy answer does not hang on who else is in the batch."""

STOP_TIMEOUT_S = 300.0
SAMPLE_S = 0.25
MIB = 1 << 20


class GatewayProcess:
    """A gateway over vLLM engines of the demo model (`real`) or small instances; its logs are in `folder`."""

    def __init__(self, pools: str, folder: Path, *, real: bool) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.access_log = folder / "access.jsonl"
        self.log = folder / "log"
        small = Path(__file__).with_name("storm_gateway.py")
        words = [sys.executable, str(small), str(port), pools, str(self.access_log)]
        if real:
            flags = ["--pools", pools, "--port", str(port), "--access-log", str(self.access_log)]
            words = [sys.executable, "-m", "headway.cli", "serve", "demo", *flags, "--", *REAL_FLAGS]
        environment = {**os.environ, "STORM_DELAY_S": str(DELAY_S)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def instances(self) -> list[dict[str, Any]]:
        """What the gateway's page is told of each; nothing while it does not answer."""
        address = f"{self.url}/dashboard/state"
        with suppress(OSError, urllib.error.URLError, ValueError):
            with urllib.request.urlopen(address, timeout=30) as response:
                told: list[dict[str, Any]] = json.load(response)["instances"]
            return told
        return []

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether every instance is ready within the time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.process.poll() is None:
            told = self.instances()
            if told and all(each["condition"] == "ready" for each in told):
                return True
            time.sleep(SAMPLE_S)
        return False

    def resident_mib(self) -> float:
        """Its memory now; 0 once it has ended."""
        with suppress(OSError):
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / MIB
        return 0.0

    def stop(self) -> int:
        """Its exit code, asked to stop."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@dataclass(slots=True)
class Memory:
    """Resident memory of a gateway, in MiB."""

    start: float = 0.0
    peak: float = 0.0
    end: float = 0.0

    async def watch(self, gateway: GatewayProcess) -> None:
        """Note the most it has, until cancelled."""
        while True:
            self.peak = max(self.peak, gateway.resident_mib())
            await asyncio.sleep(SAMPLE_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
