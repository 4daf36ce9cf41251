"""Reads the published GPU timings as rows, and says which of them judge and which are fitted.

A row judges if a digest of its shape says so, or if it belongs to one of the models that whole steps are
composed for: no shape of theirs is ever fitted.

The tables, by how their files begin, come from public repositories (on github.com, at these commits). Each was turned
into CSV where it was not and may have fewer rows and columns; no measured number was changed:
- `aic_`: ai-dynamo/aiconfigurator 095f58a5, `aic-core/src/aiconfigurator_core/systems` (Apache-2.0);
- `llmservingsim_`: casys-kaist/LLMServingSim 5daddb21, `profiler/perf` (MIT);
- `splitwise_`: Mutinifni/splitwise-sim 8f99e7dc, `data/perf_model.csv` (MIT);
- `vllm_e2e_`: casys-kaist/LLMServingSim, `bench/examples/*/vllm` (MIT: the runs named `llmservingsim_`), and
  inference-sim/inference-sim e7a4aa37, `eval/ground_truth` (Apache-2.0: those named `inferencesim_`; it does not name
  their GPU, which 70 GB in use and 26 ms a decode step leave to be an H100).
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import TypeAlias

from headway.predict.known_models import model_shape
from headway.predict.model_shape import ModelShape

DATA = Path(__file__).parents[2] / "shared" / "data" / "gpu"
Row: TypeAlias = tuple[float, ...]
"""A kernel's quantities, then its seconds."""

JUDGING_TENTHS = 2
_SMALLEST_SIDE = 256
_LONGEST_BATCH = 512
SATURATED_MS = 1500.0
LONE_RUN = "inferencesim_jan21-llama7b-train-1"

AIC = {
    "a100": "aic_a100_sxm_vllm0.14.0",
    "h100": "aic_h100_sxm_vllm0.24.0",
    "h200": "aic_h200_sxm_vllm0.24.0",
    "l40s": "aic_l40s_vllm0.24.0",
    "b200": "aic_b200_sxm_vllm0.24.0",
}
"""Kernel tables by the name the catalogue gives them."""


def add_data_flag(parser: ArgumentParser) -> None:
    """Give a script the flag `--data DIR`, where the tables are."""
    text = "folder of the published tables; bench/gpu_tables.py names their sources"
    parser.add_argument("--data", type=Path, metavar="DIR", default=DATA, help=text)


@dataclass(frozen=True, slots=True)
class Composed:
    """A model whose every kernel was measured at its own size, so that whole steps can be summed up."""

    model: ModelShape
    tp: int


def _llama_3b() -> ModelShape:
    eight = model_shape("Llama-3.1-8B")
    return replace(
        eight,
        name="meta-llama/Llama-3.2-3B",
        num_layers=28,
        hidden_size=3072,
        num_heads=24,
        intermediate_size=8192,
        tied_embeddings=True,
    )


COMPOSED = (
    Composed(_llama_3b(), 1),
    Composed(model_shape("Llama-3.1-8B"), 4),
    Composed(model_shape("Qwen3-8B"), 2),
    Composed(model_shape("Qwen3-8B"), 4),
    Composed(model_shape("opt-6.7b"), 1),
    Composed(model_shape("opt-6.7b"), 4),
)


