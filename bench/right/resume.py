"""What becomes of each kind of stream when what serves it dies: `python bench/right/resume.py --json`.

A gateway over three vLLM engines of the demo model. For each way to die every kind of stream is asked for three times,
once at each instance; when all have begun, one instance (or two, or the gateway) is harmed. Each stream then counts as

    same    the whole answer, as it was undisturbed (a sample without a seed: any whole answer)
    error   an error event, or a connection that breaks before the end where the gateway itself died
    lost    another text, an end without an end mark, or nothing within the limit

`hit` are those that went on elsewhere or ended in an error. Exit status 1 if any is lost, or a way hit none.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line, markdown_option, say
from bench.figures import markdown_table
from bench.right.gateway_storm import GatewayProcess, instances_of
from headway.gateway.request.repeat import Transcript
from headway.traces.demo_tasks import demo_requests

INSTANCES = 3
LAYOUT = ("--instances", str(INSTANCES), "--policy", "vllm", "--router", "round-robin")
BEGUN_EVENTS = 4
TOKENS = 800
BEGIN_S = 15.0
"""Time for all streams to begin: with a slow instance the other streams would otherwise be over."""
LIMIT_S = 300.0
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
COMPLETION, CHAT, RESPONSES, MESSAGES = (
    f"/v1/{path}" for path in ("completions", "chat/completions", "responses", "messages")
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETION, {}),
    "chat": (CHAT, {}),
    "sample": (CHAT, {"temperature": 0.8}),
    "seeded sample": (CHAT, {"temperature": 0.8, "seed": 3}),
    "tools": (CHAT, {"tools": [TOOL], "tool_choice": "none"}),
    "log probabilities": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "stop words": (COMPLETION, {"stop": ["never said"]}),
    "JSON": (CHAT, {"response_format": {"type": "json_object"}}),
    "penalties": (CHAT, {"presence_penalty": 0.5}),
    "echo": (COMPLETION, {"echo": True}),
    "two answers": (COMPLETION, {"n": 2, "temperature": 0.8, "seed": 3}),
    "responses": (RESPONSES, {}),
    "messages": (MESSAGES, {}),
}


# ---- ways to die --------------------------------------------------------------------------------------------------


def kill_server(servers: Sequence[int], _gateway: int) -> None:
    """Kill one server's process."""
    os.kill(servers[0], signal.SIGKILL)


def kill_engine(servers: Sequence[int], _gateway: int) -> None:
    """Kill the processes under one server, its engine among them."""
    for child in children_of(servers[0]):
        os.kill(child, signal.SIGKILL)


def freeze(servers: Sequence[int], _gateway: int) -> None:
    """Freeze all processes of one server."""
    os.killpg(servers[0], signal.SIGSTOP)


def kill_two(servers: Sequence[int], _gateway: int) -> None:
    """Kill two of three servers."""
    for server in servers[:2]:
        os.kill(server, signal.SIGKILL)


def kill_gateway(_servers: Sequence[int], gateway: int) -> None:
    """Kill the gateway itself."""
    os.kill(gateway, signal.SIGKILL)


WAYS: dict[str, Callable[[Sequence[int], int], None]] = {
    "server": kill_server,
    "engine": kill_engine,
    "freeze": freeze,
    "two": kill_two,
    "gateway": kill_gateway,
}


def busiest_first(gateway: GatewayProcess) -> list[int]:
    """The servers' processes by their number of requests now, the most first."""
    busy = [each["in_flight"] for each in gateway.instances()]
    servers = instances_of(gateway.pid)
    return [server for _, server in sorted(zip(busy, servers, strict=True), reverse=True)]


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


# ---- streams ------------------------------------------------------------------------------------------------------


@dataclass
class Stream:
    """One stream of a kind, and what has been received of it."""

    kind: str
    id: str
    prompt: str
    said: Transcript = field(default_factory=Transcript)
    events: int = 0
    done: bool = False
    error: str = ""

    @property
    def text(self) -> dict[Any, Any]:
        """Each text of the answer: by choice, or by kind of event."""
        exact = [key for key in self.said.pieces if "logprobs" not in key]
        return {key: self.said.whole(key) for key in exact}

    def body(self) -> dict[str, Any]:
        """The request body."""
        path, own = KINDS[self.kind]
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        asked: dict[str, Any] = {"model": "demo", "stream": True, "temperature": 0, limit: TOKENS, **own}
        if path in (COMPLETION, CHAT):
            asked |= {"ignore_eos": True, "request_id": self.id}
        if path == COMPLETION:
            return {**asked, "prompt": self.prompt}
        if path == RESPONSES:
            return {**asked, "input": self.prompt}
        return {**asked, "messages": [{"role": "user", "content": self.prompt}]}

    def take(self, line: bytes) -> None:
        """Handle one line of the stream."""
        if not line.startswith(b"data:"):
            return
        if line[5:].strip() == b"[DONE]":
            self.done = True
            return
        event = json.loads(line[5:])
        self.events += 1
        kind = str(event.get("type", ""))
        if event.get("error") or kind == "error":
            self.error = str((event.get("error") or event).get("message", "an error"))
        elif "choices" in event:
            self.said.note(event)
        elif kind.endswith("delta") and isinstance(event.get("delta"), str | dict):
            delta = event["delta"]
            text = delta if isinstance(delta, str) else str(delta.get("text", ""))
            self.said.pieces[(kind,)].append(text)
        self.done = self.done or kind in ("message_stop", "response.completed", "response.incomplete")

    async def run(self, session: aiohttp.ClientSession, url: str) -> None:
        """Send the request and receive the whole answer."""
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                session.post(
                    url + KINDS[self.kind][0], json=self.body(), headers={"x-request-id": self.id}
                ) as response,
            ):
                if response.status != 200:
                    self.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                    return
                async for line in response.content:
                    self.take(line)
        except TimeoutError:
            self.error = ""
        except aiohttp.ClientError as error:
            self.error = self.error or f"connection: {type(error).__name__}"


