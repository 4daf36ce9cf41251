"""LoRA adapters loaded through the gateway, so that relaunched instances can load them again."""

from __future__ import annotations

import logging
from typing import Protocol

import aiohttp
import msgspec

from headway.errors import HeadwayError
from headway.http_client import NO_ANSWER, NOT_AS_EXPECTED, named, root_of

ADAPTERS = "/adapters"
"""SageMaker's path for adapters: POST, and DELETE of a name below it."""
_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_LOAD_TIMEOUT_S = 60.0
_LOG = logging.getLogger(__name__)


class _Adapter(msgspec.Struct):
    lora_name: str = ""
    name: str = ""


Asked = tuple[str, bytes]
"""Path and body of a request that loads an adapter."""


class KeptAdapters(Protocol):
    """Stores adapters for the gateways that share instances, or that come later."""

    def adapters(self) -> dict[str, Asked]:
        """The loaded adapters, by name."""

    def keep_adapter(self, name: str, asked: Asked | None) -> None:
        """An adapter was loaded, or (None) unloaded. Raises OSError or HeadwayError if that cannot be stored."""


class AdaptersHere:
    """Adapters remembered only by this gateway."""

    def __init__(self) -> None:
        self._loaded: dict[str, Asked] = {}

    def adapters(self) -> dict[str, Asked]:
        """See `KeptAdapters`."""
        return self._loaded

    def keep_adapter(self, name: str, asked: Asked | None) -> None:
        """See `KeptAdapters`."""
        if asked is None:
            self._loaded.pop(name, None)
        else:
            self._loaded[name] = asked


class Adapters:
    """The adapters that instances were asked to load, and not to unload again."""

    def __init__(self, kept: KeptAdapters | None = None) -> None:
        self._kept = kept or AdaptersHere()

    def note(self, method: str, path: str, body: bytes) -> None:
        """An instance carried out this request. Requests about anything else change nothing."""
        if method == "DELETE" and path.startswith(f"{ADAPTERS}/"):
            self._keep(path.removeprefix(f"{ADAPTERS}/"), None)
        if method != "POST" or path not in (_LOAD, _UNLOAD, ADAPTERS):
            return
        try:
            said = msgspec.json.decode(body, type=_Adapter)
        except NOT_AS_EXPECTED:
            return
        self._keep(said.lora_name or said.name, None if path == _UNLOAD else (path, body))

    def _keep(self, name: str, asked: Asked | None) -> None:
        """Store what the instances did; failures are logged with the name."""
        try:
            self._kept.keep_adapter(name, asked)
        except (OSError, HeadwayError) as error:
            _LOG.warning("what became of the adapter %r is not kept for other gateways: %s", name, error)

    async def load(self, session: aiohttp.ClientSession, instance: str, url: str) -> None:
        """Let an instance load all adapters; failures are logged with the name."""
        limit = aiohttp.ClientTimeout(total=_LOAD_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        for name, (path, body) in list(self._kept.adapters().items()):
            address = root_of(url) + path
            try:
                async with session.post(address, data=body, headers=headers, timeout=limit) as response:
                    told = await response.text()
                    done = (
                        response.ok or "already" in told
                    )  # an instance that was lost and is back still has it
            except NO_ANSWER as error:
                done, told = False, named(error)
            if not done:
                _LOG.warning("%s does not load the adapter %r: %s", instance, name, told[:200])
