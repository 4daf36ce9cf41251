"""Clients that know nothing of Headway, against its gateway: `python bench/right/clients.py --json`.

`headway serve demo --pools lp=1,hp=1`, and against it, unchanged: the official `openai` client (each answer held
against the same one from an instance directly), `vllm bench serve` as two classes at once, and lm-eval's
`local-completions` on a task of ours, whose scores are to be the instance's own. lm-eval needs an environment of its
own (`pip install 'lm-eval[api]' transformers`), named by `--lm-eval PATH`; a client that is not installed is null.
About 4 minutes. Exit code 1 if a client that is there is not served as it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from headway_reproduce.ascendra.real_servers import ready_instances
from headway_reproduce.process_cpu import PROC, family

from bench.command import command_line, say
from headway.engine.demo_model import DEMO, resolve_model
from headway.errors import HeadwayError, UpstreamError
from headway.lab.server import command_server, free_port, headway_command

# ---- `vllm bench serve` as two classes of clients at once --------------------------------------------

VLLM_BENCH_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class ClientClass:
    """One process: how it sends, and the targets that it both tells the gateway and judges by itself."""

    rate_rps: float
    requests: int
    input_tokens: int
    output_tokens: int
    ttft_ms: int
    tpot_ms: int
    priority: int


CLASSES = {
    "urgent": ClientClass(6.0, 60, 128, 32, ttft_ms=2_000, tpot_ms=200, priority=0),
    "patient": ClientClass(3.0, 30, 512, 64, ttft_ms=20_000, tpot_ms=1_000, priority=5),
}


def vllm_bench_command(name: str, url: str, model: str, tokenizer: str, folder: Path) -> list[str]:
    """How a class is started."""
    kind = CLASSES[name]
    return [
        *(sys.executable, "-m", "headway.engine.servers.launcher", "bench", "serve", "--backend", "openai"),
        *("--base-url", url, "--model", model, "--tokenizer", tokenizer, "--disable-tqdm"),
        *("--dataset-name", "random", "--random-input-len", f"{kind.input_tokens}"),
        *("--random-output-len", f"{kind.output_tokens}", "--ignore-eos"),
        *("--num-prompts", f"{kind.requests}", "--request-rate", f"{kind.rate_rps:g}"),
        *("--goodput", f"ttft:{kind.ttft_ms}", f"tpot:{kind.tpot_ms}"),
        *("--header", f"x-slo-ttft-ms={kind.ttft_ms}", f"x-slo-tpot-ms={kind.tpot_ms}"),
        *(f"X-Vllm-Priority={kind.priority}", f"x-tenant={name}"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", f"{name}.json"),
    ]


def vllm_bench(url: str, model: str, tokenizer: str, folder: Path) -> dict[str, Any]:
    """By class: how many were answered and in time, and its latencies as the client saw them.

    Raises RuntimeError if a process ends otherwise than well, with the end of what it said.
    """
    processes = {}
    for name in CLASSES:
        with (folder / f"{name}.log").open("wb") as log:
            words = vllm_bench_command(name, url, model, tokenizer, folder)
            processes[name] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    codes = _waited_for(processes)
    for name, code in codes.items():
        if code != 0:
            raise RuntimeError(
                f"vllm bench serve, {name}: code {code}: {(folder / f'{name}.log').read_text()[-2000:]}"
            )
    return {name: figures(name, json.loads((folder / f"{name}.json").read_text())) for name in CLASSES}


def _waited_for(processes: Mapping[str, subprocess.Popen[bytes]]) -> dict[str, int]:
    """Exit codes; a client that takes longer than TIMEOUT_S is ended."""
    codes = {}
    for name, process in processes.items():
        try:
            codes[name] = process.wait(VLLM_BENCH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            codes[name] = process.wait()
    return codes


def figures(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """What `--save-result` says, in short; goodput is a share of all requests, as everywhere in Headway."""
    kind = CLASSES[name]
    in_time = result["request_goodput"] * result["duration"]
    return {
        "requests": kind.requests,
        "completed": result["completed"],
        "failed": result["failed"],
        "goodput": in_time / kind.requests,
        "median_ttft_ms": result["median_ttft_ms"],
        "p99_ttft_ms": result["p99_ttft_ms"],
        "median_tpot_ms": result["median_tpot_ms"],
    }


def all_completed(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether every request of every class was answered."""
    return all(each["completed"] == each["requests"] and each["failed"] == 0 for each in found.values())


# ---- lm-eval's `local-completions` on a task of our own: the scores through the gateway are to be an instance's own.
#
# It asks for the log-probabilities of answers (`echo`, `logprobs`, prompts as token ids), which have to pass the
# gateway unchanged. lm-eval lives in an environment of its own; its program is named by a path.


TASK = "headway_copy"
DOCUMENTS, CHOICES = 24, 3
LM_EVAL_TIMEOUT_S = 240.0

