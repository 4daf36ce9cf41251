"""Responses in the background count where they are made until they are made."""

from __future__ import annotations

import pytest

from tests.gateway.fleets import until
from tests.gateway.front import gateway
from tests.gateway.upstream import Turn, upstream

BODY = {"model": "small", "input": "x", "background": True}


async def queued(turn: Turn) -> None:
    answer = b'{"id": "resp_1", "object": "response", "status": "queued", "output": [], "usage": null}'
    await turn.refuse(200, answer, **{"Content-Type": "application/json"})


@pytest.mark.parametrize("end", ["completed", "failed", "lost"])
async def test_it_counts_until_it_is_made_or_lost(end: str) -> None:
    async with (
        upstream(act=queued, background_status="in_progress") as instance,
        gateway(instance, max_per_tenant=1) as front,
    ):
        assert (await front.post(BODY, "/v1/responses")).status == 200
        (member,) = front.fleet.members
        assert (member.in_flight, front.app.serving.queue.inside) == (1, 1)
        assert (await front.post(BODY, "/v1/responses")).error["code"] == "tenant_limit"
        if end == "lost":
            instance.sick = True
        else:
            instance.background_status = end
        await until(lambda: member.in_flight == 0)
        instance.sick = False
        await until(front.fleet.names)
        assert (await front.post({**BODY, "background": False}, "/v1/responses")).status == 200


async def test_the_gateway_does_not_wait_for_it_at_its_end() -> None:
    async with upstream(act=queued, background_status="queued") as instance, gateway(instance) as front:
        assert (await front.post(BODY, "/v1/responses")).status == 200
        front.stop.set()
        await front.task
