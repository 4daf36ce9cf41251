"""Who is told when an instance is lost: every request that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from headway.gateway.interrupt import Cut, Interrupt


class Losses:
    """One task an instance's life waits for its end, in place of one a request. O(1) a request."""

    def __init__(self) -> None:
        self._there: dict[asyncio.Event, set[Interrupt]] = {}
        self._watchers: dict[asyncio.Event, asyncio.Task[None]] = {}

    @contextmanager
    def cutting(self, loss: asyncio.Event, interrupt: Interrupt) -> Iterator[None]:
        """As long as this is open, `loss` cuts the request short; at once if it is set already."""
        there = self._there.get(loss)
        if there is None:
            there = self._there[loss] = set()
            self._watchers[loss] = asyncio.create_task(self._watch(loss))
        there.add(interrupt)
        if loss.is_set():
            interrupt.cut(Cut.LOST)
        try:
            yield
        finally:
            there.discard(interrupt)
            interrupt.clear(Cut.LOST)

    async def _watch(self, loss: asyncio.Event) -> None:
        await loss.wait()
        del self._watchers[loss]
        for interrupt in self._there.pop(loss):
            interrupt.cut(Cut.LOST)

    def close(self) -> None:
        """Wait for no instance any longer."""
        for watcher in self._watchers.values():
            watcher.cancel()
        self._watchers.clear()
        self._there.clear()
