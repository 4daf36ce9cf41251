"""Anthropic's client against the gateway, unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headway.gateway.http.keys import Keys
from headway.gateway.http.options import GatewayOptions
from tests.gateway.fleets import free_port
from tests.gateway.named_upstream import BREAK, FAULT, MODEL
from tests.gateway.openai_upstream import gateway

anthropic = pytest.importorskip(
    "anthropic", reason="Anthropic's client comes with vLLM, which is not installed"
)


def client_of(url: str, key: str = "any") -> Any:
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)


def asking(prompt: str, tokens: int = 5) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": tokens, "messages": [{"role": "user", "content": prompt}]}


@pytest.fixture
async def client() -> AsyncIterator[Any]:
    async with gateway() as url, client_of(url) as opened:
        yield opened


async def test_a_message(client: Any) -> None:
    message = await client.messages.create(**asking("one"), extra_headers={"x-slo-ttft-ms": "800"})
    assert message.content[0].text == "x " * 5
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 5)


async def test_a_stream_of_a_message(client: Any) -> None:
    assert await read(client, "one") == ["x "] * 5
    async with client.messages.stream(**asking("one")) as stream:
        assert (await stream.get_final_message()).stop_reason == "max_tokens"


async def read(client: Any, prompt: str) -> list[str]:
    async with client.messages.stream(**asking(prompt)) as stream:
        return [text async for text in stream.text_stream]


async def test_a_stream_that_cannot_go_on_ends_in_an_error(client: Any) -> None:
    for prompt, words in ((BREAK, "its tokens are not known"), (FAULT, "out of luck")):
        with pytest.raises(anthropic.APIError, match=words):
            await read(client, prompt)


async def test_errors_are_of_its_kinds(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is not positive"):
        await client.messages.create(**asking("one", -1))
    with pytest.raises(anthropic.BadRequestError, match="x-slo-ttft-ms is 'soon'; accepted: milliseconds"):
        await client.messages.create(**asking("one"), extra_headers={"x-slo-ttft-ms": "soon"})
    async with gateway(url=f"http://127.0.0.1:{free_port()}") as url, client_of(url) as lonely:
        with pytest.raises(anthropic.InternalServerError, match="no instance is ready"):
            await lonely.messages.create(**asking("one"))


async def test_its_key_is_the_gateways() -> None:
    async with gateway(GatewayOptions(keys=Keys({b"right": ""}))) as url:
        async with client_of(url, "wrong") as wrong:
            with pytest.raises(anthropic.AuthenticationError, match="no API key, or one that is not known"):
                await wrong.messages.create(**asking("one"))
        async with client_of(url, "right") as right:
            assert (await right.messages.create(**asking("one"))).content[0].text
