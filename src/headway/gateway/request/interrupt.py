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
    """The gateway ends. It then breaks connections itself, which looks as if clients left."""


class WaitCut(Exception):
    """Raised in the task that waited."""

    def __init__(self, reason: Cut) -> None:
        super().__init__(reason.name)
        self.reason = reason


class Interrupt:
    """Belongs to the task that makes it; `cut` is called from elsewhere on the same event loop.

    A cut takes effect only while that task waits in `wait`, so never inside an action that must be complete; a cut at
    another time takes effect in the next `wait`. O(1).
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
        """The client has left: cut the request short."""
        self.cut(Cut.GONE)

    def clear(self, reason: Cut) -> None:
        """Forget a reason that no longer applies."""
        if self.reason is reason:
            self.reason = None

    async def wait(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises WaitCut if it was cut short; `work` is cancelled then."""
        if self.reason is not None:
            if isinstance(work, Coroutine):
                work.close()  # avoids asyncio's warning about a coroutine that never ran
            raise WaitCut(self.reason)
        self._waiting = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._cancelled and self._task.cancelling() == 1 and self.reason is not None:
                raise WaitCut(self.reason) from None
            raise  # the task itself was cancelled
        finally:
            self._waiting = False
            if self._cancelled:
                self._cancelled = False
                self._task.uncancel()


class InstanceLosses:
    """One task for each life of an instance waits for its end, instead of one for each request. O(1) a request."""

    def __init__(self, lost: Callable[[str], None]) -> None:
        """`lost` is called with the name of each lost instance that was sent anything in that life."""
        self._lost = lost
        self._there: dict[asyncio.Event, set[Interrupt]] = {}
        self._watchers: dict[asyncio.Event, asyncio.Task[None]] = {}

    @contextmanager
    def cutting(self, name: str, loss: asyncio.Event, interrupt: Interrupt) -> Iterator[None]:
        """Let the instance's `loss` cut the request short inside the block; at once if it is set already."""
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
        """Stop waiting for instances."""
        for watcher in self._watchers.values():
            watcher.cancel()
        self._watchers.clear()
        self._there.clear()