YAML = f"""task: {TASK}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {{file}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""
WORDS = (
    *("river", "mill", "stone", "bridge", "garden", "window", "paper", "engine", "music", "winter"),
    *("summer", "letter", "forest", "harbour", "market"),
)


def write_task(folder: Path) -> None:
    """A task of a few questions with three answers each, and its data; the same every time."""
    draw = Random("lm-eval")
    rows = []
    for _ in range(DOCUMENTS):
        words = draw.sample(WORDS, 6)
        right = words[draw.randrange(len(words))]
        choices = draw.sample([word for word in WORDS if word not in words], CHOICES - 1)
        answer = draw.randrange(CHOICES)
        choices.insert(answer, right)
        rows.append(
            {
                "question": f"Choose one of these words: {' '.join(words)}\nChosen:",
                "choices": [f" {choice}" for choice in choices],
                "answer": answer,
            }
        )
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{TASK}.yaml").write_text(YAML.replace("{file}", str(data)))


def lm_eval_command(
    program: Path, url: str, model: str, tokenizer: str, folder: Path, out: Path
) -> list[str]:
    """How it is run against a server."""
    model_args = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer,
        "num_concurrent": "4",
        "max_retries": "1",
        "max_length": "1024",
    }
    return [
        *(str(program), "--model", "local-completions"),
        *("--model_args", ",".join(f"{key}={value}" for key, value in model_args.items())),
        *("--tasks", TASK, "--include_path", str(folder), "--output_path", str(out), "--log_samples"),
    ]


def lm_eval(
    program: Path, gateway_url: str, instance_url: str, model: str, tokenizer: str, folder: Path
) -> dict[str, Any]:
    """`{"gateway": {metric: score}, "direct": {...}, "same_scores", "same_logprobs", "documents"}`.

    Raises RuntimeError if lm-eval ends otherwise than well, with the end of what it said.
    """
    write_task(folder)
    found = {}
    for name, url in (("gateway", gateway_url), ("direct", instance_url)):
        out = folder / name
        words = lm_eval_command(program, url, model, tokenizer, folder, out)
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "0",
        }
        done = subprocess.run(
            words, capture_output=True, timeout=LM_EVAL_TIMEOUT_S, env=environment, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"lm-eval, {name}: code {done.returncode}: {done.stderr.decode()[-2000:]}")
        found[name] = result(out)
    return compared(found["gateway"], found["direct"])


def result(out: Path) -> dict[str, Any]:
    """Scores and samples that lm-eval wrote under a folder."""
    scores = json.loads(_only(out, "results_*.json").read_text())["results"][TASK]
    lines = _only(out, f"samples_{TASK}_*.jsonl").read_text().splitlines()
    samples = sorted((json.loads(line) for line in lines), key=lambda sample: sample["doc_id"])
    return {
        "scores": {name: value for name, value in scores.items() if isinstance(value, float)},
        "logprobs": [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples],
    }


def compared(gateway: Mapping[str, Any], direct: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides' scores, and whether they and what is behind them are the same."""
    largest = max(
        (
            abs(ours - theirs)
            for mine, other in zip(gateway["logprobs"], direct["logprobs"], strict=True)
            for ours, theirs in zip(mine, other, strict=True)
        ),
        default=0.0,
    )
    return {
        "documents": len(gateway["logprobs"]),
        "gateway": gateway["scores"],
        "direct": direct["scores"],
        "same_scores": gateway["scores"] == direct["scores"],
        "largest_logprob_difference": largest,
    }


def _only(folder: Path, pattern: str) -> Path:
    found: Sequence[Path] = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise RuntimeError(f"{folder} has {len(found)} files {pattern}; expected 1")
    return found[0]


# ---- the bench ---------------------------------------------------------------------------------------

POOLS = "lp=1,hp=1"
INSTANCES = 2
LARGEST_LOGPROB_DIFFERENCE = 1e-3
"""Batches are put together otherwise behind two instances than on one, and sums of bfloat16 differ by their order."""


@dataclass(frozen=True, slots=True)
class GatewayUnderTest:
    """Where the gateway is, and one of its instances."""

    gateway_url: str
    instance_url: str


@contextmanager
def serving(folder: Path) -> Iterator[GatewayUnderTest]:
    """The gateway and its instances, ready; all end with the block. Raises UpstreamError if they do not get ready."""
    port = free_port()
    command = headway_command("serve", DEMO, "--pools", POOLS, "--port", str(port))
    log = folder / "gateway.log"
    with command_server(command, port, log, ready=lambda url: ready_instances(url) >= INSTANCES) as server:
        yield GatewayUnderTest(server.url, instance_url(server.pid))


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


def try_openai(served: GatewayUnderTest) -> dict[str, Any]:
    """The `openai` client; `passed` if every answer is the instance's own."""
    from bench.right.client_openai import openai_client

    found = openai_client(served.gateway_url, served.instance_url)
    return {"passed": not found["failed"], **found}


def try_vllm_bench(served: GatewayUnderTest, folder: Path) -> dict[str, Any]:
    """`vllm bench serve`; `passed` if every request of both classes was answered."""
    classes = vllm_bench(served.gateway_url, DEMO, resolve_model(DEMO), folder)
    return {"passed": all_completed(classes), "classes": classes}


def try_lm_eval(program: Path, served: GatewayUnderTest, folder: Path) -> dict[str, Any]:
    """lm-eval; `passed` if the scores are the same, and what they were made of nearly so."""
    tokenizer = resolve_model(DEMO)
    found = lm_eval(program, served.gateway_url, served.instance_url, DEMO, tokenizer, folder)
    alike = found["largest_logprob_difference"] <= LARGEST_LOGPROB_DIFFERENCE
    return {"passed": found["same_scores"] and alike, **found}


def main() -> int:
    """Print `{"openai": {...}, "vllm_bench_serve": {...}, "lm_eval": {...} or null}`; 1 if a client failed."""
    parser = command_line(__doc__)
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
