from __future__ import annotations

import resource

import pytest
from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

from headway.engine.cpu_waits import wait_asleep_on_cpu

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM's own, whether or not another test has installed the plug-in.
    from vllm.distributed.utils import sched_yield

    monkeypatch.setattr(shm_broadcast, "sched_yield", sched_yield)


def times_slept(waits: int) -> int:
    """How often this thread gave its core away of its own accord in so many looks for a message."""
    condition = object.__new__(shm_broadcast.SpinCondition)
    condition.is_reader, condition.last_read, condition.busy_loop_s = True, float("inf"), 1.0
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    for _ in range(waits):
        condition.wait()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_whoever_waits_for_a_message_sleeps() -> None:
    wait_asleep_on_cpu()
    assert times_slept(20) >= 20


def test_elsewhere_vllm_waits_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    own = shm_broadcast.sched_yield
    wait_asleep_on_cpu()
    assert shm_broadcast.sched_yield is own
