"""One server of several, as a central queue sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

import aiohttp

from headway.errors import ConfigError, UpstreamError
from headway.http_client import CONNECT_TIMEOUT_S, FIRST_SERVER_FAULT, find_model, get, root_of
from headway.loadgen.queries import scrape, scrape_labels
from headway.loadgen.replay_options import Dialect, ReplayOptions

SETTLE_S = 0.5
"""A server that does not tell how many requests it has is given so long to let go of those that were cut off."""
_POLL_S = 0.02
_POLLS = 500
"""Asked so often, a server has had 10 s; requests that it still has are another client's."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    """KV tokens that a server can hold, in blocks of so many."""

    capacity_tokens: int
    block_tokens: int = 1


@dataclass(frozen=True, slots=True)
class ServedInstance:
    """A server and how it is spoken to; its URL is its name."""

    url: str
    dialect: Dialect

    def context_tokens(self) -> float:
        """Tokens that a prompt and its answer may have together; inf if the server does not say."""
        return inf if self.dialect.max_model_len is None else self.dialect.max_model_len

    async def kv_memory(self) -> KvMemory:
        """What vLLM's metrics say of its KV cache. Raises ConfigError if they say nothing."""
        try:
            (told, *_) = await scrape_labels(self.url, "vllm:cache_config_info")
            blocks, block_tokens = int(told["num_gpu_blocks"]), int(told["block_size"])
        except (UpstreamError, KeyError, ValueError) as error:
            raise ConfigError(
                f"{self.url} does not say how much KV memory it has ({error}); accepted: a vLLM server with "
                "metrics, or --kv-tokens"
            ) from None
        # One block is vLLM's null block.
        return KvMemory((blocks - 1) * block_tokens, block_tokens)

    async def answers(self, session: aiohttp.ClientSession) -> bool:
        """Whether it still serves its model. One whose engine has died may list it a little longer."""
        try:
            await find_model(session, self.url, self.dialect.model)
            status, _ = await get(session, f"{root_of(self.url)}/health", CONNECT_TIMEOUT_S)
        except (UpstreamError, ConfigError):
            return False
        return status < FIRST_SERVER_FAULT

    async def until_idle(self) -> None:
        """Wait until it has let go of requests that were cut off, so that their memory is free."""
        for _ in range(_POLLS):
            try:
                counts = await scrape(self.url, "vllm:num_requests_")
            except UpstreamError:
                counts = {}
            if not counts:
                await asyncio.sleep(SETTLE_S)
                return
            if not counts.get("vllm:num_requests_running", 0) + counts.get("vllm:num_requests_waiting", 0):
                return
            await asyncio.sleep(_POLL_S)


async def find_instances(
    session: aiohttp.ClientSession, urls: tuple[str, ...], options: ReplayOptions
) -> list[ServedInstance]:
    """The servers at these URLs; the model is the one named, or the first that each serves.

    Raises UpstreamError if one does not answer, ConfigError if one does not serve the model, or a URL is given
    twice.
    """
    if len(set(urls)) < len(urls):
        raise ConfigError(f"a URL is given twice: {', '.join(urls)}; accepted: each once")
    found = [await find_model(session, url, options.model) for url in urls]
    return [
        ServedInstance(url, options.dialect(model, context))
        for url, (model, context) in zip(urls, found, strict=True)
    ]
