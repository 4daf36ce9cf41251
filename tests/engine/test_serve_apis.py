"""OpenAI's and Anthropic's own clients, through the gateway, at real vLLM: every API in which tokens are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from headway.core.record import Outcome
from headway.loadgen.queries import ask_about
from headway.results import read_records
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ASKED: list[Any] = [{"role": "user", "content": "copy: k7 m2 x9"}]
EXPIRES = {"x-slo-ttft-ms": "1"}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One seat, so that who comes second waits."""
    flags = ("--instances", "1", "--policy", "edf", "--leaving", "expired", "--", "--max-num-seqs", "1")
    started = Serving(tmp_path_factory.mktemp("apis"), *flags)
    try:
        started.wait_for(lambda: "1 of 1 instances ready" in started.log.read_text())
        yield started
    finally:
        started.close()


@pytest.fixture
def messages(serving: Serving) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=serving.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def responses(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def expired(serving: Serving) -> int:
    """How many of its requests the engine let go unserved."""
    records = read_records(serving.records.with_name("served-0.jsonl"))
    return sum(record.outcome is Outcome.EXPIRED for record in records)


def test_a_message_is_the_same_whole_and_in_events(serving: Serving, messages: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "max_tokens": 24,
        "messages": ASKED,
        "extra_body": {"temperature": 0},
    }
    named = {"x-request-id": "message-1", "x-tenant": "blue"}
    whole = messages.messages.create(**asked, extra_headers=named)
    with messages.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    [block], [streamed_block] = whole.content, streamed.content
    assert block.type == streamed_block.type == "text"
    assert block.text == streamed_block.text
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0
    [told] = asyncio.run(ask_about(serving.url, "message-1"))["requests"]
    assert told["output_tokens"] == whole.usage.output_tokens


def test_a_response_is_the_same_whole_and_in_events(serving: Serving, responses: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "demo",
        "max_output_tokens": 24,
        "temperature": 0,
        "input": "copy: k7 m2",
    }
    whole = responses.responses.create(**asked, extra_headers={"x-request-id": "response-1"})
    events = list(responses.responses.create(**asked, stream=True))
    assert whole.id == "resp_response-1"
    assert whole.usage is not None
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == whole.output_text
    [told] = asyncio.run(ask_about(serving.url, "response-1"))["requests"]
    assert told["output_tokens"] == whole.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_who_expires_unserved_is_told_to_come_again(
    serving: Serving, messages: anthropic.Anthropic, responses: openai.OpenAI, stream: bool
) -> None:
    before = expired(serving)
    with responses.completions.create(
        model="demo", prompt=[300] * 40, max_tokens=800, stream=True, extra_body={"ignore_eos": True}
    ) as busy:
        next(iter(busy))
        with pytest.raises(anthropic.RateLimitError) as late:
            messages.messages.create(
                model="demo", max_tokens=4, messages=ASKED, stream=stream, extra_headers=EXPIRES
            )
        assert int(late.value.response.headers["retry-after"]) >= 1
        with pytest.raises(openai.RateLimitError):
            responses.responses.create(model="demo", input="one", stream=stream, extra_headers=EXPIRES)
        assert expired(serving) == before + 2
        for prompt, n in ("one", 2), (["one", "two"], 1):
            with pytest.raises(openai.RateLimitError, match="before all of its 2 answers were begun"):
                responses.completions.create(
                    model="demo", prompt=prompt, n=n, stream=stream, extra_headers=EXPIRES
                )
