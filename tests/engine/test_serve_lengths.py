"""`headway serve --predictor` for real: once some answers have ended others are predicted, and it is kept."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.results import read_records
from tests.engine.test_serve_demo import Serving

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.timeout(600)]

TEACHING = 10
"""Answers before the first prediction."""
LIMIT = 200


def ask(client: Any, number: int) -> None:
    """An answer three times as long as its prompt, which the declared limit does not give away."""
    length = 5 + number % 12
    client.completions.create(
        model="demo",
        prompt=[300 + number % 50] * length,
        max_tokens=3 * length,
        extra_body={
            "ignore_eos": True,
            "min_tokens": 3 * length,
            "vllm_xargs": {"headway_max_output_tokens": LIMIT},
        },
    )


def shown(serving: Serving) -> dict[str, float]:
    """The length series of `/metrics`, by name and reason."""
    with urllib.request.urlopen(f"{serving.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = [line.rpartition(" ") for line in lines if line.startswith("headway_length")]
    return {name.replace('api_server="0"', "").replace("{}", ""): float(value) for name, _, value in values}


def start(folder: Path, file: Path) -> Serving:
    flags = ("--policy", "predicted", "--predictor", "learned")
    serving = Serving(folder, *flags, "--length-model", str(file), "--batch-width", "8")
    serving.wait_ready()
    return serving


def test_lengths_are_learned_predicted_shown_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "lengths.npz"
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    serving = start(tmp_path / "first", file)
    try:
        assert "Lengths of answers are predicted with learned" in serving.log.read_text()
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
            for number in range(TEACHING):
                ask(client, number)
            assert shown(serving)["headway_length_answers_total"] == TEACHING
            ask(client, 0)
            client.completions.create(model="demo", prompt="x", max_tokens=1)  # nothing to predict
        after = shown(serving)
        assert after["headway_length_predictions_total"] == 1
        assert after['headway_length_refusals_total{,reason="unknown"}'] == TEACHING
        assert after["headway_length_answers_total"] == TEACHING + 1
        assert after["headway_length_pinball_tokens"] > 0
        assert after["headway_length_faults_total"] == 0
        serving.wait_for(lambda: len(read_records(serving.records)) == TEACHING + 2)
        predicted = [record.predicted_output_tokens for record in read_records(serving.records)]
        assert predicted[:TEACHING] == [None] * TEACHING
        found = predicted[TEACHING]
        assert found is not None
        assert 10 <= found <= 60  # answers had 15 to 48 tokens
    finally:
        serving.process.send_signal(signal.SIGTERM)
    assert serving.process.wait() == 0
    again = start(tmp_path / "second", file)
    try:
        with openai.OpenAI(base_url=f"{again.url}/v1", api_key="none", max_retries=0) as client:
            ask(client, 3)
        assert shown(again)["headway_length_predictions_total"] == 1
    finally:
        again.close()
