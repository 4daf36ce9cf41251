"""Clients that know nothing of Headway, against its gateway: `python bench/clients.py --json`.

`headway serve demo --pools lp=1,hp=1`, and against it, unchanged: the official `openai` client (each answer held
against the same one from an instance directly), `vllm bench serve` as two classes at once, and lm-eval's
`local-completions` on a task of ours, whose scores are to be the instance's own. lm-eval needs an environment of its
own (`pip install 'lm-eval[api]' transformers`), named by `--lm-eval PATH`; a client that is not installed is null.
About 4 minutes. Exit code 1 if a client that is there is not served as it should be.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from headway_reproduce.ascendra.real_servers import ready_instances

from bench.client_lm_eval import lm_eval
from bench.client_vllm_bench import passed as all_completed
from bench.client_vllm_bench import vllm_bench
from bench.progress import say
from headway.engine.demo_model import DEMO, resolve_model
from headway.errors import HeadwayError, UpstreamError
from headway.lab.policy_bench import free_port
from headway.lab.process_cpu import PROC, family

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
    from bench.client_openai import openai_client

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