def judged(stream: Stream, whole: dict[Any, Any], *, gateway_died: bool) -> str:
    """How a stream ended: one of the words that the module lists."""
    if stream.error:
        return "error" if gateway_died or not stream.error.startswith("connection") else "lost"
    sampled = stream.kind == "sample"
    return "same" if stream.done and (sampled or stream.text == whole) else "lost"


# ---- the bench ----------------------------------------------------------------------------------------------------


def main() -> int:
    """Print `{"ways": {way: {kind: {"same": N, "error": N, "lost": N, "hit": N}}}}`."""
    parser = command_line(__doc__)
    markdown_option(parser)
    parser.add_argument("--way", action="append", choices=[*WAYS], help="default: all")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="default: all")
    given = parser.parse_args()
    found = {way: one_way(way, given.kind or [*KINDS]) for way in given.way or WAYS}
    print(markdown(found) if given.markdown else json.dumps({"ways": found}))
    bad = any(counts["lost"] for kinds in found.values() for counts in kinds.values())
    idle = any(not any(counts["hit"] for counts in kinds.values()) for kinds in found.values())
    return int(bad or idle)


def one_way(way: str, kinds: Sequence[str]) -> dict[str, dict[str, int]]:
    """Run every kind of stream through one way to die, at a gateway of its own."""
    with tempfile.TemporaryDirectory() as folder:
        gateway = GatewayProcess("", Path(folder), real=True, layout=LAYOUT)
        servers: list[int] = []
        try:
            say(f"{way}: starting {INSTANCES} instances")
            gateway.wait_all_ready()
            servers = instances_of(gateway.pid)
            return asyncio.run(_one_way(way, kinds, gateway))
        finally:
            for server in servers:
                with suppress(ProcessLookupError):
                    os.killpg(server, signal.SIGCONT)
            gateway.stop()


async def _one_way(way: str, kinds: Sequence[str], gateway: GatewayProcess) -> dict[str, dict[str, int]]:
    prompt = demo_requests(1, 1.0, 0)[0].prompt or ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        calm = [Stream(kind, f"calm-{number}", prompt) for number, kind in enumerate(kinds)]
        await asyncio.gather(*(stream.run(session, gateway.url) for stream in calm))
        for stream in calm:
            if stream.error or not stream.done:
                raise SystemExit(f"{stream.kind} fails undisturbed: {stream.error or 'no end'}")
        streams = [
            Stream(kind, f"{way}-{number}-{copy}", prompt)
            for number, kind in enumerate(kinds)
            for copy in range(INSTANCES)
        ]
        running = [asyncio.create_task(stream.run(session, gateway.url)) for stream in streams]
        began_s = time.monotonic()
        while any(each.events < BEGUN_EVENTS for each in streams) and time.monotonic() - began_s < BEGIN_S:
            await asyncio.sleep(0.01)
        busy = [each["in_flight"] for each in await asyncio.to_thread(gateway.instances)]
        say(
            f"{way}: {sum(not each.done for each in streams)} of {len(streams)} streams run; at instances: {busy}"
        )
        WAYS[way](await asyncio.to_thread(busiest_first, gateway), gateway.pid)
        await asyncio.gather(*running)
    lines = [json.loads(line) for line in gateway.access_log.read_bytes().splitlines()]
    resumed = {line["id"].removeprefix("resp_") for line in lines if line.get("resumes")}
    wholes = {stream.kind: stream.text for stream in calm}
    counts = {kind: Counter(same=0, error=0, lost=0, hit=0) for kind in kinds}
    for stream in streams:
        end = judged(stream, wholes[stream.kind], gateway_died=way == "gateway")
        counts[stream.kind][end] += 1
        counts[stream.kind]["hit"] += end != "same" or stream.id in resumed
        if end != "same":
            say(f"{way}: {stream.kind} {end}: {stream.error or 'no end'}")
    return {kind: dict(found) for kind, found in counts.items()}


def markdown(found: dict[str, dict[str, dict[str, int]]]) -> str:
    """A row for each kind and a column for each way: same / error / lost, over all streams."""
    kinds = list(next(iter(found.values())))
    rows = [
        [
            kind,
            *(
                " / ".join(str(ways[kind][end]) for end in ("same", "error", "lost"))
                for ways in found.values()
            ),
        ]
        for kind in kinds
    ]
    return markdown_table(["", *found], rows)


if __name__ == "__main__":
    sys.exit(main())
