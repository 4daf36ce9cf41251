"""OpenAI's Batch API for real: a gateway, a vLLM server behind it, a batch beside a client's own requests."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

REQUESTS, TOKENS = 30, 12


def line(number: int) -> dict[str, object]:
    body = {"model": "demo", "prompt": [300 + number] * 40, "max_tokens": TOKENS, "ignore_eos": True}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


def test_a_batch_is_served_beside_interactive_requests(tmp_path: Path) -> None:
    flags = ("--instances", "1", "--policy", "headway", "--batch-dir", str(tmp_path / "batches"))
    serving = Serving(tmp_path, *flags, "--", "--max-num-seqs", "4")
    try:
        serving.wait_for(lambda: "1 of 1 instances ready" in serving.log.read_text())
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
            data = b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(REQUESTS))
            file = client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
            batch = client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/completions",
                completion_window="24h",
            )
            slo = {"x-slo-ttft-ms": "60000"}
            own = client.completions.create(model="demo", prompt=[9] * 20, max_tokens=4, extra_headers=slo)
            assert own.choices[0].finish_reason in ("length", "stop")
            while batch.status not in ("completed", "failed", "expired", "cancelled"):
                time.sleep(0.2)
                batch = client.batches.retrieve(batch.id)
            assert (batch.status, batch.error_file_id) == ("completed", None)
            assert batch.output_file_id is not None
            answers = [
                json.loads(each) for each in client.files.content(batch.output_file_id).text.splitlines()
            ]
        assert sorted(each["custom_id"] for each in answers) == sorted(f"r{n}" for n in range(REQUESTS))
        used = [each["response"]["body"]["usage"]["completion_tokens"] for each in answers]
        assert used == [TOKENS] * REQUESTS
        words = ["explain", "--url", serving.url, answers[0]["id"]]
        told = subprocess.run([sys.executable, "-m", "headway.cli", *words], capture_output=True, text=True)
        assert f"of {batch.id}, whose window closes on" in told.stdout, told.stderr
        assert "target whole answer within" in told.stdout
    finally:
        serving.close()
