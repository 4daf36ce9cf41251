"""A request queue that shows vLLM only the waiting requests that a plan selected."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request


class WindowQueue(RequestQueue):  # type: ignore[misc]
    """All waiting requests by id. While a window is `show`n, vLLM sees the window's front as the queue's front.

    `len` and iteration always cover all requests, so counts, aborts and idle checks stay right. add, remove, peek, pop:
    O(1). `passed_over` are the ids of requests that vLLM skipped in the last window.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        self._window: deque[Request] | None = None
        self.passed_over: set[str] = set()

    def find(self, request_ids: Iterable[str]) -> list[Request]:
        """The waiting requests with these ids, in this order; other ids are left out."""
        requests = self._requests
        return [requests[request_id] for request_id in request_ids if request_id in requests]

    def show(self, requests: Iterable[Request]) -> None:
        """Let the next pops return these requests in this order, and then find the queue empty."""
        self._window = deque(requests)
        self.passed_over.clear()

    def close(self) -> None:
        """End the window."""
        self._window = None

    def add_request(self, request: Request) -> None:
        """Take in a waiting request."""
        self._requests[request.request_id] = request

    def prepend_request(self, request: Request) -> None:
        """Take in a preempted request. Its place in the order is decided by the policy."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Take back skipped requests; vLLM names the last of them first."""
        for request in reversed(list(requests)):
            self.add_request(request)
            self.passed_over.add(request.request_id)

    def peek_request(self) -> Request:
        """The window's first request."""
        if not self._window:
            raise IndexError("peek outside a window, or at its end")
        return self._window[0]

    def pop_request(self) -> Request:
        """Remove the window's first request from window and queue."""
        if not self._window:
            raise IndexError("pop outside a window, or at its end")
        request = self._window.popleft()
        del self._requests[request.request_id]
        return request

    def remove_request(self, request: Request) -> None:
        """Take a request out."""
        del self._requests[request.request_id]

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of `requests` that are here."""
        for request in requests:
            self._requests.pop(request.request_id, None)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._requests

    def __bool__(self) -> bool:
        return bool(self._requests if self._window is None else self._window)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())
