"""The official `openai` client against a gateway, each answer held against the same one from an instance directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import openai

PROMPT = "Count the words of this text: the river runs slowly past the old mill"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
TOKENS = 24
AT_ONCE = 32

Asked = Callable[[openai.OpenAI, str], object]
"""Asks something through a client, of a model, and gives back what is to be the same wherever it is asked."""


def completion(client: openai.OpenAI, model: str) -> object:
    """A whole completion: text, why it ended, tokens counted."""
    found = client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS, temperature=0.0)
    assert found.usage is not None
    return found.choices[0].text, found.choices[0].finish_reason, found.usage.completion_tokens


def streamed_completion(client: openai.OpenAI, model: str) -> object:
    """The same as a stream, with the usage at its end."""
    text, usage = "", None
    with client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=TOKENS,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            text += chunk.choices[0].text if chunk.choices else ""
            usage = chunk.usage or usage
    assert usage is not None
    return text, usage.prompt_tokens, usage.completion_tokens


def chat(client: openai.OpenAI, model: str) -> object:
    """A whole chat answer."""
    found = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=TOKENS, temperature=0.0)
    return found.choices[0].message.content, found.choices[0].finish_reason


def streamed_chat(client: openai.OpenAI, model: str) -> object:
    """The same as a stream: its text, and the role that it names."""
    text, roles = "", set()
    with client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=TOKENS, temperature=0.0, stream=True
    ) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                roles |= {choice.delta.role} - {None}
    return text, roles


def several_prompts(client: openai.OpenAI, model: str) -> object:
    """An answer to each of two prompts, in their order."""
    found = client.completions.create(model=model, prompt=[PROMPT, "hello"], max_tokens=8, temperature=0.0)
    return [(choice.index, choice.text) for choice in found.choices]


def logprobs(client: openai.OpenAI, model: str) -> object:
    """The most likely tokens at each place."""
    found = client.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0.0, logprobs=2)
    assert found.choices[0].logprobs is not None
    return found.choices[0].logprobs.tokens


def hinted(client: openai.OpenAI, model: str) -> object:
    """Targets as headers, and hints in the body, as Headway reads them; the answer stays the same."""
    found = client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=TOKENS,
        temperature=0.0,
        extra_headers={"x-slo-ttft-ms": "30000", "x-slo-tpot-ms": "1000"},
        extra_body={"vllm_xargs": {"headway_tenant": "bench"}},
    )
    return found.choices[0].text


def refusals(client: openai.OpenAI, model: str) -> object:
    """What the client raises for a bad request, and for a model that is not there."""
    raised = []
    for asked in ({"model": model, "max_tokens": -1}, {"model": "absent", "max_tokens": 1}):
        try:
            client.completions.create(prompt="x", **asked)
        except openai.APIStatusError as error:
            raised.append((type(error).__name__, error.status_code))
    return raised


ASKED: Mapping[str, Asked] = {
    "completion": completion,
    "streamed completion": streamed_completion,
    "chat": chat,
    "streamed chat": streamed_chat,
    "several prompts": several_prompts,
    "logprobs": logprobs,
    "targets and hints": hinted,
    "refusals": refusals,
}


def openai_client(gateway_url: str, instance_url: str) -> dict[str, Any]:
    """`{"version", "right": n, "of": n, "failed": {name: why}}`."""
    with _client(gateway_url) as ours, _client(instance_url) as direct:
        model = direct.models.list().data[0].id
        failed = {
            name: why
            for name, ask in ASKED.items()
            if (why := difference(ask, ours, direct, model)) is not None
        }
        if [each.id for each in ours.models.list()] != [model]:
            failed["models"] = "not the instance's"
    if (why := asyncio.run(_many_at_once(gateway_url, model))) is not None:
        failed["many at once"] = why
    of = len(ASKED) + 2
    return {"version": openai.__version__, "right": of - len(failed), "of": of, "failed": failed}


def difference(ask: Asked, ours: openai.OpenAI, direct: openai.OpenAI, model: str) -> str | None:
    """Why an answer is not the instance's own, or None if it is."""
    try:
        found, expected = ask(ours, model), ask(direct, model)
    except openai.OpenAIError as error:
        return f"{type(error).__name__}: {error}"
    return None if found == expected else f"{found!r}, and directly {expected!r}"


async def _many_at_once(url: str, model: str) -> str | None:
    """The asynchronous client with many requests in flight: all are to have the same answer."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def ask() -> str:
            found = await client.completions.create(
                model=model, prompt=PROMPT, max_tokens=TOKENS, temperature=0.0
            )
            return str(found.choices[0].text)

        try:
            texts = await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        except openai.OpenAIError as error:
            return f"{type(error).__name__}: {error}"
    return None if all(texts) else "an empty answer"


def _client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0)
