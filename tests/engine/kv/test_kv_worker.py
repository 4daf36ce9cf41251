"""A worker's copies, on real CPU tensors and with copiers that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from headway.engine.kv.copies import PIECE_BLOCKS, CopyOrder, CopyOrders, CopyReport, CpuCopier, pieces
from headway.engine.kv.worker_side import REPORT_STEPS, KvWorker, block_first
from headway.errors import ConfigError

pytestmark = pytest.mark.vllm

NUM_BLOCKS = 11
HOST_BLOCKS = 7
SHAPES = {
    "block first": (NUM_BLOCKS, 2, 4, 6),
    "keys and values first": (2, NUM_BLOCKS, 4, 3),
    "smaller kernel blocks": (2, 4 * NUM_BLOCKS, 1, 3),
}
LAYOUTS = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


def layers_of(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, count: int = 3
) -> dict[str, torch.Tensor]:
    """KV caches of several layers, every number in them another one where the type can tell."""
    drawn = torch.Generator().manual_seed(0)
    return {f"layer {n}": torch.randn(shape, generator=drawn).to(dtype) for n in range(count)}


@contextmanager
def worker_over(
    layers: dict[str, torch.Tensor], host_blocks: int = HOST_BLOCKS, bytes_per_s: float | None = None
) -> Iterator[KvWorker]:
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=3, dtype=torch.float32)
    config = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(list(layers), spec)])
    worker = KvWorker.over(layers, config, host_blocks, bytes_per_s)
    try:
        yield worker
    finally:
        worker.close()


def reported(worker: KvWorker, *numbers: int) -> CopyReport:
    """Everything reported until these orders have ended."""
    total = CopyReport()
    while not set(numbers) <= {*total.done, *total.failed}:
        time.sleep(1e-4)  # the copies' own threads want the interpreter too
        total = total.aggregate(worker.report() or CopyReport())
    return total


def blocks_of(layers: dict[str, torch.Tensor], blocks: tuple[int, ...]) -> list[torch.Tensor]:
    return [block_first(layer, NUM_BLOCKS)[list(blocks)].clone() for layer in layers.values()]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


block_lists = st.integers(1, HOST_BLOCKS).flatmap(
    lambda count: st.tuples(
        *(
            st.lists(st.integers(0, among - 1), min_size=count, max_size=count, unique=True).map(tuple)
            for among in (NUM_BLOCKS, HOST_BLOCKS, NUM_BLOCKS)
        )
    )
)


@LAYOUTS
@DTYPES
@pytest.mark.parametrize("serial", [True, False], ids=["serial", "beside"])
@settings(max_examples=10, deadline=None)
@given(lists=block_lists)
def test_what_is_saved_and_restored_is_the_same_and_nothing_else_is_touched(
    shape: tuple[int, ...], dtype: torch.dtype, serial: bool, lists: tuple[tuple[int, ...], ...]
) -> None:
    layers = layers_of(shape, dtype)
    source, host, target = lists
    with worker_over(layers) as worker:
        saved = blocks_of(layers, source)
        worker.start(CopyOrders(serial, to_host=[CopyOrder(1, source, host)]))
        assert reported(worker, 1).done[1][0] == 1
        for layer in layers.values():
            layer.fill_(-1)
        worker.start(CopyOrders(serial, to_device=[CopyOrder(2, target, host)]))
        assert not reported(worker, 2).failed
    assert same(blocks_of(layers, target), saved)
    others = tuple(set(range(NUM_BLOCKS)) - set(target))
    assert all(torch.all(left == -1) for left in blocks_of(layers, others))


def test_an_order_of_many_blocks_is_copied_in_pieces() -> None:
    many = tuple(range(2 * PIECE_BLOCKS + 5))
    assert [len(device) for device, _ in pieces(CopyOrder(1, many, many), PIECE_BLOCKS)] == [64, 64, 5]
    layer = torch.arange(len(many), dtype=torch.float32).reshape(-1, 1).repeat(1, 4)
    copier = CpuCopier([layer], len(many), None)
    copier.save(CopyOrder(1, many, many[::-1])).wait()
    expected = layer.clone()
    layer.zero_()
    copier.restore(CopyOrder(2, many, many[::-1])).wait()
    copier.close()
    assert torch.equal(layer, expected)


def test_no_copy_is_reported_before_an_earlier_one_the_same_way() -> None:
    """Looked at in turn, a later one may have ended just after an earlier one had not."""
    worker, ended = KvWorker(FailingCopier()), iter([False, True, True, True])
    orders = CopyOrders(
        to_host=[CopyOrder(1, (0,), (0,)), CopyOrder(2, (1,), (1,))], to_device=[CopyOrder(3, (2,), (2,))]
    )
    worker.start(orders)
    worker._under_way[0].ticket.done = lambda: next(ended)  # type: ignore[method-assign]
    assert reported(worker, 3).done.keys() == {3}
    assert list(reported(worker, 1, 2).done) == [1, 2]


@LAYOUTS
def test_several_orders_one_way_are_carried_out_in_the_order_given(shape: tuple[int, ...]) -> None:
    layers = layers_of(shape)
    with worker_over(layers) as worker:
        last = blocks_of(layers, (5,))
        # All to one host block, and from it to one device block: the last of each decides.
        saves = [CopyOrder(block + 1, (block,), (0,)) for block in range(6)]
        worker.start(CopyOrders(to_host=saves))
        assert list(reported(worker, 1, 2, 3, 4, 5, 6).done) == [1, 2, 3, 4, 5, 6]
        worker.start(CopyOrders(to_host=[CopyOrder(7, (0,), (1,))]))
        reported(worker, 7)
        restores = [CopyOrder(8, (9,), (1,)), CopyOrder(9, (9,), (0,))]
        worker.start(CopyOrders(to_device=restores))
        reported(worker, 8, 9)
    assert same(blocks_of(layers, (9,)), last)


def test_a_step_waits_for_serial_copies_and_reports_them_at_once() -> None:
    layers = layers_of(SHAPES["block first"])
    orders = CopyOrders(True, to_host=[CopyOrder(1, (3,), (0,))], to_device=[CopyOrder(2, (4,), (0,))])
    with worker_over(layers, bytes_per_s=1e6) as worker:
        worker.start(orders)
        report = worker.report()
    assert report is not None
    assert same(blocks_of(layers, (3,)), blocks_of(layers, (4,)))
    assert report.done.keys() == {1, 2}
    assert report.waited_s >= report.done[1][1] + report.done[2][1]


def test_a_limit_on_bandwidth_is_kept_by_every_copy() -> None:
    layers = layers_of(SHAPES["block first"])
    block_bytes = sum(layer[0].nbytes for layer in layers.values())
    limit = 100 * block_bytes  # a hundredth of a second a block
    with worker_over(layers, bytes_per_s=limit) as worker:
        worker.start(CopyOrders(to_host=[CopyOrder(1, (1, 2, 3), (0, 1, 2))]))
        worker.start(CopyOrders(True, to_host=[CopyOrder(2, (4,), (3,))]))
        done = reported(worker, 1, 2).done
    assert done[1][1] >= 3 * block_bytes / limit
    assert done[2][1] >= block_bytes / limit


def test_without_a_copy_only_the_steps_times_are_reported_now_and_then() -> None:
    ticks = count()
    worker = KvWorker(FailingCopier(), clock=lambda: float(next(ticks)))

    def step(orders: CopyOrders) -> CopyReport | None:
        worker.start(orders)
        return worker.report()

    nothing = CopyOrders(serial=True)
    for _ in range(2):
        assert [step(nothing) for _ in range(REPORT_STEPS - 1)] == [None] * (REPORT_STEPS - 1)
        assert step(nothing) == CopyReport(forward_s=float(REPORT_STEPS))
    assert worker.report() is None
    # A copy that has ended is told at once, and with it what has not been told.
    assert [step(nothing) for _ in range(3)] == [None] * 3
    told = step(CopyOrders(to_host=[CopyOrder(1, (0,), (0,))]))
    assert told == CopyReport({1: (1, 0.5)}, forward_s=4.0)


def test_closing_ends_the_threads() -> None:
    before = set(threading.enumerate())
    with worker_over(layers_of(SHAPES["block first"])) as worker:
        worker.start(CopyOrders(to_host=[CopyOrder(1, (0,), (0,))], to_device=[CopyOrder(2, (0,), (0,))]))
        started = set(threading.enumerate()) - before
        assert len(started) == 2
    assert not any(thread.is_alive() for thread in started)


# ---- copies that fail --------------------------------------------------------------------------------


@dataclass
class FailingTicket:
    """A copy that has ended, well or not."""

    fails: bool

    def done(self) -> bool:
        return True

    def wait(self) -> float:
        if self.fails:
            raise RuntimeError("on purpose")
        return 0.5


@dataclass
class FailingCopier:
    """Copies nothing; orders in `failing` cannot begin, or fail `later`."""

    failing: set[int] = field(default_factory=set)
    later: bool = False
    begun: list[int] = field(default_factory=list)

    def save(self, order: CopyOrder) -> FailingTicket:
        if order.number in self.failing and not self.later:
            raise RuntimeError("on purpose")
        self.begun.append(order.number)
        return FailingTicket(order.number in self.failing)

    restore = save

    def close(self) -> None:
        self.begun.clear()


FAILURES = pytest.mark.parametrize("later", [False, True], ids=["at the start", "later"])
SERIAL = pytest.mark.parametrize("serial", [True, False], ids=["serial", "beside"])


@FAILURES
@SERIAL
def test_host_blocks_of_a_failed_copy_are_of_no_use_until_they_are_written_again(
    later: bool, serial: bool
) -> None:
    copier = FailingCopier({1}, later)
    worker = KvWorker(copier)
    worker.start(CopyOrders(serial, to_host=[CopyOrder(1, (1, 2), (4, 5))]))
    assert reported(worker, 1).failed == {1: 1}
    assert worker.take_invalid_blocks() == set()
    worker.start(CopyOrders(serial, to_device=[CopyOrder(2, (8,), (5,)), CopyOrder(3, (9,), (6,))]))
    report = reported(worker, 2, 3)
    assert (report.failed, report.done) == ({2: 1}, {3: (1, 0.5)})
    assert 2 not in copier.begun
    worker.start(CopyOrders(serial, to_host=[CopyOrder(4, (1,), (5,))]))
    reported(worker, 4)
    worker.take_invalid_blocks()
    worker.start(CopyOrders(serial, to_device=[CopyOrder(5, (8,), (5,)), CopyOrder(6, (7,), (4,))]))
    report = reported(worker, 5, 6)
    assert (report.done, report.failed) == ({5: (1, 0.5)}, {6: 1})


@FAILURES
@SERIAL
def test_device_blocks_a_step_runs_without_are_named_once(later: bool, serial: bool) -> None:
    worker = KvWorker(FailingCopier({2}, later))
    worker.start(CopyOrders(serial, to_device=[CopyOrder(1, (3,), (0,)), CopyOrder(2, (4, 5), (1, 2))]))
    report = reported(worker, 1, 2)
    assert (report.done, report.failed) == ({1: (1, 0.5)}, {2: 1})
    assert worker.take_invalid_blocks() == ({4, 5} if serial else set())
    assert worker.take_invalid_blocks() == set()


# ---- several workers ---------------------------------------------------------------------------------


def test_reports_of_workers_add_up_and_the_slowest_counts() -> None:
    one = CopyReport({1: (1, 0.2), 2: (1, 0.1)}, {3: 1}, waited_s=0.3, forward_s=1.0)
    other = CopyReport({1: (1, 0.5)}, {2: 1, 3: 1}, waited_s=0.1, forward_s=2.0)
    both = CopyReport({1: (2, 0.5), 2: (1, 0.1)}, {2: 1, 3: 2}, waited_s=0.3, forward_s=2.0)
    assert one.aggregate(other) == other.aggregate(one) == both
    assert one.aggregate(CopyReport()) == one


# ---- layouts and memory ------------------------------------------------------------------------------


def test_a_layer_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has shape \(3, 4\), of which none counts blocks"):
        block_first(torch.zeros(3, 4), NUM_BLOCKS)


def test_memory_that_cannot_be_had_is_refused_with_its_size() -> None:
    layers = layers_of(SHAPES["block first"])
    blocks = 1 << 55
    size = blocks * sum(layer[0].nbytes for layer in layers.values())
    complaint = rf"^there is no room for {blocks} blocks of KV \({size} bytes\) in host memory: "
    with pytest.raises(ConfigError, match=complaint), worker_over(layers, blocks):
        pass


def test_what_a_copy_raises_is_known_when_it_is_waited_for() -> None:
    copier = CpuCopier([torch.zeros(4, 2)], 2, None)
    ticket: Any = copier.save(CopyOrder(1, (9,), (0,)))
    with pytest.raises(IndexError):
        ticket.wait()
    copier.close()
