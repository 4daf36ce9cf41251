"""`headway explain` and `headway shadow` for real: a gateway, a vLLM server behind it, and questions over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.loadgen.queries import ask_about
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REQUESTS = 12
TOKENS = 40


def headway(*words: str) -> str:
    """What a command prints."""
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


def test_requests_are_explained_and_shadowed_over_http(tmp_path: Path) -> None:
    # Two requests at a time, so that most of the twelve wait for a seat.
    flags = ("--instances", "1", "--slo-ttft", "60", "--batch-width", "2", "--", "--max-num-seqs", "2")
    serving = Serving(tmp_path, *flags)
    try:
        serving.wait_for(lambda: "1 of 1 instances ready" in serving.log.read_text())
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(lambda number: ask(serving.url, number), range(REQUESTS)))
        instance = f"http://127.0.0.1:{serving.port + 1}"
        told = {number: explained(serving.url, f"mine-{number}") for number in range(REQUESTS)}
        assert {each["output_tokens"] for each in told.values()} == {TOKENS}
        assert all(each["instance"] == "0" for each in told.values())
        for each in told.values():
            assert sum(part["seconds"] for part in each["waited"]) == pytest.approx(
                each["waited_s"], abs=1e-3
            )
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
        assert 0.4 < control / live < 2.0
    finally:
        serving.close()
