"""Work that a signal may cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """What the work returns, or None if `stop` is set before that."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(stop.wait())
    watcher.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if stop.is_set():
            return None
        raise
    finally:
        watcher.cancel()
