"""A tenant sees itself alone, on every page there is; and names that clients give themselves are labels."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from headway.gateway.http.api import APIS
from headway.gateway.http.keys import Keys
from tests.gateway.front import CHAT, PROMPT, Front, ask, gateway
from tests.gateway.upstream import Turn, upstream

KEYS = Keys({b"k1": "", b"k2": "blue", b"k3": "red"})
BLUE = {"Authorization": "Bearer k2"}

OPEN, ALIKE, OWN, FORBIDDEN = "needs no key", "the same for all", "the tenant's own", "403"
ROUTES = {
    "/health": OPEN,
    "/ready": OPEN,
    "/v1/models": ALIKE,
    "/openapi.json": ALIKE,
    "/explain": OWN,
    "/explain/{request_id:path}": OWN,
    "/v1/explain": OWN,
    "/v1/explain/{request_id:path}": OWN,
    "/v1/files": OWN,
    "/v1/files/{file_id}": OWN,
    "/v1/files/{file_id}/content": OWN,
    "/v1/batches": OWN,
    "/v1/batches/{batch_id}": OWN,
    "/v1/batches/{batch_id}/cancel": OWN,
    "/metrics": FORBIDDEN,
    "/shadow": FORBIDDEN,
    "/v1/scale": FORBIDDEN,
    "/v1/shadow/{counts:path}": FORBIDDEN,
    "/": FORBIDDEN,
    "/dashboard": FORBIDDEN,
    "/dashboard/": FORBIDDEN,
    "/dashboard/state": FORBIDDEN,
    "/dashboard/dashboard.css": FORBIDDEN,
    "/dashboard/dashboard.js": FORBIDDEN,
    "/dashboard/draw.js": FORBIDDEN,
    "/dashboard/explain.js": FORBIDDEN,
}
"""What a tenant's key gets of each page."""


async def ask_for_all(front: Front, key: str) -> dict[str, str]:
    """Send requests with a tenant's key, so that there is something to see; return a label for each path."""
    secret, allowed = f"secret-of-{key}", {"Authorization": f"Bearer {key}"}
    for path, body in (("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)):
        assert (await front.post(body, path, x_request_id=secret, **allowed)).status == 200
    line = {"custom_id": secret, "method": "POST", "url": "/v1/completions", "body": PROMPT}
    file = await front.upload(json.dumps(line).encode(), secret, **allowed)
    asked = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
    batch = (await front.post({**asked, "metadata": {"named": secret}}, "/v1/batches", **allowed)).json
    return {"request_id:path": secret, "counts:path": "0-0", "file_id": file["id"], "batch_id": batch["id"]}


async def test_a_tenants_key_gets_its_own_or_nothing_on_every_route(tmp_path: Path) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS, batch_dir=tmp_path) as front:
        names = {key: await ask_for_all(front, key) for key in ("k2", "k3")}
        routes = [route.path for route in front.app._own.routes if isinstance(route, Route)]
        described = (await front.get("/openapi.json", **BLUE)).json["paths"]
        # A page that was added is to be added here too, with what a tenant gets of it.
        assert set(routes) == ROUTES.keys()
        named = {path.replace("{request_id}", "{request_id:path}") for path in described}
        assert named <= {*ROUTES, *APIS}
        for path in routes:
            method = "POST" if path.endswith("/cancel") else "GET"
            for key, parts in names.items():
                place = path
                for part, name in parts.items():
                    place = place.replace(f"{{{part}}}", name)
                answer = await ask(front.session, method, front.url + place, None, BLUE)
                assert b'"red"' not in answer.body
                assert b"secret-of-k3" not in answer.body or answer.status == 404
                assert (answer.status == 403) == (ROUTES[path] == FORBIDDEN)
                if ROUTES[path] == OWN and key == "k2":
                    assert b"secret-of-k2" in answer.body
                if ROUTES[path] == OWN and key == "k3" and place != path:
                    assert answer.status == 404
        assert not instance.echoed


@pytest.mark.parametrize("options", [{}, {"trust_tenants": True}, {"keys": KEYS}])
@pytest.mark.parametrize("in_body", [False, True])
async def test_only_tenants_that_are_vouched_for_have_shares(
    options: dict[str, Any], in_body: bool, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    vouched = bool(options)
    async with upstream() as instance, gateway(instance, access_log=log, **options) as front:
        said = {"vllm_xargs": {"headway_tenant": "me", "other": 1}} if in_body else {}
        named = {} if in_body else {"x_tenant": "me"}
        assert (await front.post({**PROMPT, **said}, Authorization="Bearer k1", **named)).status == 200
        told = instance.bodies[0]["vllm_xargs"]
        assert told.get("headway_tenant") == ("me" if vouched else None)
        assert told.get("other") == (1 if in_body else None)
        await front.idle()
        [key] = front.accounts.classes
        assert key.tenant == "me"
    assert json.loads(log.read_text())["tenant"] == "me"


async def test_invented_tenants_share_one_share() -> None:
    going = asyncio.Event()

    async def late(turn: Turn) -> None:
        await going.wait()
        await turn.whole()

    for trusted, status in ((False, 429), (True, 200)):
        going.clear()
        options: dict[str, Any] = {"trust_tenants": trusted, "max_per_tenant": 1}
        async with upstream(act=late) as instance, gateway(instance, **options) as front:
            turns = instance.turns
            first = asyncio.create_task(front.post(PROMPT, x_tenant="one"))
            while not turns:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(front.post(PROMPT, x_tenant="two"))
            passed_on = await front.post({"input": "x"}, "/v1/embeddings", x_tenant="three")
            assert passed_on.status == (202 if trusted else 429)
            while len(turns) < 2 and not second.done():
                await asyncio.sleep(0.01)
            going.set()
            assert ((await first).status, (await second).status) == (200, status)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [[]], "vllm_xargs": {"headway_tenant": "me"}},
        {"sampling_params": {"extra_args": {"headway_tenant": "me"}}},
    ],
)
async def test_nor_do_bodies_that_go_on_as_they_are_name_tenants(body: dict[str, Any]) -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer = await front.post(body, "/inference/v1/generate")
        assert (answer.status, instance.echoed) == (400, [])
        assert "--trust-tenants" in answer.error["message"]
    async with upstream() as instance, gateway(instance, trust_tenants=True) as front:
        assert (await front.post(body, "/inference/v1/generate")).status == 202
