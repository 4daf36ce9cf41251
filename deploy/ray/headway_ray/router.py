"""Ray Serve's request router, deciding as one of Headway's does."""

from __future__ import annotations

import logging
import os
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from headway.routing import build_router
from headway_ray.placement import Placement

_LOG = logging.getLogger("ray.serve")


class HeadwayRouter(RequestRouter):
    """`request_router_kwargs`: `router`, a name of `headway.routing.ROUTERS`, and `sees_ends`."""

    def initialize_state(self, router: str, sees_ends: bool) -> None:
        """Called once with the kwargs. Raises ConfigError for a router that does not exist."""
        self._placement = Placement(build_router(router), sees_ends=sees_ends)
        _LOG.info("Headway routes by %s in process %d", router, os.getpid())

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The chosen replica first, then the others, should it be gone or full."""
        if pending_request is None or not candidate_replicas:
            return [candidate_replicas]
        request_id = pending_request.metadata.internal_request_id
        request = pending_request.args[0] if pending_request.args else None
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        chosen = self._placement.choose(request_id, request, list(by_id))
        pending_request.future.add_done_callback(lambda future: self._given_up(future, request_id))
        others = [replica for name, replica in by_id.items() if name != chosen]
        return [[by_id[chosen]], others] if others else [[by_id[chosen]]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Its answer is whole, or will not come."""
        self._placement.ended(internal_request_id)

    def _given_up(self, future: Any, request_id: str) -> None:
        """Its client left before it was sent anywhere."""
        if future.cancelled():
            self._placement.ended(request_id)
