"""How long `/health` takes while a storm goes on: `storm_health.py URL SECONDS`, a process that does nothing else.

Questions are asked at a fixed rate, each on a connection of its own, whether or not the last one has been answered.
A question's time begins when it is due, so a delay of this process counts too.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from headway.statistics import quantile

RATE_HZ = 20.0
_ANSWER_S = 10.0
_QUESTION = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def times_s(url: str, seconds: float) -> list[float]:
    """How long each answer took. A refusal counts as the longest wait."""
    parts, began_s = urlsplit(url), time.monotonic()
    host, port = parts.hostname or "", parts.port or 80
    async with asyncio.TaskGroup() as group:
        asked = []
        for number in range(int(seconds * RATE_HZ)):
            due_s = began_s + number / RATE_HZ
            await asyncio.sleep(due_s - time.monotonic())
            asked.append(group.create_task(_time_s(host, port, due_s)))
    return [task.result() for task in asked]


async def _time_s(host: str, port: int, due_s: float) -> float:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_QUESTION)
                if (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200"):
                    return time.monotonic() - due_s
            finally:
                writer.transport.abort()
    return _ANSWER_S


def main(words: Sequence[str]) -> int:
    """Print `{"p50": MS, "p99": MS}`."""
    found_s = asyncio.run(times_s(words[0], float(words[1])))
    print(
        json.dumps({f"p{share}": round(quantile(found_s, share / 100) * 1000, 1) for share in (50, 90, 99)})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
