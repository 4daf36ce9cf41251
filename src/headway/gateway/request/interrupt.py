"""Ending a task's waiting from outside, for a reason it can tell from being cancelled itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class Cut(IntEnum):
    """Why waiting was cut short; of several reasons the greatest counts."""

    LOST = 1
    """The instance is gone or frozen."""
    TOO_OLD = 2
    """Its answer has not begun within the age limit."""
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

    def clear(self, reason: Cut) -> None:
        """Forget that reason: what it was about is over."""
        if self.reason is reason:
            self.reason = None

    async def wait(self, work: Awaitable[T]) -> T:
        """The work's result. Raises WaitCut if it was cut short; the work is cancelled then."""
        if self.reason is not None:
            _drop(work)
            raise WaitCut(self.reason)
        self._waiting = True
        try:
            return await work
        except asyncio.CancelledError:
            if self._cancelled and self._task.cancelling() == 1 and self.reason is not None:
                raise WaitCut(self.reason) from None
            raise  # somebody cancels the task itself
        finally:
            self._waiting = False
            if self._cancelled:
                self._cancelled = False
                self._task.uncancel()


def _drop(work: Awaitable[object]) -> None:
    """Let go of work that is not begun, so that nothing complains of it."""
    close = getattr(work, "close", None)
    if callable(close):
        close()
