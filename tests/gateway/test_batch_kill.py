"""A gateway that is killed again and again half-way: each request of its batches is answered once."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headway.http_client import NO_ANSWER
from headway.lab.server import headway_command
from tests.gateway.fleets import LONGEST_WAIT_S, free_port
from tests.gateway.front import CHAT
from tests.gateway.upstream import Turn, upstream

pytestmark = pytest.mark.engine

KILLS, REQUESTS = 4, 120


@asynccontextmanager
async def gateway(url: str, folder: Path, port: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway of its own process, which is killed at the end."""
    words = ["serve", "--join", url, "--port", str(port), "--batch-dir", str(folder)]
    with (folder.parent / "log").open("ab") as log:
        process = subprocess.Popen(headway_command(*words), stderr=log, stdout=log)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with asyncio.timeout(LONGEST_WAIT_S):
                while not await is_ready(session):
                    await asyncio.sleep(0.05)
            yield session
    finally:
        process.kill()
        process.wait()


async def is_ready(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/ready") as answer:
            return answer.status == 200
    except NO_ANSWER:
        return False


async def get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as answer:
        return await answer.json()


async def begin(session: aiohttp.ClientSession, data: bytes) -> str:
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", data, filename="in.jsonl")
    async with session.post("/v1/files", data=form) as answer:
        file = await answer.json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "1h"}
    async with session.post("/v1/batches", json=asked) as answer:
        found: str = (await answer.json())["id"]
        return found


async def lines_of(session: aiohttp.ClientSession, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    async with session.get(f"/v1/files/{file_id}/content") as answer:
        return [json.loads(each) for each in (await answer.read()).split(b"\n") if each]


async def test_each_request_is_answered_once_whatever_is_killed(tmp_path: Path) -> None:
    async def act(turn: Turn) -> None:
        await asyncio.sleep(0.1)
        if "wrong" in turn.body["messages"][0]["content"]:
            await turn.refuse(400, b'{"error": {"message": "no", "code": 400}}')
        else:
            await turn.whole()

    names = [f"{'wrong' if number % 10 == 0 else 'right'}{number}" for number in range(REQUESTS)]
    bodies = [{**CHAT, "messages": [{"role": "user", "content": name}]} for name in names]
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        for name, body in zip(names, bodies, strict=True)
    ]
    data = b"".join(json.dumps(each).encode() + b"\n" for each in lines)
    folder, port, batch_id, done = tmp_path / "batches", free_port(), "", 0
    async with upstream(act=act) as instance, asyncio.timeout(250):
        for kill in range(1, KILLS + 1):
            async with gateway(instance.url, folder, port) as session:
                batch_id = batch_id or await begin(session, data)
                while done < REQUESTS * kill // (KILLS + 2):
                    counts = (await get(session, f"/v1/batches/{batch_id}"))["request_counts"]
                    assert counts["completed"] + counts["failed"] >= done, "what was kept stays"
                    done = counts["completed"] + counts["failed"]
                    await asyncio.sleep(0.01)
        async with gateway(instance.url, folder, port) as session:
            while (batch := await get(session, f"/v1/batches/{batch_id}"))["status"] != "completed":
                await asyncio.sleep(0.05)
            output = await lines_of(session, batch["output_file_id"])
            errors = await lines_of(session, batch["error_file_id"])
    assert batch["request_counts"] == {
        "total": REQUESTS,
        "completed": REQUESTS - REQUESTS // 10,
        "failed": REQUESTS // 10,
    }
    answered = Counter(each["custom_id"] for each in (*output, *errors))
    assert answered == Counter(names)
    assert all("wrong" in each["custom_id"] for each in errors)
    assert len(instance.turns) < 2 * REQUESTS, "little is asked twice"
