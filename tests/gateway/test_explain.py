"""`GET /explain/ID` on a gateway at work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headway.core.record import Outcome
from headway.core.slo import NO_TARGETS
from headway.errors import ConfigError, UpstreamError
from headway.explain.explanation import explain
from headway.explain.text import told_data, told_text
from headway.gateway.book.accounts import KEPT_ENDED, Accounts
from headway.gateway.book.classes import MAX_CLASSES, OTHER
from headway.gateway.http.api import EXPLAIN_PATHS
from headway.gateway.http.keys import Keys
from headway.loadgen.queries import ask_about
from tests.explain.trail_scene import displaced_scene
from tests.gateway.fleets import free_port, until
from tests.gateway.front import PROMPT, gateway
from tests.gateway.upstream import Turn, upstream


def told(id_: str) -> dict[str, Any]:
    """What an engine says of a request: the displaced one of the hand-made scene, under another name."""
    scene = displaced_scene()
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    return {
        **told_data(found.story, found),
        "id": f"cmpl-{id_}-0-1a2b3c4d",
        "text": told_text(found.story, found),
    }


async def test_the_gateway_and_the_instance_tell_of_a_request() -> None:
    async with upstream("lp-0", explanations={"mine": told("mine")}) as one, gateway(one) as front:
        await front.post({**PROMPT, "stream": True}, x_request_id="mine", x_slo_ttft_ms="60000")
        await front.idle()
        for path in ("/explain/mine", "/v1/explain/mine", "/explain/cmpl-mine"):
            answer = await front.get(path)
            assert answer.status == 200
            seen = answer.json["gateway"]
            assert (seen["outcome"], seen["met"], seen["instances"]) == ("finished", True, ["lp-0"])
            assert (seen["tokens"], seen["slo"]) == (8, "ttft=60s")
            assert 0 <= seen["ttft_s"] <= seen["lasted_s"]
            [request] = answer.json["requests"]
            assert (request["instance"], request["num_displaced"]) == ("lp-0", 1)
            assert answer.json["unanswered"] == []
        assert (await ask_about(front.url, "mine"))["requests"] == answer.json["requests"]


async def test_every_instance_it_was_at_is_asked_and_says_why_if_it_cannot_tell() -> None:
    async def hand_off(turn: Turn) -> None:
        await turn.leave("handed_off")

    async with (
        upstream("lp-0", act=hand_off) as low,
        upstream("hp-0", headway=False) as high,
        gateway(low, high, router="ascendra") as front,
    ):
        await front.post({**PROMPT, "stream": True}, x_request_id="moved", x_slo_ttft_ms="60000")
        await front.idle()
        answer = await front.get("/explain/moved")
        assert answer.json["gateway"]["instances"] == ["lp-0", "hp-0"]
        assert answer.json["gateway"]["moves"] == 1
        assert answer.json["unanswered"] == [
            {"instance": "lp-0", "why": "nothing known of 'moved'"},
            {"instance": "hp-0", "why": "it does not schedule with Headway"},
        ]


async def test_one_that_the_gateway_has_forgotten_may_be_known_to_an_instance() -> None:
    async with upstream("lp-0", explanations={"old": told("old")}) as one, gateway(one) as front:
        answer = await front.get("/explain/old")
        assert answer.json["gateway"] is None
        assert len(answer.json["requests"]) == 1
        nobody = await front.get("/explain/nobody")
        assert (nobody.status, nobody.error["code"]) == (404, "unknown_request")


async def test_a_request_can_be_asked_about_while_it_is_served() -> None:
    release = asyncio.Event()

    async def held(turn: Turn) -> None:
        await release.wait()
        await turn.answer()

    async with upstream("lp-0", act=held) as one, gateway(one) as front:
        answering = asyncio.create_task(front.post({**PROMPT, "stream": True}, x_request_id="live"))
        await until(lambda: one.turns)
        seen = (await front.get("/explain/live")).json["gateway"]
        assert (seen["outcome"], seen["met"], seen["ttft_s"]) == ("live", None, None)
        release.set()
        await answering
        assert (await front.get("/explain/live")).json["gateway"]["outcome"] == "finished"


async def test_the_last_requests_are_listed_newest_first() -> None:
    async with upstream("lp-0") as one, gateway(one) as front:
        for name in ("first", "second"):
            await front.post(PROMPT, x_request_id=name)
        await front.idle()
        assert [each["id"] for each in (await front.get("/explain")).json["requests"]] == ["second", "first"]
        state = (await front.get("/dashboard/state")).json
        assert [(each["id"], each["outcome"]) for each in state["recent"]] == [
            ("second", "finished"),
            ("first", "finished"),
        ]


async def test_keys_guard_explanations_too() -> None:
    async with upstream("lp-0") as one, gateway(one, keys=Keys({b"k": ""})) as front:
        assert (await front.get("/explain/x")).status == 401
        assert (await front.get("/v1/explain/x", Authorization="Bearer k")).status == 404
        with pytest.raises(UpstreamError, match="wants a key; add --api-key KEY"):
            await ask_about(front.url, "x")
        with pytest.raises(ConfigError, match="no such request"):
            await ask_about(front.url, "x", "k")


async def test_a_tenants_key_is_told_of_the_tenants_own_requests() -> None:
    """What instances say names other requests, so that a tenant gets what the gateway saw."""
    keys = Keys({b"k": "", b"r": "red", b"b": "blue"})
    told_of = {name: told(name) for name in ("of-red", "shared", "old")}
    async with upstream("lp-0", explanations=told_of) as one, gateway(one, keys=keys) as front:
        for name, key in (("of-red", "r"), ("shared", "r"), ("shared", "b"), ("of-blue", "b")):
            await front.post(PROMPT, x_request_id=name, Authorization=f"Bearer {key}")
        await front.idle()
        red, blue, ours = ({"Authorization": f"Bearer {key}"} for key in "rbk")
        for path in EXPLAIN_PATHS:
            for whose, expected in ((red, ["shared", "of-red"]), (blue, ["of-blue", "shared"])):
                listed = (await front.get(path, **whose)).json["requests"]
                assert [each["id"] for each in listed] == expected
            assert len((await front.get(path, **ours)).json["requests"]) == 4
            for unknown in ("of-red", "cmpl-of-red", "old"):
                assert (await front.get(f"{path}/{unknown}", **blue)).status == 404
                assert (await front.get(f"{path}/{unknown}", **ours)).json["requests"]
            for whose, tenant in ((red, "red"), (blue, "blue")):
                answer = (await front.get(f"{path}/cmpl-shared", **whose)).json
                assert (answer["gateway"]["tenant"], answer["requests"]) == (tenant, [])
                [unanswered] = answer["unanswered"]
                assert unanswered["instance"] == "lp-0"
                assert "accepted: a key without a tenant" in unanswered["why"]


def test_a_tenant_whose_requests_are_counted_with_others_is_told_of_its_own() -> None:
    accounts = Accounts()
    live = [accounts.offer("r", NO_TARGETS, f"t{number}", 0.0) for number in range(MAX_CLASSES + 2)]
    for entry in live:
        accounts.end(entry, Outcome.FINISHED, 1.0)
    *_, crowded, last = accounts.recent
    assert crowded.key == last.key
    assert (accounts.find("r", crowded.tenant), accounts.find("r", OTHER)) == (crowded, None)


def test_ended_requests_are_found_by_their_ids_as_long_as_they_are_kept() -> None:
    accounts = Accounts()
    for number in range(KEPT_ENDED + 1):
        entry = accounts.offer(f"r{number}", NO_TARGETS, "", float(number))
        accounts.place(entry, "a")
        accounts.end(entry, Outcome.FINISHED, number + 0.5)
    assert accounts.find("r0") is None
    kept = accounts.find("r1")
    assert kept is not None
    assert (kept.ended_s, kept.places) == (1.5, ["a"])
    again = accounts.offer("r1", NO_TARGETS, "", 1e6)
    assert accounts.find("r1") is again


async def test_the_command_hears_why_nothing_is_known() -> None:
    async with upstream("lp-0") as one:
        with pytest.raises(ConfigError, match="nothing known of 'x'"):
            await ask_about(one.url, "x")
        with pytest.raises(UpstreamError, match="answered HTTP 202"):
            await ask_about(one.url, None)
    with pytest.raises(UpstreamError, match="does not answer"):
        await ask_about(f"http://127.0.0.1:{free_port()}", "x")
