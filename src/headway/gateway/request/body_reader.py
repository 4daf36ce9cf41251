"""Reads requests for tokens without blocking the event loop: large bodies are decoded in another process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from codecs import BOM_UTF8
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from headway.gateway.http.api import APIS
from headway.gateway.http.asgi_client import Headers
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.generation_request import GenerationRequest, Outline, outline_of, read_request
from headway.with_parent import signal_with_parent

T = TypeVar("T")

MAX_BYTES_HERE = 2**20
MAX_COMMAS_HERE = 2**14
"""A body with more bytes, or more values (counted by commas), is decoded in the other process."""


class BodyReader:
    """Decodes small bodies at once, and larger ones in a process, which `start` or the first such body starts.

    A thread would not help: the decoder holds the interpreter's lock until it has decoded a body. Each tenant's key has
    at most one body in the process at a time, so that no tenant's bodies delay all others.
    """

    def __init__(self) -> None:
        self._processes: ProcessPoolExecutor | None = None
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def read(
        self, path: str, headers: Headers, body: bytes, *, key_tenant: str = "", **options: Any
    ) -> GenerationRequest:
        """Return `read_request(path, headers, body, **options)`, and raise its errors.

        A byte order mark before the body is ignored. Also raises GatewayError (503) if the process cannot be started,
        or ends before it has answered.
        """
        options["key_tenant"] = key_tenant
        body = body.removeprefix(BOM_UTF8)
        if _is_small(body):
            return read_request(path, headers, body, **options)
        request, places = await self._apart(key_tenant, _read, path, list(headers), body, options)
        request.api = APIS[request.api.path]
        view = memoryview(body)
        request.fields = {name: msgspec.Raw(view[start:end]) for name, (start, end) in places.items()}
        return request

    async def outline(self, body: bytes, *, key_tenant: str = "", names_tenants: bool = True) -> Outline:
        """Return `outline_of(body)`, and raise its errors. Raises GatewayError (503) as `read` does."""
        outline = partial(outline_of, names_tenants=names_tenants)
        here = _is_small(body) or body.startswith(b"--")
        return outline(body) if here else await self._apart(key_tenant, outline, body)

    async def _apart(self, tenant: str, function: Callable[..., T], *arguments: object) -> T:
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        async with turn:
            return await self._submitted(function, *arguments)

    async def _submitted(self, function: Callable[..., T], *arguments: object) -> T:
        processes = self._started()
        try:
            return await asyncio.wrap_future(_submit(processes, function, *arguments))
        except (BrokenProcessPool, OSError):
            # All waiting calls fail, one after another; a new process may exist by now.
            if self._processes is processes:
                self.close()
            raise GatewayError(
                503, "body_not_read", "the body's reader ended; try again later", retry_after_s=1
            ) from None

    def start(self) -> None:
        """Start the process in advance, since that takes a second. A failure is retried with the first body."""
        try:
            _submit(self._started(), len, b"")
        except (BrokenProcessPool, OSError):
            self.close()

    def _started(self) -> ProcessPoolExecutor:
        if self._processes is None:
            self._processes = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
        return self._processes

    def close(self) -> None:
        """End the process."""
        if self._processes is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)
            self._processes = None


def _is_small(body: bytes) -> bool:
    return len(body) <= MAX_BYTES_HERE and body.count(b",") <= MAX_COMMAS_HERE


def _submit(processes: ProcessPoolExecutor, function: Callable[..., T], *arguments: object) -> Future[T]:
    """Submit the call, and start the process for the first one.

    The process inherits blocked signals, so that the gateway alone answers Ctrl-C and SIGTERM from the beginning.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return processes.submit(function, *arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """End this process with the gateway, which may have ended while the process started."""
    signal_with_parent(signal.SIGKILL)
    gateway = multiprocessing.parent_process()
    if gateway is None or not gateway.is_alive():
        os._exit(1)


def _read(
    path: str, headers: Headers, body: bytes, options: dict[str, Any]
) -> tuple[GenerationRequest, dict[str, tuple[int, int]]]:
    """A request without its fields, and the position of each field in the body, which the gateway has already."""
    request = read_request(path, headers, body, **options)
    origin = _address(body)
    places = {}
    for name, raw in request.fields.items():
        start = _address(raw) - origin
        places[name] = (start, start + memoryview(raw).nbytes)
    request.fields = {}
    return request, places


def _address(data: bytes | msgspec.Raw) -> int:
    address: int = np.frombuffer(data, np.uint8).ctypes.data
    return address
