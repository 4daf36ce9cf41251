"""Adapters that were loaded through the gateway, for instances that are launched anew."""

from __future__ import annotations

import logging

import aiohttp
import msgspec

from headway.http_client import NO_ANSWER, NOT_AS_EXPECTED, named, root_of

ADAPTERS = "/adapters"
"""Adapters as SageMaker has them: POST, and DELETE of a name under it."""
_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
_LOAD_TIMEOUT_S = 60.0
_LOG = logging.getLogger(__name__)


class _Adapter(msgspec.Struct):
    lora_name: str = ""
    name: str = ""


class Adapters:
    """What instances were asked to load and not to unload again: name -> path and body of that request."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[str, bytes]] = {}

    def note(self, method: str, path: str, body: bytes) -> None:
        """An instance did what this request asks. One about anything else changes nothing."""
        if method == "DELETE" and path.startswith(f"{ADAPTERS}/"):
            self._loaded.pop(path.removeprefix(f"{ADAPTERS}/"), None)
        if method != "POST" or path not in (_LOAD, _UNLOAD, ADAPTERS):
            return
        try:
            said = msgspec.json.decode(body, type=_Adapter)
        except NOT_AS_EXPECTED:
            return
        name = said.lora_name or said.name
        if path == _UNLOAD:
            self._loaded.pop(name, None)
        else:
            self._loaded[name] = (path, body)

    async def load(self, session: aiohttp.ClientSession, instance: str, url: str) -> None:
        """Have an instance load them all; what it does not load is named in the log."""
        limit = aiohttp.ClientTimeout(total=_LOAD_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        for name, (path, body) in list(self._loaded.items()):
            address = root_of(url) + path
            try:
                async with session.post(address, data=body, headers=headers, timeout=limit) as response:
                    told = await response.text()
                    done = response.ok or "already" in told  # one that was lost and is back has it still
            except NO_ANSWER as error:
                done, told = False, named(error)
            if not done:
                _LOG.warning("%s does not load the adapter %r: %s", instance, name, told[:200])
