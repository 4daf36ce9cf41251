from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
from vllm.platforms import current_platform

from headway.engine.vllm import plugin
from headway.engine.vllm import seams as vllm_seams
from headway.engine.vllm.plugin import waits_asleep
from headway.engine.vllm.seams import CPU_WAITS, works

pytestmark = pytest.mark.vllm
OWN_WAIT = getattr(SpinCondition.wait, "__wrapped__", SpinCondition.wait)
"""vLLM's, whether or not another test has installed the plug-in."""


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpinCondition, "wait", OWN_WAIT)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[SpinCondition, SpinCondition]]:
    """The two ends of a queue: the sender, and the receiver, which has just read one message."""
    with zmq.Context() as context:
        address = f"ipc://{tmp_path / 'word'}"
        writer = SpinCondition(is_reader=False, context=context, notify_address=address)
        reader = SpinCondition(is_reader=True, context=context, notify_address=address)
        yield writer, reader
        sockets = (reader.local_notify_socket, reader.read_cancel_socket, reader.write_cancel_socket)
        for socket in (writer.local_notify_socket, *sockets):
            socket.close(linger=0)


def times_slept(reader: SpinCondition, waits: int) -> int:
    """How often this thread gave its core away of its own accord in so many looks for a message."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in range(waits):
        reader.record_read()
        reader.wait(timeout_ms=5_000)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_whoever_waits_for_a_message_sleeps(ends: tuple[SpinCondition, SpinCondition]) -> None:
    _, reader = ends
    assert times_slept(reader, waits=20) < 20  # vLLM's own spins
    SpinCondition.wait = waits_asleep(OWN_WAIT)
    assert times_slept(reader, waits=20) >= 20


def test_word_of_a_message_ends_the_wait(
    ends: tuple[SpinCondition, SpinCondition], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "RECHECK_MS", 60_000)
    SpinCondition.wait = waits_asleep(OWN_WAIT)
    writer, reader = ends
    while not reader.local_notify_socket.poll(10):  # what is sent before the two have met is lost
        writer.notify()
    reader.record_read()
    began_s = time.monotonic()
    reader.wait(timeout_ms=5_000)
    assert time.monotonic() - began_s < 30


def test_where_messages_are_rare_nobody_looks_again_and_again(
    ends: tuple[SpinCondition, SpinCondition],
) -> None:
    SpinCondition.wait = waits_asleep(OWN_WAIT)
    _, reader = ends
    reader.last_read = -1e9
    began_s = time.monotonic()
    reader.wait(timeout_ms=50)
    assert time.monotonic() - began_s >= 0.045


def test_elsewhere_vllm_waits_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(vllm_seams, "_settled", {})
    assert not works(CPU_WAITS)
    assert SpinCondition.wait is OWN_WAIT