def products(model: ModelShape, tp: int) -> tuple[tuple[int, int], ...]:
    """(columns, depth) of one layer's four matrix products on one GPU."""
    hidden, query = model.hidden_size, model.query_width // tp
    inner = model.intermediate_size // tp
    return (
        (query + 2 * model.kv_width // tp, hidden),
        (hidden, query),
        ((2 if model.gated else 1) * inner, hidden),
        (hidden, inner),
    )


_HELD_PRODUCTS = frozenset(pair for each in COMPOSED for pair in products(each.model, each.tp))
_HELD_HEADS = frozenset(
    (each.model.num_heads // each.tp, each.model.num_kv_heads // each.tp) for each in COMPOSED
)


def judges(*key: object) -> bool:
    """Whether the row with this key is kept from the fit: two in ten, by digest."""
    digest = hashlib.sha256(",".join(map(str, key)).encode()).digest()
    return digest[0] * 10 // 256 < JUDGING_TENTHS


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to fit and rows to judge by."""

    fitted: list[Row]
    judging: list[Row]


class Tables:
    """The tables in one folder, each read once."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.read = cache(self._read)

    def _read(self, name: str) -> list[dict[str, str]]:
        path = self._data / name
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def gemm(self, device: str) -> Split:
        """(rows, columns, depth, seconds) of 16-bit matrix products."""
        split = Split([], [])
        for row in self.read(f"{AIC[device]}_gemm.csv.gz"):
            columns, depth = int(row["n"]), int(row["k"])
            if row["dtype"] != "bfloat16" or min(columns, depth) < _SMALLEST_SIDE:
                continue
            held = (columns, depth) in _HELD_PRODUCTS or judges("gemm", columns, depth)
            (split.judging if held else split.fitted).append(
                (float(row["m"]), float(columns), float(depth), _seconds(row))
            )
        return split

    def decode(self, device: str) -> Split:
        """(sequences, context, query heads, KV heads, seconds) of one layer's decode attention."""
        return self._attention(device, "decode")

    def prefill(self, device: str) -> Split:
        """(sequences, prompt, query heads, KV heads, seconds) of one layer's prefill attention."""
        return self._attention(device, "prefill")

    def _attention(self, device: str, kind: str) -> Split:
        split = Split([], [])
        for row in self.read(f"{AIC[device]}_attn_{kind}.csv.gz"):
            query, kv, batch = int(row["num_heads"]), int(row["num_kv_heads"]), int(row["batch_size"])
            length = int(row["isl"]) + int(row["step"])
            if row["kv_cache_dtype"] != "bfloat16" or batch > _LONGEST_BATCH or length < 2:
                continue
            held = (query, kv) in _HELD_HEADS or judges(kind, query, kv)
            (split.judging if held else split.fitted).append(
                (float(batch), float(length), float(query), float(kv), _seconds(row))
            )
        return split

    def all_reduce(self, system: str) -> dict[int, dict[int, float]]:
        """GPUs -> message bytes -> seconds, of the newest measurement inside a CUDA graph.

        The source counts elements of 2 bytes.
        """
        rows = [
            row
            for row in self.read("aic_allreduce.csv.gz")
            if row["system"] == system and row["kernel"] == "vLLM_custom_graph"
        ]
        newest = max(row["vllm_version"] for row in rows)
        found: dict[int, dict[int, float]] = defaultdict(dict)
        for row in rows:
            if row["vllm_version"] == newest:
                found[int(row["num_gpus"])][2 * int(row["message_size"])] = _seconds(row)
        return dict(found)

    def dense(self, run: str) -> dict[str, dict[int, float]]:
        """Layer -> tokens -> seconds of one of LLMServingSim's runs."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for row in self.read(f"llmservingsim_{run}_dense.csv.gz"):
            found[row["layer"]][int(row["tokens"])] = float(row["time_us"]) * 1e-6
        return dict(found)

    def per_sequence(self, run: str) -> dict[str, dict[int, float]]:
        """LM head and sampler -> sequences -> seconds of one of LLMServingSim's runs."""
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for row in self.read(f"llmservingsim_{run}_per_sequence.csv.gz"):
            found[row["layer"]][int(row["sequences"])] = float(row["time_us"]) * 1e-6
        return dict(found)

    def single_products(self, run: str, model: ModelShape, tp: int) -> Split:
        """(rows, columns, depth, seconds) of one of LLMServingSim's runs; whole token counts judge."""
        names = dict(
            zip(("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), products(model, tp), strict=True)
        )
        split = Split([], [])
        rows = [
            (tokens, *names[layer], seconds)
            for layer, times in self.dense(run).items()
            if layer in names
            for tokens, seconds in times.items()
        ]
        head = (model.vocab_size // tp, model.hidden_size)
        rows += [(jobs, *head, seconds) for jobs, seconds in self.per_sequence(run)["lm_head"].items()]
        for row in rows:
            (split.judging if judges("tokens", row[0]) else split.fitted).append(tuple(map(float, row)))
        return split

    def mixed_attention(self, run: str) -> Iterator[tuple[int, int, int, int, float]]:
        """(chunk, its cached tokens, decodes, their context, seconds) of one of LLMServingSim's runs."""
        for row in self.read(f"llmservingsim_{run}_attention.csv.gz"):
            yield (
                int(row["prefill_chunk"]),
                int(row["kv_prefill"]),
                int(row["n_decode"]),
                int(row["kv_decode"]),
                float(row["time_us"]) * 1e-6,
            )

    def splitwise(self, hardware: str) -> Iterator[tuple[int, int, int, int, float, float]]:
        """(GPUs, prompt, batch, output, prompt seconds, seconds a token) of Llama-2-70B, medians of repeats."""
        found: dict[tuple[int, int, int, int], list[tuple[float, float]]] = defaultdict(list)
        for row in self.read("splitwise_perf_model.csv.gz"):
            if row["hardware"] == hardware and row["model"] == "llama2-70b":
                key = (int(row["tensor_parallel"]), int(row["prompt_size"]), int(row["batch_size"]))
                found[*key, int(row["token_size"])].append(
                    (float(row["prompt_time"]), float(row["token_time"]))
                )
        for (tp, prompt, batch, output), times in sorted(found.items()):
            prompt_ms, token_ms = (median(values) for values in zip(*times, strict=True))
            yield tp, prompt, batch, output, prompt_ms * 1e-3, token_ms * 1e-3

    def served(self) -> Iterator[tuple[int, int, int, int, float]]:
        """(GPUs, concurrency, prompt, output, mean seconds a token) of Qwen3-32B under vLLM 0.12 on H100s.

        Rows whose first token took longer than SATURATED_MS queued for memory and are left out.
        """
        for row in self.read("aic_measured_ttft_tpot.csv.gz"):
            wanted = row["backend"], row["model_path"], row["system"], row["mode"], row["precision"]
            if wanted != ("vllm", "Qwen/Qwen3-32B", "h100_sxm", "agg", ""):
                continue
            if float(row["silicon_ttft_ms"]) < SATURATED_MS:
                sizes = (int(row[key]) for key in ("tp_size", "batch_size", "isl", "osl"))
                tp, concurrency, prompt, output = sizes
                yield tp, concurrency, prompt, output, float(row["silicon_tpot_ms"]) * 1e-3

    def lone(self) -> Iterator[tuple[int, int, float, float]]:
        """(prompt, output, prefill seconds, seconds a token) of requests that were alone on an H100.

        Llama-2-7b under vLLM 0.11, the one published server whose prefix cache never hit.
        """
        rows = [row for row in self.read("vllm_e2e_requests.csv.gz") if row["run"] == LONE_RUN]
        spans = [(float(row["arrival_s"]), float(row["arrival_s"]) + float(row["e2e_s"])) for row in rows]
        for index, (row, (start, end)) in enumerate(zip(rows, spans, strict=True)):
            others = spans[:index] + spans[index + 1 :]
            prompt, output = int(row["input_tokens"]), int(row["output_tokens"])
            if output > 1 and not any(first < end and last > start for first, last in others):
                yield prompt, output, float(row["prefill_s"]), float(row["decode_s"]) / (output - 1)


def _seconds(row: dict[str, str]) -> float:
    return float(row["latency_ms"]) * 1e-3
