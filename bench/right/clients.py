"""Clients that know nothing of Headway, against its gateway: `python bench/right/clients.py --json`.

`headway serve demo --pools lp=1,hp=1`, and against it, unchanged: the official `openai` client (each answer held
against the same one from an instance directly), `vllm bench serve` as two classes at once, and lm-eval's
`local-completions` on a task of ours, whose scores are to be the instance's own. lm-eval needs an environment of its
own (`pip install 'lm-eval[api]' transformers`), named by `--lm-eval PATH`; a client that is not installed is null.
About 4 minutes. Exit code 1 if a client that is there is not served as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import openai
from headway_reproduce.ascendra.real_servers import ready_instances

from bench.command import say
from bench.right.client_tools import lm_eval, vllm_bench
from bench.right.client_tools import passed as all_completed
from headway.engine.demo_model import DEMO, resolve_model
from headway.errors import HeadwayError, UpstreamError
from headway.lab.policy_bench import free_port
from headway.lab.process_cpu import PROC, family

# ---- The official `openai` client against a gateway, each answer held against the same one from an instance directly


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
    """The same as a stream: its text, and who it says speaks."""
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
    for asked in ({"model": model, "max_tokens": -1}, {"model": "nobody", "max_tokens": 1}):
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


# ---- The bench


POOLS = "lp=1,hp=1"
INSTANCES = 2
START_TIMEOUT_S, END_TIMEOUT_S = 180.0, 60.0
LARGEST_LOGPROB_DIFFERENCE = 1e-3
"""Batches are put together otherwise behind two instances than on one, and sums of bfloat16 differ by their order."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where the gateway is, and one of its instances."""

    gateway_url: str
    instance_url: str


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """The gateway and its instances, ready; all end with the block. Raises UpstreamError if they do not get ready."""
    port = free_port()
    words = [*(sys.executable, "-m", "headway.cli", "serve", DEMO), "--pools", POOLS, "--port", str(port)]
    with (folder / "gateway.log").open("wb") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while ready_instances(url) < INSTANCES:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise UpstreamError(
                        f"not ready; its log ends: {(folder / 'gateway.log').read_text()[-2000:]}"
                    )
                time.sleep(0.5)
            yield Served(url, instance_url(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_TIMEOUT_S)


def instance_url(pid: int) -> str:
    """The first server that a process started, by its command line. Raises UpstreamError if there is none."""
    for each in family(pid, PROC)[1:]:
        words = (PROC / str(each) / "cmdline").read_bytes().decode().split("\0")
        if "headway.engine.servers.launcher" in words and "--port" in words:
            return f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    raise UpstreamError("the gateway has started no server")


def tried(name: str, try_it: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a client came to; if it could not be run to its end, why."""
    began_s = time.monotonic()
    say(f"{name}: begins")
    try:
        found = try_it()
    except (RuntimeError, HeadwayError, OSError, subprocess.TimeoutExpired) as error:
        found = {"passed": False, "error": str(error)}
    say(f"{name}: {'passed' if found['passed'] else 'FAILED'} after {time.monotonic() - began_s:.0f} s")
    return found


def try_openai(served: Served) -> dict[str, Any]:
    """The `openai` client; `passed` if every answer is the instance's own."""
    from bench.right.clients import openai_client

    found = openai_client(served.gateway_url, served.instance_url)
    return {"passed": not found["failed"], **found}


def try_vllm_bench(served: Served, folder: Path) -> dict[str, Any]:
    """`vllm bench serve`; `passed` if every request of both classes was answered."""
    classes = vllm_bench(served.gateway_url, DEMO, resolve_model(DEMO), folder)
    return {"passed": all_completed(classes), "classes": classes}


def try_lm_eval(program: Path, served: Served, folder: Path) -> dict[str, Any]:
    """lm-eval; `passed` if the scores are the same, and what they were made of nearly so."""
    tokenizer = resolve_model(DEMO)
    found = lm_eval(program, served.gateway_url, served.instance_url, DEMO, tokenizer, folder)
    alike = found["largest_logprob_difference"] <= LARGEST_LOGPROB_DIFFERENCE
    return {"passed": found["same_scores"] and alike, **found}


def main() -> int:
    """Print `{"openai": {...}, "vllm_bench_serve": {...}, "lm_eval": {...} or null}`; 1 if a client failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--lm-eval", type=Path, metavar="PATH", help="lm-eval's program, `lm_eval`")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"openai": None, "vllm_bench_serve": None, "lm_eval": None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("starting the gateway and its instances")
        with serving(folder) as served:
            if find_spec("openai"):
                found["openai"] = tried("openai", lambda: try_openai(served))
            found["vllm_bench_serve"] = tried("vllm bench serve", lambda: try_vllm_bench(served, folder))
            if arguments.lm_eval is not None:
                found["lm_eval"] = tried("lm-eval", lambda: try_lm_eval(arguments.lm_eval, served, folder))
    print(json.dumps(found))
    return exit_code(found)


def exit_code(found: Mapping[str, Mapping[str, Any] | None]) -> int:
    """1 if a client that is there did not pass."""
    return int(any(each is not None and not each["passed"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
