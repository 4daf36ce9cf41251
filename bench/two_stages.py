"""What a prefill and a decode instance behind a gateway answer; for feature `pd` of `bench/outputs.py`."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

from bench.forced import SEATS, Answers, Request
from headway.engine.demo_model import DEMO_RANDOM
from headway.engine.servers.server_command import TRANSFER_FLAG
from headway.lab.policy_bench import free_port
from headway.loadgen.scrape import scrape
from headway.planner.deployed import START_S, deployed

AT_ONCE = 3
"""Requests that are under way together. The prompts of so many fit a step of every preset: `ExampleConnector` stores
the chunk that a prompt begins with for the whole of it."""
HITS = "vllm:external_prefix_cache_hits_total"


def two_stages(preset: str, requests: Sequence[Request], folder: Path) -> tuple[Answers, Counter[str]]:
    """Answers of fresh instances under a preset, every second one streamed, and what they met."""
    storage, port = folder / f"kv-{preset}", _three_free_ports()
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(storage)},
    }
    words = [
        *("headway", "serve", DEMO_RANDOM, "--policy", preset, "--pools", "prefill=1,decode=1", "--"),
        *("--dtype", "float32", "--block-size", "32", "--max-model-len", "256", "--max-num-seqs", str(SEATS)),
        *("--max-num-batched-tokens", "512", TRANSFER_FLAG, json.dumps(connector)),
    ]
    with deployed(words, port, folder / f"{preset}.log", folder / f"{preset}.jsonl") as url:
        asyncio.run(_until_both_are_ready(url))
        answers = asyncio.run(_ask(url, requests))
        gateway = asyncio.run(scrape(url, 'headway_gateway_prefills_total{result="apart"}'))
        decode = asyncio.run(scrape(f"http://127.0.0.1:{port + 2}", HITS))
    apart = sum(gateway.values())
    return answers, Counter(prompts_apart=int(apart), loaded_tokens=int(sum(decode.values())))


def _three_free_ports() -> int:
    """The first of three: the gateway's, and those of the instances that it starts, in their order."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


async def _until_both_are_ready(url: str) -> None:
    async with asyncio.timeout(START_S):
        while sum((await scrape(url, "headway_gateway_instance_up{")).values()) < 2:
            await asyncio.sleep(0.5)


async def _ask(url: str, requests: Sequence[Request]) -> Answers:
    answers, places = Answers(), asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession() as session:

        async def ask(index: int, request: Request) -> None:
            async with places:
                tokens = await _tokens(session, url, request, stream=index % 2 == 1)
                answers.tokens[index, 0] = tokens

        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                group.create_task(ask(index, request))
    return answers


async def _tokens(session: aiohttp.ClientSession, url: str, request: Request, *, stream: bool) -> list[int]:
    sampling = request.sampling
    hints = {name: value for name, value in sampling["extra_args"].items() if value != ""}
    asked = {name: sampling[name] for name in ("temperature", "max_tokens", "ignore_eos")}
    body = {"model": DEMO_RANDOM, "prompt": request.prompt, **asked, "vllm_xargs": hints, "stream": stream}
    async with session.post(f"{url}/v1/completions", json={**body, "return_token_ids": True}) as response:
        text = await response.text()
        response.raise_for_status()
    whole = [text] if not stream else [line[6:] for line in text.split("\n") if line.startswith("data: {")]
    found: list[Any] = [choice for each in whole for choice in json.loads(each)["choices"]]
    return [token for choice in found for token in choice["token_ids"] or ()]
