from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.v1.core.sched.request_queue import RequestQueue

from headway.engine.model_free import ScriptedRequest, to_request
from headway.engine.step.window_queue import WindowQueue
from tests.strategies import UNTIMED

pytestmark = pytest.mark.vllm

REQUESTS = [
    to_request(ScriptedRequest(str(index), 0, range(index * 10, index * 10 + 5), 1)) for index in range(8)
]
A, B, C, D = REQUESTS[:4]


@pytest.fixture
def queue() -> WindowQueue:
    filled = WindowQueue()
    for request in (A, B, C):
        filled.add_request(request)
    return filled


def drain(queue: WindowQueue) -> list[Any]:
    """The requests that vLLM's admission loop would take: it pops as long as the queue is true."""
    taken = []
    while queue:
        assert queue.peek_request() is queue.peek_request()
        taken.append(queue.pop_request())
    return taken


def test_vllm_accepts_it_as_a_queue() -> None:
    assert isinstance(WindowQueue(), RequestQueue)
    assert not WindowQueue.__abstractmethods__


@pytest.mark.parametrize("call", ["peek_request", "pop_request"])
def test_nothing_is_taken_outside_a_window(queue: WindowQueue, call: str) -> None:
    with pytest.raises(IndexError):
        getattr(queue, call)()
    queue.show([])
    with pytest.raises(IndexError):
        getattr(queue, call)()
    assert len(queue) == 3


def test_a_window_gives_its_requests_in_its_order_and_then_is_empty(queue: WindowQueue) -> None:
    queue.show([C, A])
    assert drain(queue) == [C, A]
    assert (bool(queue), len(queue), list(queue)) == (False, 1, [B])
    queue.close()
    assert bool(queue)


def test_removed_requests_are_gone(queue: WindowQueue) -> None:
    queue.remove_request(A)
    queue.remove_requests([B, D])
    assert list(queue) == [C]
    with pytest.raises(KeyError):
        queue.remove_request(A)


class AgainstAModel(RuleBasedStateMachine):
    """The queue beside a plain list of what waits and a list of what is shown."""

    @initialize()
    def start(self) -> None:
        self.queue = WindowQueue()
        self.waiting: list[Any] = []
        self.window: list[Any] | None = None
        self.passed_over: list[Any] = []

    def absent(self) -> list[Any]:
        return [request for request in REQUESTS if request not in self.waiting + self.passed_over]

    @precondition(lambda self: self.absent())
    @rule(data=st.data(), call=st.sampled_from(["add_request", "prepend_request"]))
    def arrive(self, data: st.DataObject, call: str) -> None:
        request = data.draw(st.sampled_from(self.absent()))
        getattr(self.queue, call)(request)
        self.waiting.append(request)

    @precondition(lambda self: self.window is None)
    @rule(data=st.data())
    def show(self, data: st.DataObject) -> None:
        self.window = data.draw(st.permutations(self.waiting))[: data.draw(st.integers(0, 8))]
        self.queue.show(iter(self.window))

    @precondition(lambda self: self.window)
    @rule(skip=st.booleans())
    def pop(self, skip: bool) -> None:
        assert self.window is not None
        assert self.queue.peek_request() is self.window[0]
        request = self.queue.pop_request()
        assert request is self.window.pop(0)
        self.waiting.remove(request)
        if skip:
            self.passed_over.append(request)

    @precondition(lambda self: self.window is not None)
    @rule()
    def close(self) -> None:
        self.queue.prepend_requests(self.passed_over)
        self.waiting += self.passed_over
        self.passed_over = []
        self.queue.close()
        self.window = None

    @precondition(lambda self: self.window is None and self.waiting)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.queue.remove_request(request)
        self.waiting.remove(request)

    @precondition(lambda self: self.window is None)
    @rule(victims=st.lists(st.sampled_from(REQUESTS), unique=True))
    def abort_several(self, victims: list[Any]) -> None:
        self.queue.remove_requests(victims)
        self.waiting = [request for request in self.waiting if request not in victims]

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert sorted(self.queue) == sorted(self.waiting)
        assert bool(self.queue) == bool(self.waiting if self.window is None else self.window)
        assert [request in self.queue for request in REQUESTS] == [
            request in self.waiting for request in REQUESTS
        ]
        ids = [request.request_id for request in REQUESTS]
        assert self.queue.find(ids) == [request for request in REQUESTS if request in self.waiting]


AgainstAModel.TestCase.settings = settings(UNTIMED, max_examples=60, stateful_step_count=30)
TestAgainstAModel = AgainstAModel.TestCase
