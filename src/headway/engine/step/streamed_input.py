"""Requests whose input is streamed, which no policy can serve: their parts are refused, the last one too."""

from __future__ import annotations

from collections.abc import Iterable

from vllm.v1.request import Request


class StreamedInput:
    """The clients that are streaming their input, by request id.

    Every part of it is a request of the same id. The last one does not say what it is: by itself it would be a prompt
    of one made-up token, answered at length for nobody.
    """

    def __init__(self) -> None:
        self._streaming: set[str] = set()

    def has_part(self, request: Request) -> bool:
        """Whether a request that comes in is a part of streamed input; after the last part its client is forgotten."""
        if request.resumable:
            self._streaming.add(request.request_id)
            return True
        if request.request_id not in self._streaming:
            return False
        self._streaming.remove(request.request_id)
        return True

    def forget(self, request_ids: Iterable[str] | None) -> None:
        """Clients have gone (None: all of them), so no last part will come."""
        if self._streaming:
            self._streaming.difference_update(self._streaming.copy() if request_ids is None else request_ids)
