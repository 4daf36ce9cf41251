"""Which instance has a response that others build upon: vLLM keeps it in the process that made it."""

from __future__ import annotations

from headway.gateway.api import RESPONSES
from headway.gateway.refusal import Refusal

_MOST = 10_000
"""Of those that were asked for last."""


class StoredResponses:
    """Instances and tenants of responses by their ids, the newest and no more than `_MOST`. O(1).

    An instance that is lost may be back with all that it had; one that was launched anew says itself that it has not.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def keep(self, response_id: str, instance: str, tenant: str) -> None:
        """It is made there."""
        self._known.pop(response_id, None)
        self._known[response_id] = (instance, tenant)
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def place_of(self, response_id: str) -> str | None:
        """The instance that makes or made it; None if that is not known any more."""
        known = self._known.get(response_id)
        return None if known is None else known[0]

    def check(self, response_id: str, key_tenant: str) -> None:
        """Raise Refusal (404) for a response that is not the tenant's, as far as the key says whose it is."""
        if key_tenant and self._known.get(response_id, ("", ""))[1] != key_tenant:
            raise Refusal(
                404, "unknown_response", f"no response {response_id[:80]!r} of tenant {key_tenant!r}"
            )


def response_of_path(path: str) -> str | None:
    """The response that a path names (`/v1/responses/ID` and what is under it); None for any other."""
    under = path.removeprefix(f"{RESPONSES.path}/")
    response_id = under.partition("/")[0]
    return response_id if under != path and response_id not in ("", "render") else None
