"""One vLLM engine behind the gateway, through the programs that people use: OpenAI's and Anthropic's clients for every
API in which tokens are asked for and for batches, `headway explain` and `headway shadow`.
"""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from bench.right.gateway_storm import instances_of
from headway.core.record import Outcome
from headway.lab.shadow import JCT_OFF
from headway.loadgen.queries import ask_about
from headway.results import read_records
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ASKED: list[Any] = [{"role": "user", "content": "copy: k7 m2 x9"}]
EXPIRES = {"x-slo-ttft-ms": "1"}
REQUESTS, TOKENS = 12, 40
"""Of the requests that are explained."""
LINES, LINE_TOKENS = 16, 12
"""Of the batch."""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One seat, so that all but one request wait."""
    folder = tmp_path_factory.mktemp("apis")
    flags = ("--instances", "1", "--policy", "edf", "--leaving", "expired", "--slo-ttft", "60")
    started = Serving(folder, *flags, "--batch-dir", str(folder / "batches"), "--", "--max-num-seqs", "1")
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


def headway(*words: str) -> str:
    """The output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(url: str, number: int) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        client.completions.create(
            model="demo",
            prompt=[300 + number] * 40,
            max_tokens=TOKENS,
            extra_body={"ignore_eos": True},
            extra_headers={"X-Request-Id": f"mine-{number}"},
        )


def explained(url: str, request_id: str) -> dict[str, Any]:
    """The one engine's account of a request, once it is known to have ended there."""
    for _ in range(50):
        [told] = asyncio.run(ask_about(url, request_id))["requests"]
        if told["outcome"] != "live":
            break
        time.sleep(0.1)
    found: dict[str, Any] = told
    return found


def test_requests_are_explained_and_shadowed_over_http(serving: Serving) -> None:
    # The first on this server: a shadow simulates all that it was asked.
    with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(lambda number: ask(serving.url, number), range(REQUESTS)))
    [pid] = instances_of(serving.process.pid)
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    instance = f"http://127.0.0.1:{words[words.index('--port') + 1]}"  # the next port may have been taken
    told = {number: explained(serving.url, f"mine-{number}") for number in range(REQUESTS)}
    assert {each["output_tokens"] for each in told.values()} == {TOKENS}
    assert all(each["instance"] == "0" for each in told.values())
    for each in told.values():
        assert sum(part["seconds"] for part in each["waited"]) == pytest.approx(each["waited_s"], abs=1e-3)
    number, longest = max(told.items(), key=lambda item: float(item[1]["waited_s"]))
    assert longest["waited"][0]["why"] == "all seats were taken"
    assert longest["num_behind"] >= 1  # how many had come before it is the machine's speed to say
    assert longest["predicted"]["judged_steps"] > 0
    assert longest["slack"][0]["target"] == "first token"
    # The server alone says the same, under vLLM's own name for it; and so does the command.
    [alone] = asyncio.run(ask_about(instance, longest["id"]))["requests"]
    assert alone["chapters"] == longest["chapters"]
    assert "all seats were taken" in headway("explain", "--url", serving.url, f"mine-{number}")
    assert len(headway("explain", "--url", instance).splitlines()) == REQUESTS + 1
    said = json.loads(headway("shadow", "--url", instance, "--policies", "sjf", "--once", "--json"))
    assert said["requests"] == REQUESTS
    assert said["figures"]["live"]["finished"] == REQUESTS
    assert ("sjf" in said["figures"]) == (said["cannot_judge"] is None)  # a busy machine's steps vary
    live, control = (said["figures"][name]["mean_jct_s"] for name in ("live", "live policy, simulated"))
    assert said["cannot_judge"] is not None or control == pytest.approx(live, rel=JCT_OFF)


def expired(serving: Serving) -> int:
    """The number of this server's requests that the engine dropped as expired."""
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


def line(number: int) -> dict[str, object]:
    body = {"model": "demo", "prompt": [300 + number] * 40, "max_tokens": LINE_TOKENS, "ignore_eos": True}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


def test_a_batch_is_served_beside_interactive_requests(serving: Serving, responses: openai.OpenAI) -> None:
    data = b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(LINES))
    file = responses.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    batch = responses.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    slo = {"x-slo-ttft-ms": "60000"}
    own = responses.completions.create(model="demo", prompt=[9] * 20, max_tokens=4, extra_headers=slo)
    assert own.choices[0].finish_reason in ("length", "stop")
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        batch = responses.batches.retrieve(batch.id)
    assert (batch.status, batch.error_file_id) == ("completed", None)
    assert batch.output_file_id is not None
    answers = [json.loads(each) for each in responses.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(each["custom_id"] for each in answers) == sorted(f"r{number}" for number in range(LINES))
    used = [each["response"]["body"]["usage"]["completion_tokens"] for each in answers]
    assert used == [LINE_TOKENS] * LINES
    told = headway("explain", "--url", serving.url, answers[0]["id"])
    assert f"of {batch.id}, whose window closes on" in told
    assert "target whole answer within" in told
