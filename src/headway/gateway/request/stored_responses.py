"""Which instance has a response that others build upon: vLLM keeps it in the process that made it."""

from __future__ import annotations

from headway.gateway.http.api import RESPONSES
from headway.gateway.http.refusal import Refusal

_MOST, _MOST_OF_A_TENANT = 100_000, 10_000
"""Of those that were made or asked for last: in all, and of a named tenant, for which no other's are forgotten."""


class StoredResponses:
    """Instances and tenants of responses by their ids. O(1).

    An instance that is lost may be back with all that it had; one that was launched anew says itself that it has not.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._of_tenant: dict[str, dict[str, None]] = {}

    def keep(self, response_id: str, instance: str, tenant: str) -> None:
        """It is made there."""
        self._forget(response_id)
        self._known[response_id] = (instance, tenant)
        theirs = self._of_tenant.setdefault(tenant, {})
        theirs[response_id] = None
        if tenant and len(theirs) > _MOST_OF_A_TENANT:
            self._forget(next(iter(theirs)))
        if len(self._known) > _MOST:
            self._forget(next(iter(self._known)))

    def _forget(self, response_id: str) -> None:
        known = self._known.pop(response_id, None)
        if known is not None:
            theirs = self._of_tenant[known[1]]
            del theirs[response_id]
            if not theirs:
                del self._of_tenant[known[1]]

    def place_of(self, response_id: str) -> str | None:
        """The instance that makes or made it; None if that is not known any more."""
        known = self._known.get(response_id)
        if known is None:
            return None
        self.keep(response_id, *known)
        return known[0]

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
