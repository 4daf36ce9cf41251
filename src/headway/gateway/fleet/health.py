"""Checks whether a server is healthy and its engine makes progress, and reads what the server says about itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

from headway.http_client import NOT_AS_EXPECTED, ModelList, api_url, root_of, without_secrets

_OK = 200
_LONGEST_BODY_BYTES = 4 << 20
"""Longest accepted answer: vLLM's metrics have about 100 kB."""


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself.

    `models` is its answer to `/v1/models` as received. `limits` are its models, adapters included, each with the most
    tokens of prompt and answer together, None if unknown. `version` is vLLM's, None if it is not vLLM.
    """

    models: bytes = b""
    limits: Mapping[str, int | None] = field(default_factory=dict)
    version: str | None = None
    is_headway: bool = False

    @property
    def model(self) -> str:
        """The first model; empty if unknown."""
        return next(iter(self.limits), "")

    def takes(self, model: str, tokens: int) -> bool:
        """Whether the server has the model, and room in its context for `tokens`."""
        limit = self.limits.get(model)
        return model in self.limits and (limit is None or tokens <= limit)

    @property
    def is_vllm(self) -> bool:
        """Whether it reported a version as vLLM does."""
        return self.version is not None


NO_FACTS = Facts()

_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)
"""Errors of this process: no file or port left to ask with."""


class _TooLong(aiohttp.ClientPayloadError):
    """An answer too long to read."""


def probing_session(session: aiohttp.ClientSession) -> aiohttp.ClientSession:
    """A session for health checks, with the headers of the session for requests.

    It keeps no connections: a kept one may be closed by now, which says nothing about the server.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), headers=session.headers
    )


async def health_problem(session: aiohttp.ClientSession, url: str, timeout_s: float) -> str | None:
    """Why a server is unhealthy; None if it is healthy: `/health` answers 200 within `timeout_s`.

    A server without `/health` (404) is healthy, since it answers. So is one that could not be asked because this
    process has no file or port left. Raises TimeoutError if there is no answer in time.
    """
    try:
        status, _ = await _get(session, f"{root_of(url)}/health", timeout_s)
    except TimeoutError:
        raise
    except aiohttp.ClientConnectorError as error:
        return None if error.errno in _NOTHING_LEFT else f"no server listens at {without_secrets(url)}"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"/health: {type(error).__name__}: {error}"
    return None if status in (_OK, 404) else f"/health answered HTTP {status}"


def stopped_process(pid: int) -> int | None:
    """The id of a stopped process (SIGSTOP): `pid` or one of its children; None if none is seen to be stopped.

    An API server answers for an engine that is stopped. Reads a few files of /proc for each process and thread.
    """
    family = [pid]
    for each in family:
        process = Path(f"/proc/{each}")
        with suppress(OSError, ValueError):
            if process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T":
                return each
            for thread in process.joinpath("task").iterdir():
                family += map(int, thread.joinpath("children").read_text().split())
    return None


async def read_facts(session: aiohttp.ClientSession, url: str, timeout_s: float) -> Facts | str:
    """What a server says about itself, or why it cannot be used.

    Asked once for each process, so questions that it leaves open do not count against it.
    """
    path = "/v1/models"
    try:
        status, models = await _get(session, api_url(url, "models"), timeout_s)
        cards = msgspec.json.decode(models, type=ModelList).data
        if not cards:
            return f"{path} answered HTTP {status}, and with no model"
        path = "/metrics"
        metrics = await _optional(session, f"{root_of(url)}/metrics", timeout_s)
        path = "/version"
        version = await _optional(session, f"{root_of(url)}/version", timeout_s)
    except TimeoutError:
        return f"no answer to {path} within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{path}: {type(error).__name__}: {error}"
    except NOT_AS_EXPECTED:
        return f"/v1/models answered HTTP {status}, and not with a list of models: {models[:80]!r}"
    return Facts(
        models=models,
        limits={card.id: card.max_model_len for card in cards},
        version=_version(version),
        is_headway=b"\nheadway_" in metrics,
    )


async def read_metrics(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bytes:
    """The text of a server's `/metrics`; empty if it does not answer."""
    try:
        return await _optional(session, f"{root_of(url)}/metrics", timeout_s)
    except (aiohttp.ClientError, OSError, ValueError):
        return b""


async def is_paused(session: aiohttp.ClientSession, url: str, timeout_s: float) -> bool:
    """Whether a server's engine is paused or asleep; False if the server does not tell."""
    for flag in ("is_paused", "is_sleeping"):
        try:
            said = msgspec.json.decode(await _optional(session, f"{root_of(url)}/{flag}", timeout_s))
        except (aiohttp.ClientError, OSError, ValueError):
            continue
        if isinstance(said, dict) and said.get(flag) is True:
            return True
    return False


def _version(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Version).version
    except NOT_AS_EXPECTED:
        return None


async def _optional(session: aiohttp.ClientSession, address: str, timeout_s: float) -> bytes:
    """The body at an address; empty if there is none or it is incomplete."""
    try:
        status, body = await _get(session, address, timeout_s)
    except _TooLong:
        return b""
    return body if status == _OK else b""


async def _get(session: aiohttp.ClientSession, address: str, timeout_s: float) -> tuple[int, bytes]:
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with session.get(address, timeout=limit, allow_redirects=False) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _LONGEST_BODY_BYTES:
                raise _TooLong(f"more than {_LONGEST_BODY_BYTES} bytes")
        return response.status, bytes(body)


_COUNTERS = (
    b"headway_steps_total",
    b"vllm:iteration_tokens_total_count",
    b"vllm:prompt_tokens_total",
    b"vllm:generation_tokens_total",
)
"""Metrics that grow while an engine computes."""
_REQUESTS = (b"vllm:num_requests_running", b"vllm:num_requests_waiting")
"""Metrics of the work in an engine. A client that reads nothing keeps its request here, without engine work."""
_LOOKS = 10
"""How often its counters are read within the time in which they must change."""


class HungEngineDetector:
    """Detects an engine that hangs although `/health` answers, by its own counters.

    An engine hangs if it reports requests and none of its counters has changed for `patience_s`. Engines without such
    counters never count as hanging, nor do paused ones. A hanging engine counts as healthy only after it has moved.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float]) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start over for a new engine, or one that was idle."""
        self._counters: list[bytes] = []
        self._moved_s = self._clock()
        self._asked_s = float("-inf")
        self._stands_still = False

    async def problem(
        self, session: aiohttp.ClientSession, url: str, timeout_s: float, *, busy: bool
    ) -> str | None:
        """Why the engine is unhealthy; None if it is not. `busy`: whether it has requests that have not ended."""
        if not busy and not self._stands_still:
            self.begin()
            return None
        now_s = self._clock()
        if now_s - self._asked_s >= self._patience_s / _LOOKS:
            self._asked_s = now_s
            self._look((await read_metrics(session, url, timeout_s)).splitlines(), now_s)
            if self._stands_still and await is_paused(session, url, timeout_s):
                self.begin()
        if self._stands_still:
            return f"its engine stands still: no step for {now_s - self._moved_s:.0f} s, with requests there"
        return None

    def _look(self, metrics: list[bytes], now_s: float) -> None:
        if not metrics:
            return
        counters = [line for line in metrics if line.startswith(_COUNTERS)]
        busy = any(line.startswith(_REQUESTS) and not line.endswith(b" 0.0") for line in metrics)
        if counters != self._counters or not counters or not busy:
            self._counters, self._moved_s, self._stands_still = counters, now_s, False
        elif now_s - self._moved_s >= self._patience_s:
            self._stands_still = True
