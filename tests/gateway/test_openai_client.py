"""The official client against the gateway, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from headway.gateway.http.keys import Keys
from headway.gateway.http.options import GatewayOptions
from tests.gateway.fleets import free_port
from tests.gateway.named_upstream import BREAK, HOLD, MODEL
from tests.gateway.openai_upstream import gateway

openai = pytest.importorskip("openai", reason="the openai client comes with vLLM, which is not installed")


def client_of(url: str, key: str = "any") -> Any:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def until_in_flight(url: str) -> None:
    """Return once an instance has a request."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/dashboard/state") as answer:
                state = await answer.json()
            if any(one["in_flight"] for one in state["instances"]):
                return


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    async with gateway() as url, client_of(url) as opened:
        yield opened


async def test_models(client: Any) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_completion(client: Any) -> None:
    answer = await client.completions.create(model=MODEL, prompt="one two three", max_tokens=5)
    assert answer.choices[0].text == "x " * 5
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


async def test_a_stream_of_a_completion(client: Any) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="one", max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    events = [event async for event in stream]
    assert "".join(event.choices[0].text for event in events if event.choices) == "x " * 6
    assert events[-1].usage.completion_tokens == 6
    assert not any("token_ids" in (event.model_extra or {}) for event in events), "asked for by the gateway"


async def test_a_stream_of_a_response_that_cannot_go_on_ends_in_an_error(client: Any) -> None:
    stream = await client.responses.create(model=MODEL, input=BREAK, max_output_tokens=6, stream=True)
    with pytest.raises(openai.APIError) as broken:
        [event async for event in stream]
    assert broken.value.type == "upstream_error"


async def test_targets_go_in_headers_and_in_the_body(client: Any) -> None:
    answer = await client.completions.create(
        model=MODEL,
        prompt="one",
        max_tokens=2,
        extra_headers={"x-slo-ttft-ms": "800", "x-slo-tpot-ms": "100", "x-tenant": "a"},
        extra_body={"vllm_xargs": {"headway_deadline_ms": 5000}, "priority": 2},
    )
    assert answer.choices[0].text == "x " * 2


async def test_the_raw_answer_has_the_requests_id(client: Any) -> None:
    raw = await client.completions.with_raw_response.create(
        model=MODEL, prompt="one", max_tokens=2, extra_headers={"x-request-id": "mine-7"}
    )
    assert raw.headers["x-request-id"] == "mine-7"


async def test_what_is_not_accepted_is_a_bad_request(client: Any) -> None:
    with pytest.raises(
        openai.BadRequestError, match="x-slo-ttft-ms is 'soon'; accepted: milliseconds"
    ) as gateways:
        await client.completions.create(model=MODEL, prompt="one", extra_headers={"x-slo-ttft-ms": "soon"})
    assert gateways.value.code == "bad_request"
    with pytest.raises(openai.BadRequestError, match="max_tokens is -1"):
        await client.completions.create(model=MODEL, prompt="one", max_tokens=-1)


async def test_an_unknown_model_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.completions.create(model="other", prompt="one")


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with gateway(GatewayOptions(keys=Keys({b"right": ""}))) as url:
        async with client_of(url, "wrong") as wrong:
            with pytest.raises(openai.AuthenticationError, match="no API key, or one that is not known"):
                await wrong.models.list()
        async with client_of(url, "right") as right:
            assert (await right.completions.create(model=MODEL, prompt="one", max_tokens=1)).choices[0].text


async def test_another_tenant_than_the_keys_is_a_permission_error() -> None:
    async with gateway(GatewayOptions(keys=Keys({b"right": "a"}))) as url, client_of(url, "right") as client:
        with pytest.raises(openai.PermissionDeniedError, match="the key's is 'a'"):
            await client.completions.create(model=MODEL, prompt="one", extra_headers={"x-tenant": "b"})


async def test_a_full_queue_is_a_rate_limit_to_try_again_later() -> None:
    async with gateway(GatewayOptions(max_queue=1, drain_s=0.1)) as url, client_of(url) as client:
        first = asyncio.create_task(client.completions.create(model=MODEL, prompt=HOLD, stream=True))
        await until_in_flight(url)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(model=MODEL, prompt="one", max_tokens=1)
        assert refused.value.type == "overloaded"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_stream_that_cannot_go_on_ends_in_an_error() -> None:
    async with gateway(GatewayOptions(resume=False)) as url, client_of(url) as client:
        stream = await client.completions.create(model=MODEL, prompt=BREAK, max_tokens=9, stream=True)
        assert [(await anext(stream)).choices[0].text for _ in range(2)] == ["x ", "x "]
        with pytest.raises(openai.APIError) as broken:
            await anext(stream)
    assert broken.value.type == "upstream_error"


async def test_no_instance_is_an_internal_server_error_to_try_again_later() -> None:
    async with gateway(url=f"http://127.0.0.1:{free_port()}") as url, client_of(url) as client:
        with pytest.raises(openai.InternalServerError, match="no instance is ready") as refused:
            await client.completions.create(model=MODEL, prompt="one")
    assert refused.value.status_code == 503
    assert int(refused.value.response.headers["retry-after"]) >= 1
