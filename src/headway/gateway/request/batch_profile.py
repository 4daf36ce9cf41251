"""Finds out what instances can hold and how long batches take, before there is anything to learn from."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

import aiohttp
import msgspec

from headway.errors import UpstreamError
from headway.gateway.fleet.health import read_metrics
from headway.http_client import NO_ANSWER, api_url, named
from headway.predict.steps.batch_time import BatchRow

_METRICS_TIMEOUT_S = 10.0
_PROFILE_TIMEOUT_S = 120.0
_MEMORY = re.compile(rb"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(rb'(num_gpu_blocks|block_size)="(\d+)"')
_FIRST_ID, _LAST_ID = 256, 999
"""Token ids of generated prompts: above the special tokens of common vocabularies, and in all of them."""
_MANY = 8
_LONGEST_PROMPT = 1024
_SHORTER = 8
"""Short prompts are this many times shorter than the longest."""
_FEW_TOKENS, _MORE_TOKENS = 4, 36
_REPEATS = 2
"""Each batch is served this often and the quickest counts: the first of a shape may be slower."""


class KvMemory(NamedTuple):
    """KV tokens that an instance can hold, and the tokens of a block."""

    capacity_tokens: int
    block_tokens: int


async def least_memory(session: aiohttp.ClientSession, urls: Iterable[str]) -> KvMemory | None:
    """What the smallest of these servers can hold, by vLLM's metrics; None if one does not say."""
    told = await asyncio.gather(*(read_metrics(session, url, _METRICS_TIMEOUT_S) for url in urls))
    found = [_memory(metrics) for metrics in told]
    known = [memory for memory in found if memory is not None]
    return min(known) if known and len(known) == len(found) else None


def _memory(metrics: bytes) -> KvMemory | None:
    told = _MEMORY.search(metrics)
    labels = dict(_LABEL.findall(told[1])) if told else {}
    if len(labels) < 2:
        return None
    blocks, block_tokens = int(labels[b"num_gpu_blocks"]), int(labels[b"block_size"])
    return KvMemory(max(1, blocks - 1) * block_tokens, block_tokens)  # one is vLLM's null block


async def measured_rows(
    session: aiohttp.ClientSession, url: str, model: str, context: int, memory: KvMemory
) -> list[BatchRow]:
    """Serve a few batches now and return their rows: with one and several members, and short and long prompts.

    Each is served with 4 and with 36 output tokens; longer answers are assumed to continue at that pace. Several
    members are 8, or as many as memory holds. Raises UpstreamError if the server does not serve them.
    """
    long = max(1, min(_LONGEST_PROMPT, context // 2, context - _MORE_TOKENS))
    fitting = memory.capacity_tokens // (long + _MORE_TOKENS + memory.block_tokens)
    outputs = [2**power for power in range(max(1, context - long).bit_length())]
    rows: list[BatchRow] = []
    for size in sorted({1, max(1, min(_MANY, fitting))}):
        for prompt in sorted({max(1, long // _SHORTER), long}):
            few_s, more_s = [
                min([await _seconds(session, url, model, size, prompt, tokens) for _ in range(_REPEATS)])
                for tokens in (_FEW_TOKENS, _MORE_TOKENS)
            ]
            rows += [(size, prompt, output, continued_s(few_s, more_s, output)) for output in outputs]
    return rows


def continued_s(few_s: float, more_s: float, output: int) -> float:
    """Extrapolate the seconds of a longer answer from two measured ones; never less than the shorter."""
    pace_s = max(0.0, more_s - few_s) / (_MORE_TOKENS - _FEW_TOKENS)
    return few_s + pace_s * max(0, output - _FEW_TOKENS)


async def _seconds(
    session: aiohttp.ClientSession, url: str, model: str, size: int, prompt: int, output: int
) -> float:
    """Seconds of a generated batch whose answers are forced to their length."""
    began_s = time.perf_counter()
    await asyncio.gather(*(_ask(session, url, model, member, prompt, output) for member in range(size)))
    return time.perf_counter() - began_s


async def _ask(
    session: aiohttp.ClientSession, url: str, model: str, member: int, prompt: int, output: int
) -> None:
    ids = [_FIRST_ID + (7 * place + 31 * member) % (_LAST_ID - _FIRST_ID) for place in range(prompt)]
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": output,
        "min_tokens": output,
        "ignore_eos": True,
        "temperature": 0.0,
        "cache_salt": f"{time.perf_counter()}-{member}",  # the prefix cache must not hold the prompt the next time
    }
    limit = aiohttp.ClientTimeout(total=_PROFILE_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    try:
        data = msgspec.json.encode(body)
        async with session.post(
            api_url(url, "completions"), data=data, headers=headers, timeout=limit
        ) as answer:
            text = await answer.read()
    except NO_ANSWER as error:
        raise UpstreamError(f"{url} does not serve a made-up batch ({named(error)})") from None
    if answer.status != 200:
        raise UpstreamError(f"{url} does not serve a made-up batch (HTTP {answer.status}: {text[:200]!r})")
