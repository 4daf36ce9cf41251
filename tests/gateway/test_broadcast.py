"""What changes instances reaches all of them; the rest of the API keeps to the limits of all requests."""

from __future__ import annotations

import asyncio
import json

import pytest

from headway.gateway.api import RESPONSES
from headway.gateway.keys import Keys
from headway.gateway.stored_responses import StoredResponses
from tests.gateway.fleets import until
from tests.gateway.front import gateway
from tests.gateway.test_named_apis import BODIES, answering
from tests.gateway.upstream import Upstream, upstream

LOAD = "/v1/load_lora_adapter"


def asked(instance: Upstream, path: str) -> int:
    return instance.echoed.count(path)


async def test_an_adapter_is_loaded_by_every_instance_and_listed_then() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        for instance in (first, second):
            instance.models_there.append("lora")
        answer = await front.post({"lora_name": "lora"}, LOAD)
        assert answer.status == 202
        assert json.loads(answer.json["body"]) == {"lora_name": "lora"}
        assert asked(first, LOAD) == asked(second, LOAD) == 1

        async def listed() -> list[str]:
            return [model["id"] for model in (await front.get("/v1/models")).json["data"]]

        async with asyncio.timeout(5):
            while await listed() != ["small", "lora"]:
                await asyncio.sleep(0.02)


async def test_it_says_which_did_not_do_it() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        second.echo_status = 400
        answer = await front.post({}, LOAD)
        assert answer.status == 502
        assert "1 of 2 instances did not do it: b:" in answer.json["error"]["message"]
        first.echo_status = 400
        assert (await front.post({}, LOAD)).status == 400, "all of them say so: it is the request"


async def test_one_that_is_gone_did_not_do_it() -> None:
    async with upstream("a") as first, gateway(first) as front:
        async with upstream("b") as second:
            pass
        front.fleet.member("a").url = second.url
        answer = await front.post({}, LOAD)
        assert answer.status == 502
        assert "a did not answer" in answer.json["error"]["message"]
        front.fleet.member("a").url = first.url
        await until(front.fleet.names)


async def test_asking_is_asked_of_one() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        await front.get(LOAD)
        assert asked(first, LOAD) + asked(second, LOAD) == 1


async def test_who_computes_elsewhere_keeps_to_its_tenants_limit() -> None:
    keys = Keys({b"right": "blue"})
    async with upstream() as instance, gateway(instance, keys=keys, max_per_tenant=1) as front:
        right = {"Authorization": "Bearer right"}
        first = asyncio.create_task(front.post({}, "/v1/hang", **right))
        await until(lambda: instance.running)
        for path, status in (("/v1/embeddings", 429), ("/tokenize", 202)):
            assert (await front.post({}, path, **right)).status == status
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await front.idle()
        assert (await front.post({}, "/v1/embeddings", **right)).status == 202
        assert (await front.post({}, "/v1/embeddings", x_tenant="red", **right)).status == 403


async def test_a_response_is_asked_for_where_it_is() -> None:
    async with (
        upstream("a", act=answering(2)) as first,
        upstream("b", act=answering(2)) as second,
        gateway(first, second) as front,
    ):
        body = BODIES[RESPONSES.path]
        await front.post({**body, "request_id": "resp_7"}, RESPONSES.path)
        home, other = (first, second) if first.turns else (second, first)
        for _ in range(3):
            await front.post({**body, "previous_response_id": "resp_7"}, RESPONSES.path)
            await front.get(f"{RESPONSES.path}/resp_7")
            await front.post(b"", f"{RESPONSES.path}/resp_7/cancel")
        assert (len(home.turns), len(home.echoed)) == (4, 6)
        assert not other.turns
        assert not other.echoed


def test_only_the_newest_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.stored_responses._MOST", 2)
    stored = StoredResponses()
    for name in ("resp_1", "resp_2", "resp_1", "resp_3"):
        stored.keep(name, "a")
    assert [stored.place_of(f"resp_{number}") for number in (1, 2, 3)] == ["a", None, "a"]
    assert stored.place_of_path("/v1/responses/resp_3/cancel") == "a"
    assert stored.place_of_path("/v1/responses") is None
