"""`vllm bench serve` as two classes of clients at once: two processes with other targets, headers and priorities."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 180.0


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


def command(name: str, url: str, model: str, tokenizer: str, folder: Path) -> list[str]:
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
            words = command(name, url, model, tokenizer, folder)
            processes[name] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    codes = _waited_for(processes)
    for name, code in codes.items():
        if code != 0:
            raise RuntimeError(
                f"vllm bench serve, {name}: code {code}: {(folder / f'{name}.log').read_text()[-2000:]}"
            )
    return {name: figures(name, json.loads((folder / f"{name}.json").read_text())) for name in CLASSES}


def _waited_for(processes: Mapping[str, subprocess.Popen[bytes]]) -> dict[str, int]:
    """Exit codes; whoever takes longer than TIMEOUT_S is ended."""
    codes = {}
    for name, process in processes.items():
        try:
            codes[name] = process.wait(TIMEOUT_S)
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


def passed(found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether every request of every class was answered."""
    return all(each["completed"] == each["requests"] and each["failed"] == 0 for each in found.values())
