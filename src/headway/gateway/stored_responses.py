"""Which instance has a response that others build upon: vLLM keeps it in the process that made it."""

from __future__ import annotations

from headway.gateway.api import RESPONSES

_MOST = 10_000
"""Of those that were asked for last."""


class StoredResponses:
    """Instances of responses by their ids, the newest and no more than `_MOST`. O(1)."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def keep(self, response_id: str, instance: str) -> None:
        """It was made there."""
        self._places.pop(response_id, None)
        self._places[response_id] = instance
        if len(self._places) > _MOST:
            del self._places[next(iter(self._places))]

    def place_of(self, response_id: str) -> str | None:
        """The instance that made it; None if that is not known any more."""
        return self._places.get(response_id)

    def place_of_path(self, path: str) -> str | None:
        """The same for a path that names a response: `/v1/responses/ID` and what is under it."""
        under = path.removeprefix(f"{RESPONSES.path}/")
        return None if under == path else self.place_of(under.partition("/")[0])
