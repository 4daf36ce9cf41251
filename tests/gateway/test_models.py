"""Servers with different models, adapters, contexts and versions behind one address."""

from __future__ import annotations

import json

import pytest

from headway.gateway.fleet.health import NO_FACTS, Facts
from headway.gateway.fleet.member import Member
from headway.gateway.fleet.models import differences, merged_models
from tests.gateway.fleets import QUICK, until
from tests.gateway.front import CHAT, PROMPT, gateway
from tests.gateway.upstream import upstream


def facts(version: str = "0.32.0", **limits: int | None) -> Facts:
    cards = [
        {"id": name, **({} if limit is None else {"max_model_len": limit})} for name, limit in limits.items()
    ]
    return Facts(json.dumps({"object": "list", "data": cards}).encode(), limits, version)


async def test_requests_go_where_their_model_is_and_all_models_are_listed() -> None:
    async with (
        upstream("a", models_there=["alpha", "sql"]) as first,
        upstream("b", models_there=["beta"]) as second,
        gateway(first, second) as front,
    ):
        for model, instance in (("alpha", first), ("sql", first), ("beta", second)):
            instance.turns.clear()
            for body, path in ((PROMPT, "/v1/completions"), (CHAT, "/v1/chat/completions")):
                for stream in (False, True):
                    assert (await front.post({**body, "model": model, "stream": stream}, path)).status == 200
            assert [turn.body["model"] for turn in instance.turns] == [model] * 4
        listed = (await front.get("/v1/models")).json
        assert [card["id"] for card in listed["data"]] == ["alpha", "sql", "beta"]


async def test_without_a_model_the_first_instances_is_meant() -> None:
    async with (
        upstream("a", models_there=["alpha"]) as first,
        upstream("b", models_there=["beta"]) as second,
        gateway(first, second) as front,
    ):
        for _ in range(3):
            assert (await front.post({"prompt": "x"})).status == 200
        assert (len(first.turns), len(second.turns)) == (3, 0)


async def test_what_is_passed_through_goes_by_its_model_too() -> None:
    async with (
        upstream("a", models_there=["alpha"]) as first,
        upstream("b", models_there=["beta"]) as second,
        gateway(first, second) as front,
    ):
        for path in ("/v1/embeddings", "/tokenize"):
            for _ in range(3):
                await front.post({"model": "beta", "input": "x"}, path)
        assert (first.echoed, len(second.echoed)) == ([], 6)


async def test_a_model_whose_instance_is_lost_is_not_asked_of_another() -> None:
    async with (
        upstream("a", models_there=["alpha"]) as first,
        upstream("b", models_there=["beta"]) as second,
        gateway(first, second, fleet_options=QUICK) as front,
    ):
        second.sick = True
        await until(lambda: front.fleet.member("b").facts is NO_FACTS)
        answer = await front.post({**PROMPT, "model": "beta"})
        assert (answer.status, answer.error["code"]) == (503, "no_instance")
        assert answer.error["message"] == "no instance with the model 'beta' is ready; try again later"
        assert not first.turns
        # One that nobody ever named may be loaded when it is asked for; the instance says if it is not.
        assert (await front.post({**PROMPT, "model": "gamma"})).status == 200


async def test_a_request_that_fits_only_the_larger_context_goes_there() -> None:
    async with (
        upstream("a", context=400) as first,
        upstream("b", context=4000) as second,
        gateway(first, second) as front,
    ):
        for _ in range(3):
            await front.post({**PROMPT, "max_tokens": 500})
        assert (len(first.turns), len(second.turns)) == (0, 3)
        await front.post({**PROMPT, "max_tokens": 5000})  # the instance's to refuse
        assert (await front.get("/v1/models")).json["data"][0]["max_model_len"] == 400


async def test_an_adapter_that_is_loaded_through_the_gateway_is_remembered() -> None:
    async with upstream() as instance, upstream() as fresh, gateway(instance) as front:
        await front.post({"lora_name": "sql", "lora_path": "/sql"}, "/v1/load_lora_adapter")
        await front.fleet.adapters.load(front.session, "fresh", fresh.url)
        assert fresh.echoed == ["/v1/load_lora_adapter"]


def test_alike_servers_are_listed_as_the_first_says() -> None:
    said = [facts(a=8), facts(a=8)]
    assert merged_models(said) is said[0].models
    assert json.loads(merged_models([facts(a=8, b=None), facts(b=4, a=9)]))["data"] == [
        {"id": "a", "max_model_len": 8},
        {"id": "b", "max_model_len": 4},
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([facts(a=8), facts(a=8)], []),
        ([facts(a=8), NO_FACTS], []),
        ([facts(a=8), facts(b=8)], ["requests are routed by their model: a (0); b (1)"]),
        (
            [facts(a=8), facts(a=None)],
            ["contexts of model 'a' differ: 8 (0); an unnamed number of (1) tokens"],
        ),
        ([facts("1", a=8), facts("2", a=8)], ["versions of vLLM differ: 1 (0); 2 (1)"]),
    ],
)
def test_differences_are_named(said: list[Facts], words: list[str]) -> None:
    members = [Member(str(number), last_facts=each) for number, each in enumerate(said)]
    found = differences(members)
    assert len(found) == len(words)
    assert all(line.startswith(word) for line, word in zip(found, words, strict=True))
