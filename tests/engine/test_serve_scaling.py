"""One to two vLLM servers of the demo model, as many as the requests need; no stream notices."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import openai
import pytest

from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(900)]

CLIENTS, TOKENS = 8, 60


class Load:
    """Clients that each ask again once they have an answer, until they are told to stop."""

    def __init__(self, url: str) -> None:
        self.ended: list[str | None] = []
        self._url = f"{url}/v1"
        self._enough = threading.Event()
        self._clients = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for client in self._clients:
            client.start()

    def _ask(self, number: int) -> None:
        with openai.OpenAI(base_url=self._url, api_key="none", max_retries=0) as client:
            while not self._enough.is_set():
                stream = client.completions.create(
                    model="demo",
                    prompt=[300 + number] * 20,
                    max_tokens=TOKENS,
                    stream=True,
                    extra_body={"ignore_eos": True, "stream_options": {"include_usage": True}},
                )
                last = [event.usage for event in stream][-1]
                self.ended.append(None if last is None else f"{last.completion_tokens}")

    def end(self) -> None:
        self._enough.set()
        for client in self._clients:
            client.join()


def test_an_instance_comes_when_requests_are_late_and_goes_when_they_are_few(tmp_path: Path) -> None:
    flags = ("--instances", "1..2", "--scale-window", "12", "--slo-ttft", "0.2", "--policy", "vllm")
    serving = Serving(tmp_path, *flags, "--", "--max-num-seqs", "2")

    def scale() -> dict[str, object]:
        found: dict[str, object] = httpx.get(f"{serving.url}/v1/scale").json()
        return found

    try:
        serving.wait_for(lambda: "0 is ready" in serving.log.read_text())
        assert (scale()["current"], scale()["reason"]) == (1, "unknown")
        load = Load(serving.url)
        try:
            serving.wait_for(lambda: "1 is ready" in serving.log.read_text())
            assert (scale()["recommended"], scale()["current"]) == (2, 2)
            time.sleep(5)
        finally:
            load.end()
        # Nobody asks any more: the window empties, and a calm time passes.
        serving.wait_for(lambda: scale()["recommended"] == 1)
        serving.wait_for(lambda: " is parked" in serving.log.read_text())
        assert set(load.ended) == {f"{TOKENS}"}
        answer = httpx.post(
            f"{serving.url}/v1/completions", json={"model": "demo", "prompt": [7] * 9, "max_tokens": 3}
        )
        assert answer.status_code == 200
        metrics = httpx.get(f"{serving.url}/metrics").text
        assert "headway_recommended_instances 1.0" in metrics
    finally:
        serving.close()
