from __future__ import annotations

import asyncio

import pytest

from headway.gateway.request.interrupt import Cut, InstanceLosses, Interrupt, WaitCut


async def started(seen: list[Cut]) -> tuple[Interrupt, asyncio.Task[Cut]]:
    """A task that waits for ever, and says what ended that."""
    ready: asyncio.Future[Interrupt] = asyncio.get_running_loop().create_future()

    async def waits() -> Cut:
        interrupt = Interrupt()
        ready.set_result(interrupt)
        try:
            await interrupt.wait(asyncio.sleep(3600))
        except WaitCut as cut:
            seen.append(cut.reason)
            interrupt.clear(cut.reason)
            await interrupt.wait(asyncio.sleep(0))  # it goes on as if nothing had been
        return seen[-1]

    task = asyncio.create_task(waits())
    interrupt = await ready
    await asyncio.sleep(0)
    return interrupt, task


async def test_a_cut_ends_the_waiting_with_its_reason() -> None:
    seen: list[Cut] = []
    interrupt, task = await started(seen)
    interrupt.cut(Cut.GONE)
    assert await task is Cut.GONE
    assert not task.cancelling()


async def test_the_greatest_reason_counts() -> None:
    seen: list[Cut] = []
    interrupt, task = await started(seen)
    interrupt.cut(Cut.LOST)
    interrupt.cut(Cut.GONE)
    interrupt.cut(Cut.TOO_OLD)
    assert await task is Cut.GONE


async def test_only_the_reason_that_is_over_is_forgotten() -> None:
    interrupt = Interrupt()
    interrupt.cut(Cut.GONE)
    interrupt.clear(Cut.LOST)
    assert interrupt.reason is Cut.GONE
    interrupt.clear(Cut.GONE)
    assert await interrupt.wait(asyncio.sleep(0, "on")) == "on"


async def test_a_cut_lands_in_the_next_wait_and_nowhere_else() -> None:
    interrupt = Interrupt()
    interrupt.cut(Cut.CLOSING)
    await asyncio.sleep(0)  # not cut: this is not its waiting
    began = False

    async def work() -> None:
        nonlocal began
        began = True

    with pytest.raises(WaitCut) as raised:
        await interrupt.wait(work())
    assert raised.value.reason is Cut.CLOSING
    assert not began


async def test_results_and_errors_come_through() -> None:
    interrupt = Interrupt()

    async def fail() -> None:
        raise KeyError("x")

    assert await interrupt.wait(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(KeyError):
        await interrupt.wait(fail())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_task_that_is_cancelled_itself_is_cancelled() -> None:
    seen: list[Cut] = []
    interrupt, task = await started(seen)
    interrupt.cut(Cut.GONE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not seen


async def test_a_loss_cuts_all_who_are_there_and_nobody_else() -> None:
    lost: list[str] = []
    losses, loss, other = InstanceLosses(lost.append), asyncio.Event(), asyncio.Event()

    async def there(event: asyncio.Event) -> Cut | str:
        interrupt = Interrupt()
        with losses.cutting("a" if event is loss else "b", event, interrupt):
            try:
                return await interrupt.wait(asyncio.sleep(0.05, "in peace"))
            except WaitCut as cut:
                return cut.reason

    async def was_there() -> str:
        interrupt = Interrupt()
        with losses.cutting("a", loss, interrupt):
            pass
        return await interrupt.wait(asyncio.sleep(0.02, "in peace"))

    tasks = [asyncio.create_task(work) for work in (there(loss), there(loss), there(other), was_there())]
    await asyncio.sleep(0)
    loss.set()
    assert await asyncio.gather(*tasks) == [Cut.LOST, Cut.LOST, "in peace", "in peace"]
    assert lost == ["a"]
    assert await there(loss) is Cut.LOST  # it is lost already
    losses.close()
