"""Who is told when an instance is lost: the router, and every request that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.gateway.request.interrupt import Cut, Interrupt


class Losses:
    """One task an instance's life waits for its end, in place of one a request. O(1) a request."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        """`lost` hears the name of each instance that is, if it was ever sent anything in that life."""
        self._lost = lost
        self._there: dict[asyncio.Event, set[Interrupt]] = {}
        self._watchers: dict[asyncio.Event, asyncio.Task[None]] = {}

    @contextmanager
    def cutting(self, name: str, loss: asyncio.Event, interrupt: Interrupt) -> Iterator[None]:
        """As long as this is open, the instance's `loss` cuts the request short; at once if it is set already."""
        there = self._there.get(loss)
        if there is None:
            there = self._there[loss] = set()
            self._watchers[loss] = asyncio.create_task(self._watch(name, loss))
        there.add(interrupt)
        if loss.is_set():
            interrupt.cut(Cut.LOST)
        try:
            yield
        finally:
            there.discard(interrupt)
            interrupt.clear(Cut.LOST)

    async def _watch(self, name: str, loss: asyncio.Event) -> None:
        await loss.wait()
        self._lost(name)
        del self._watchers[loss]
        for interrupt in self._there.pop(loss):
            interrupt.cut(Cut.LOST)

    def close(self) -> None:
        """Wait for no instance any longer."""
        for watcher in self._watchers.values():
            watcher.cancel()
        self._watchers.clear()
        self._there.clear()
