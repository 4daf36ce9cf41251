"""Requests that change instances reach all of them; the rest of the API obeys the limits of all requests."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from headway.gateway.fleet.member import Condition
from headway.gateway.http.api import RESPONSES, response_of_path
from headway.gateway.http.keys import Keys
from headway.gateway.http.refusal import GatewayError
from headway.gateway.request.serving import StoredResponses
from tests.gateway.fleets import QUICK, until
from tests.gateway.front import Answer, ask, gateway
from tests.gateway.test_named_apis import BODIES, answering
from tests.gateway.upstream import Turn, Upstream, upstream

LOAD = "/v1/load_lora_adapter"
PATIENT = replace(QUICK, misses=10_000)
"""Who misses health checks is unwell, and not lost."""


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
    seldom = replace(PATIENT, interval_s=1.0)  # so that no health check finds out before the request does
    async with upstream("a") as first, gateway(first, fleet_options=seldom) as front:
        async with upstream("b") as second:
            pass
        front.fleet.member("a").url = second.url
        answer = await front.post({}, LOAD)
        assert answer.status == 502
        assert "a did not answer" in answer.json["error"]["message"]
        front.fleet.member("a").url = first.url
        await until(front.fleet.names)


async def test_those_that_cannot_be_asked_did_not_do_it_either() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        second.sick = True
        await until(lambda: front.fleet.member("b").condition is Condition.LOST)
        answer = await front.post({}, LOAD)
        assert (answer.status, asked(first, LOAD), asked(second, LOAD)) == (502, 1, 0)
        assert "1 of 2 instances did not do it: b:" in answer.json["error"]["message"]
        assert "it is lost" in answer.json["error"]["message"]


async def test_one_that_missed_a_check_is_asked_as_well() -> None:
    """It is ready again in a moment, and would be without what the others have."""
    async with (
        upstream("a") as first,
        upstream("b") as second,
        gateway(first, second, fleet_options=PATIENT) as front,
    ):
        second.sick = True
        await until(lambda: front.fleet.names() == ("a",))
        assert (await front.post({}, LOAD)).status == 202
        assert asked(second, LOAD) == 1


async def test_one_that_freezes_holds_nobody_up() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        second.echo_after_s = 3600
        asking = asyncio.create_task(front.post({}, LOAD))
        await until(lambda: asked(second, LOAD))
        assert front.fleet.member("b").in_flight == 1
        second.sick = True
        answer = await asyncio.wait_for(asking, 10)
        assert answer.status == 502
        assert "b did not answer (it was lost)" in answer.json["error"]["message"]


async def test_a_tenants_key_changes_nothing_for_all() -> None:
    keys = Keys({b"tenants": "blue", b"operators": ""})
    async with upstream() as instance, gateway(instance, keys=keys) as front:
        refused = await front.post({}, LOAD, Authorization="Bearer tenants")
        assert (refused.status, refused.json["error"]["code"]) == (403, "tenants_key")
        assert not instance.echoed
        assert (await front.post({}, LOAD, Authorization="Bearer operators")).status == 202


@pytest.mark.parametrize(
    "path",
    [
        "/init_weight_transfer_engine",
        "/adapters",
        "/x/v1/load_lora_adapter",  # with --root-path vLLM has all of its doors twice
        "/x/v1/responses/resp_1/cancel",
        "/invocations",  # in whose name it generates its body says
        "/inference/v1/generate",
        "/v1/chat/completions/batch",
        "/v1/audio/transcriptions",
    ],
)
async def test_a_tenants_key_asks_for_what_counts_as_the_tenants(path: str) -> None:
    keys = Keys({b"tenants": "blue", b"operators": ""})
    async with upstream() as instance, gateway(instance, keys=keys) as front:
        refused = await front.post({}, path, Authorization="Bearer tenants")
        assert (refused.status, refused.json["error"]["code"]) == (403, "tenants_key")
        assert f"{path!r} concerns all tenants, or counts for none" in refused.json["error"]["message"]
        assert not instance.echoed
        assert (await front.post({}, path, Authorization="Bearer operators")).status == 202
        for asked_for in ("/v1/embeddings", "/tokenize", "/v1/messages/count_tokens"):
            assert (await front.post({}, asked_for, Authorization="Bearer tenants")).status == 202


async def test_adapters_by_the_other_door_reach_all_too() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        assert (await front.post({}, "/adapters")).status == 202
        gone = await ask(front.session, "DELETE", f"{front.url}/adapters/lora", None, {})
        assert gone.status == 202
        for instance in (first, second):
            assert asked(instance, "/adapters") == asked(instance, "/adapters/lora") == 1


async def test_what_is_nested_too_deeply_names_no_adapter() -> None:
    async with upstream() as instance, gateway(instance) as front:
        deep = b'{"lora_name": "a", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"
        assert (await front.post(deep, LOAD)).status == 202
        assert (await front.post({}, "/adapters")).status == 202


async def test_who_waits_for_a_place_elsewhere_may_leave_and_does_not_wait_for_ever() -> None:
    async with upstream() as instance, gateway(instance, max_in_flight=1, max_age_s=0.5) as front:
        first = asyncio.create_task(front.post({}, "/v1/hang"))
        await until(lambda: instance.running)
        leaving = asyncio.create_task(front.post({}, "/v1/embeddings"))
        queue = front.app.serving.queue
        await until(lambda: queue.waiting)
        leaving.cancel()
        await until(lambda: not queue.waiting)
        answer = await front.post({}, "/v1/embeddings")
        assert (answer.status, answer.json["error"]["code"]) == (429, "too_old")
        assert not asked(instance, "/v1/embeddings")
        assert (await front.post({}, "/v1/messages/count_tokens")).status == 202, "it takes no place"
        first.cancel()
        await asyncio.gather(first, leaving, return_exceptions=True)


async def test_asking_is_asked_of_one() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        await front.get(LOAD)
        assert asked(first, LOAD) + asked(second, LOAD) == 1


async def test_who_computes_elsewhere_keeps_to_its_tenants_limit() -> None:
    keys = Keys({b"right": "blue"})
    async with upstream() as instance, gateway(instance, keys=keys, max_per_tenant=1) as front:
        right = {"Authorization": "Bearer right"}
        first = asyncio.create_task(front.post({}, "/v1/rerank", **right))
        await until(lambda: instance.running)
        for path, status in (("/v1/embeddings", 429), ("/tokenize", 202)):
            assert (await front.post({}, path, **right)).status == status
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await front.idle()
        assert (await front.post({}, "/v1/embeddings", **right)).status == 202
        assert (await front.post({}, "/v1/embeddings", x_tenant="red", **right)).status == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/invocations", {"prompt": ["one", "two"], "n": 2}),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "one, two"}]] * 4}),
        ("/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"n": 4}}),
    ],
)
async def test_sequences_are_counted_elsewhere_too(path: str, body: dict[str, Any]) -> None:
    async with upstream() as instance:
        for limit, status in ((3, 400), (4, 202)):
            async with gateway(instance, max_per_tenant=limit) as front:
                assert (await front.post(body, path)).status == status
        assert asked(instance, path) == 1


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b""])
async def test_a_body_that_is_not_understood_counts_as_one(body: bytes) -> None:
    async with upstream() as instance, gateway(instance, max_per_tenant=1) as front:
        assert (await front.post(body, "/invocations")).status == 202


@pytest.mark.parametrize("body", [b'{"n": "many"}', b'{"sampling_params": 3}'])
async def test_a_body_whose_sequences_cannot_be_counted_is_refused(body: bytes) -> None:
    async with upstream() as instance, gateway(instance, max_per_tenant=1) as front:
        assert (await front.post(body, "/invocations")).status == 400
        assert asked(instance, "/invocations") == 0


async def test_a_response_is_asked_for_where_it_is() -> None:
    async with (
        upstream("a", act=answering(2)) as first,
        upstream("b", act=answering(2)) as second,
        gateway(first, second, fleet_options=PATIENT) as front,
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
        assert home.bodies[-1]["vllm_xargs"]["headway_may_move"] == 0
        home.sick = True
        await until(lambda: len(front.fleet.names()) == 1)
        for answer in (
            await front.get(f"{RESPONSES.path}/resp_7"),
            await front.post({**body, "previous_response_id": "resp_7"}, RESPONSES.path),
        ):
            assert (answer.status, "retry-after" in answer.headers) == (503, True), "no other has it"
            assert "the instance that has the response is not ready" in answer.json["error"]["message"]
        assert not other.turns
        assert not other.echoed


async def test_a_response_can_be_found_while_it_is_made() -> None:
    async def act(turn: Turn) -> None:
        await answering(2)(turn)
        await asyncio.sleep(3600)

    async with (
        upstream("a", act=act) as first,
        upstream("b", act=act) as second,
        gateway(first, second) as front,
    ):
        body = {**BODIES[RESPONSES.path], "request_id": "resp_8", "stream": True}
        asking = asyncio.create_task(front.post(body, RESPONSES.path))
        await until(lambda: first.turns or second.turns)
        home, other = (first, second) if first.turns else (second, first)
        for _ in range(2):
            await front.post(b"", f"{RESPONSES.path}/resp_8/cancel")
        assert (len(home.echoed), other.echoed) == (2, [])
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_response_is_its_tenants() -> None:
    keys = Keys({b"blue": "blue", b"red": "red", b"any": ""})
    async with upstream(act=answering(2)) as instance, gateway(instance, keys=keys) as front:

        async def asked_by(key: str, **more: str) -> Answer:
            body = {**BODIES[RESPONSES.path], **more}
            return await front.post(body, RESPONSES.path, Authorization=f"Bearer {key}", x_request_id="mine")

        made = (await asked_by("blue", request_id="resp_mine")).headers["x-request-id"]
        assert made.startswith("resp_")
        assert made != "resp_mine", "or another could guess it"
        assert instance.bodies[0]["request_id"] == made
        for key, status in (("blue", 202), ("any", 202), ("red", 404)):
            got = await front.get(f"{RESPONSES.path}/{made}", Authorization=f"Bearer {key}")
            assert got.status == status
        assert (await asked_by("red", previous_response_id=made)).status == 404
        assert (await asked_by("red", request_id=made)).status == 200
        assert (await asked_by("blue", previous_response_id=made)).status == 200
        rendered = await front.post({}, f"{RESPONSES.path}/render", Authorization="Bearer blue")
        assert rendered.status == 202


def test_only_the_newest_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.request.serving._MOST", 2)
    stored = StoredResponses()
    for name in ("resp_1", "resp_2", "resp_1", "resp_3"):
        stored.keep(name, "a", "blue")
    assert [stored.place_of(f"resp_{number}") for number in (1, 2, 3)] == ["a", None, "a"]


def test_a_tenants_many_responses_push_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.request.serving._MOST_OF_A_TENANT", 2)
    stored = StoredResponses()
    stored.keep("blues", "a", "blue")
    for number in range(5):
        stored.keep(f"reds_{number}", "b", "red")
        stored.keep(f"nobodys_{number}", "b", "")
    assert stored.place_of("blues") == "a"
    assert [stored.place_of(f"reds_{number}") for number in range(5)] == [None, None, None, "b", "b"]
    assert all(stored.place_of(f"nobodys_{number}") for number in range(5))
    stored.check("blues", "blue")
    with pytest.raises(GatewayError):
        stored.check("reds_0", "red")


def test_what_is_asked_for_is_kept_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.request.serving._MOST", 2)
    stored = StoredResponses()
    stored.keep("old", "a", "")
    stored.keep("newer", "a", "")
    assert stored.place_of("old") == "a"
    stored.keep("newest", "a", "")
    assert [stored.place_of(name) for name in ("old", "newer", "newest")] == ["a", None, "a"]


def test_which_response_a_path_names() -> None:
    assert response_of_path("/v1/responses/resp_3/cancel") == "resp_3"
    for path in ("/v1/responses", "/v1/responses/", "/v1/responses/render", "/v1/messages/x"):
        assert response_of_path(path) is None
