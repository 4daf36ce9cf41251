"""Real traces, where they lie beside the repository; nothing of them is part of it."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from headway.errors import TraceError
from headway.traces import NAMED_LAWS, read_trace, scale_lengths, write_trace
from headway.traces.lengths import LengthLaw, Quantiles

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

ARXIV = "lengths/arxiv_summarization_llama2"

pytestmark = pytest.mark.skipif(not (DATA / "traces").is_dir(), reason="the shared traces are not here")


@pytest.mark.parametrize(
    ("name", "count", "mean_rps", "mean_input", "mean_output"),
    [
        ("azure2023_conv", 15460, 5.89, 1180, 201),
        ("azure2023_code", 7717, 3.00, 2036, 28),
        ("servegen_m_large_1h_resampled", 49757, 13.82, 1313, 119),
    ],
)
def test_a_trace_reads_as_it_was_published(
    name: str, count: int, mean_rps: float, mean_input: int, mean_output: int
) -> None:
    requests = read_trace(DATA / "traces" / f"{name}.csv.gz")
    assert len(requests) == count
    assert requests[0].arrival_s == 0.0
    assert count / requests[-1].arrival_s == pytest.approx(mean_rps, abs=0.01)
    assert np.mean([request.input_tokens for request in requests]) == pytest.approx(mean_input, abs=0.5)
    assert np.mean([request.output_tokens for request in requests]) == pytest.approx(mean_output, abs=0.5)


def test_a_real_trace_survives_a_round_trip_and_scaling(tmp_path: Path) -> None:
    requests = read_trace(DATA / "traces" / "azure2023_code.csv.gz", limit=2000)
    write_trace(requests, tmp_path / "copy.csv.gz")
    assert read_trace(tmp_path / "copy.csv.gz") == requests
    small = scale_lengths(requests, max_input_tokens=448, max_output_tokens=64)
    clipped = sum(request.input_tokens == 448 for request in small)
    assert max(request.input_tokens for request in small) == 448
    assert clipped <= 0.05 * len(small)


def test_recorded_sessions_ask_to_be_superposed() -> None:
    path = DATA / "traces" / "agentic_claude_code.csv.gz"
    with pytest.raises(TraceError, match="sessions have their own clocks here"):
        read_trace(path)
    first = read_trace(path, limit=33)
    assert {request.session for request in first} == {"0002"}
    assert not any(request.slo for request in first)  # its ttft_s was measured


@pytest.mark.parametrize("name", ["servegen_m_large_clients.csv.gz", "agentic_claude_code_prefix.jsonl.gz"])
def test_a_table_that_is_no_trace_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match="line 1"):
        read_trace(DATA / "traces" / name)


def lengths(name: str, column: str) -> np.ndarray:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return np.array([int(row[column]) for row in csv.DictReader(file)])


@pytest.mark.parametrize(
    ("law", "name", "column", "mean_error", "distance"),
    [
        (NAMED_LAWS["sharegpt"].input, "lengths/sharegpt_val10k_llama2", "input_tokens", 0.016, 0.008),
        (NAMED_LAWS["sharegpt"].output, "lengths/sharegpt_val10k_llama2", "output_tokens", 0.004, 0.012),
        (NAMED_LAWS["sharegpt-turns"].input, "lengths/sharegpt_llama2", "input_tokens", 0.003, 0.008),
        (NAMED_LAWS["sharegpt-turns"].output, "lengths/sharegpt_llama2", "output_tokens", 0.001, 0.005),
        (NAMED_LAWS["arxiv-summarization"].input, ARXIV, "input_tokens", 0.001, 0.005),
        (NAMED_LAWS["arxiv-summarization"].output, ARXIV, "output_tokens", 0.017, 0.02),
        (NAMED_LAWS["azure-conversation"].input, "traces/azure2023_conv", "input_tokens", 0.012, 0.047),
        (NAMED_LAWS["azure-conversation"].output, "traces/azure2023_conv", "output_tokens", 0.012, 0.022),
    ],
)
def test_quantile_tables_fit_their_data_as_stated(
    law: LengthLaw, name: str, column: str, mean_error: float, distance: float
) -> None:
    data = np.sort(lengths(f"{name}.csv.gz", column))
    assert isinstance(law, Quantiles)
    probabilities, tokens = zip(*law.table, strict=True)
    assert tuple(np.quantile(data, probabilities, method="inverted_cdf")) == tokens
    drawn = np.sort(law.sample(200_000, np.random.default_rng(0)))
    assert law.expected_tokens() == pytest.approx(data.mean(), rel=mean_error)
    values = np.unique(np.concatenate([data, drawn]))
    shares = [np.searchsorted(sample, values, side="right") / len(sample) for sample in (data, drawn)]
    # 200,000 draws are themselves within 1.63 / sqrt(n) = 0.004 of their law, 99 times in 100.
    assert np.abs(shares[0] - shares[1]).max() <= distance + 0.004
