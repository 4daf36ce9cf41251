"""Cuts a request short from outside: its client leaves, its instance is lost, it grows too old, the gateway ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class Cut(IntEnum):
    """Why waiting was cut short; of several reasons the greatest counts."""

    LOST = 1
    """The instance is gone or frozen."""
    TOO_OLD = 2
    """The answer has not begun within the age limit."""
    GONE = 3
    """The client has left."""
    CLOSING = 4
    """The gateway ends. It breaks connections itself then, which looks as if clients left."""


class WaitCut(Exception):
    """Raised in the task that waited."""

    def __init__(self, reason: Cut) -> None:
        super().__init__(reason.name)
        self.reason = reason


class Interrupt:
    """Belongs to the task that makes it. `cut` comes from elsewhere on the same event loop.

    It lands only while that task waits in `wait`, so never in the middle of something that has to be whole; a cut
    that comes at another time lands in the next `wait`. O(1).
    """

    __slots__ = ("_cancelled", "_task", "_waiting", "reason")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._waiting = False
        self._cancelled = False
        self.reason: Cut | None = None

    def cut(self, reason: Cut) -> None:
        """End the task's waiting, now or the next time it waits."""
        if self.reason is None or reason > self.reason:
            self.reason = reason
        if self._waiting and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def client_left(self) -> None:
        """Cut it short because its client has left."""
        self.cut(Cut.GONE)

    def clear(self, reason: Cut) -> None:
        """Forget that reason: what it was about is over."""
        if self.reason is reason:
            self.reason = None

    async def wait(self, work: Awaitable[T]) -> T:
        """The work's result. Raises WaitCut if it was cut short; the work is cancelled then."""
        if self.reason is not None:
            if isinstance(work, Coroutine):
                work.close()  # it is not begun, and nothing is to complain of that
            raise WaitCut(self.reason)
        self._waiting = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._cancelled and self._task.cancelling() == 1 and self.reason is not None:
                raise WaitCut(self.reason) from None
            raise  # the task itself is cancelled
        finally:
            self._waiting = False
            if self._cancelled:
                self._cancelled = False
                self._task.uncancel()


class InstanceLosses:
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
