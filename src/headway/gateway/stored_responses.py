"""Which instance has a response that others build upon: vLLM keeps it in the process that made it."""

from __future__ import annotations

from collections.abc import Sequence

from headway.gateway.api import RESPONSES
from headway.gateway.refusal import Refusal, no_instance

_MOST = 10_000
"""Of those that were asked for last."""


class StoredResponses:
    """Instances and tenants of responses by their ids, the newest and no more than `_MOST`. O(1), `lost` apart."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def keep(self, response_id: str, instance: str, tenant: str) -> None:
        """It is made there."""
        self._known.pop(response_id, None)
        self._known[response_id] = (instance, tenant)
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def lost(self, instance: str) -> None:
        """What that process had is gone with it. O(responses)."""
        self._known = {name: known for name, known in self._known.items() if known[0] != instance}

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

    def check_new(self, response_id: str, key_tenant: str) -> None:
        """Raise Refusal (404) for a name that is another tenant's, which a new response would take away."""
        if response_id in self._known:
            self.check(response_id, key_tenant)


def response_of_path(path: str) -> str | None:
    """The response that a path names (`/v1/responses/ID` and what is under it); None for any other."""
    under = path.removeprefix(f"{RESPONSES.path}/")
    return None if under == path else under.partition("/")[0]


def at_home(home: str, names: Sequence[str]) -> Sequence[str]:
    """The one instance that has what is asked for. Raises Refusal (503) while nothing may be sent there."""
    if home not in names:
        raise no_instance()
    return [home]
