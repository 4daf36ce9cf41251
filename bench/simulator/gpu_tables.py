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
from math import inf
from pathlib import Path
from typing import TypeAlias

import msgspec

from headway.core.batch_shape import MOST_GRAPHED_TOKENS, BatchShape
from headway.predict.models.known_models import model_shape
from headway.predict.models.model_shape import ModelShape
from headway.predict.steps.calibration import GraphedStep, StepSeconds
from headway.predict.steps.device_step import DeviceStep, Gpu
from headway.predict.steps.hardware import Catalogue, Hardware
from headway.statistics import median

DATA = Path(__file__).parents[3] / "shared" / "data" / "gpu"
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
    """Add the flag `--data DIR` for the folder of tables."""
    text = "folder of the published tables; bench/simulator/gpu_tables.py names their sources"
    parser.add_argument("--data", type=Path, metavar="DIR", default=DATA, help=text)


@dataclass(frozen=True, slots=True)
class Composed:
    """A model whose every kernel was measured at exactly its sizes, so that whole steps can be summed up."""

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
    """Whether the row with this key is kept out of the fit to judge it: two in ten, by digest."""
    digest = hashlib.sha256(",".join(map(str, key)).encode()).digest()
    return digest[0] * 10 // 256 < JUDGING_TENTHS


@dataclass(frozen=True, slots=True)
class Split:
    """Rows for the fit and rows for judging it."""

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


# ---- whole steps: measured, or summed up from measured kernels ---------------------------------------

SYSTEMS = {name: table.removeprefix("aic_").rpartition("_vllm")[0] for name, table in AIC.items()}
LEAST_TOKENS, MOST_TOKENS = 1, 32768
CONTEXTS = (128, 32768)
"""Range of contexts and prompts of the composed steps: what serving meets."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One whole step: its kind, its measured and its predicted time."""

    kind: str
    measured_s: float
    predicted_s: float


def judge_steps(catalogue: Catalogue, tables: Tables) -> dict[str, list[Judged]]:
    """Device -> whole steps of which no part was fitted."""
    judged: dict[str, list[Judged]] = {}
    for name, device in catalogue.hardware.items():
        if device.kernels in AIC and device.derived_from is None:
            judged[name] = list(_composed(catalogue, device, tables))
        elif device.derived_from is None:
            judged[name] = list(_single_layers(catalogue, device, tables))
    judged["h100"] += lone_steps(catalogue, tables)
    judged["h100"] += [
        Judged("served", *times) for *_, times in served_steps(catalogue, tables, judging=True)
    ]
    return judged


def lone_steps(catalogue: Catalogue, tables: Tables, *, least_prompt: int = 1) -> Iterator[Judged]:
    """Prefill, and a token's mean step, of lone requests on an H100, without asynchronous scheduling."""
    device = catalogue.hardware["h100"]
    law = with_graphs(device, DeviceStep(gpu_of(catalogue, device), model_shape("Llama-2-7b-hf")))
    host_s = device.host_s + device.host_job_s
    for prompt, output, prefill_s, token_s in tables.lone():
        if prompt < least_prompt:
            continue
        yield Judged("lone prefill", prefill_s, law.step_s(prefill_shape(1, prompt)) + host_s)
        yield Judged("lone decode", token_s, law.step_s(decode_shape(1, prompt + output // 2)) + host_s)


def served_steps(
    catalogue: Catalogue, tables: Tables, *, judging: bool
) -> Iterator[tuple[int, tuple[float, float]]]:
    """For each row of a closed loop: jobs, and mean seconds a token measured and predicted without asynchronous
    scheduling.

    While a request makes its tokens, each of the others is prefilled once.
    """
    device, model = catalogue.hardware["h100"], model_shape("Qwen3-32B")
    laws = {tp: with_graphs(device, DeviceStep(gpu_of(catalogue, device), model, tp)) for tp in (2, 4, 8)}
    for tp, jobs, prompt, output, measured in tables.served():
        if judges("served", tp, jobs, prompt, output) is judging:
            decode = laws[tp].step_s(decode_shape(jobs, prompt + output // 2))
            others = (jobs - 1) / output * laws[tp].step_s(prefill_shape(1, prompt))
            yield jobs, (measured, decode + others + device.host_s + device.host_job_s * jobs)


def gpu_of(catalogue: Catalogue, device: Hardware, *, bare: bool = False) -> Gpu:
    """The device in the form that the step law takes; `bare` leaves out everything but products, attention,
    collectives.
    """
    kernels = catalogue.kernels[device.kernels]
    if bare:
        kernels = msgspec.structs.replace(kernels, elementwise_start_s=0.0, elementwise_efficiency=inf)
    return Gpu(
        peaks=device.peaks,
        kernels=kernels,
        all_reduce=catalogue.all_reduce[device.all_reduce],
        link_ratio=device.link_ratio,
        step_overhead_s=0.0 if bare else device.step_overhead_s,
        sampler_s=0.0 if bare else device.sampler_s,
        sampler_job_s=0.0 if bare else device.sampler_job_s,
    )


def with_graphs(device: Hardware, kernels: StepSeconds) -> StepSeconds:
    """Steps of an engine with vLLM's default seats, and so its default CUDA graphs."""
    return GraphedStep(kernels=kernels, ungraphed_s=device.ungraphed_s, graphed_tokens=MOST_GRAPHED_TOKENS)


def decode_shape(sequences: int, context: int) -> BatchShape:
    """A step of decodes that each read `context` tokens, their own included."""
    return BatchShape(
        num_jobs=sequences,
        num_tokens=sequences,
        num_decodes=sequences,
        decode_context_tokens=sequences * context,
    )


def prefill_shape(prompts: int, length: int, cached: int = 0) -> BatchShape:
    """A step of `prompts` chunks of `length` new tokens after `cached` ones."""
    return BatchShape(
        num_jobs=prompts,
        num_tokens=prompts * length,
        prefill_context_tokens=prompts * (cached + length),
        prefill_pairs=prompts * length * (cached + (length + 1) / 2),
    )


def _composed(catalogue: Catalogue, device: Hardware, tables: Tables) -> Iterator[Judged]:
    name = device.kernels
    product = {row[:3]: row[3] for row in tables.gemm(name).judging}
    sums = tables.all_reduce(SYSTEMS[name])
    decode = {row[:4]: row[4] for row in tables.decode(name).judging}
    prefill = {row[:4]: row[4] for row in tables.prefill(name).judging}
    gpu = gpu_of(catalogue, device, bare=True)
    for each in COMPOSED:
        # One word in the vocabulary: the LM head's sizes were not measured.
        law = DeviceStep(gpu, replace(each.model, vocab_size=each.tp), each.tp)
        heads = (each.model.num_heads / each.tp, each.model.num_kv_heads / each.tp)
        for kind, attention in (("decode", decode), ("prefill", prefill)):
            for (batch, length, *found), seconds in attention.items():
                if tuple(found) != heads or not CONTEXTS[0] <= length <= CONTEXTS[1]:
                    continue
                tokens = int(batch if kind == "decode" else batch * length)
                rest = _token_seconds(each, tokens, product, sums)
                if rest is None:
                    continue
                make = decode_shape if kind == "decode" else prefill_shape
                predicted = law.step_s(make(int(batch), int(length)))
                yield Judged(kind, each.model.num_layers * (rest + seconds), predicted)


def _token_seconds(
    each: Composed,
    tokens: int,
    product: dict[tuple[float, ...], float],
    sums: dict[int, dict[int, float]],
) -> float | None:
    """Measured seconds of one layer's products and collectives; None unless each was measured at exactly this size."""
    parts = [product.get((float(tokens), float(n), float(k))) for n, k in products(each.model, each.tp)]
    if each.tp > 1:
        one = sums[each.tp].get(tokens * each.model.hidden_size * each.model.bytes_per_value)
        parts += [one, one]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _single_layers(catalogue: Catalogue, device: Hardware, tables: Tables) -> Iterator[Judged]:
    """Steps of the models LLMServingSim measured layer by layer, at token counts that were not fitted."""
    for run, model, tp in layer_runs(device.kernels):
        if tp > 1:
            continue  # its collectives were not measured
        dense, single = tables.dense(run), tables.per_sequence(run)
        law = DeviceStep(replace(gpu_of(catalogue, device), step_overhead_s=0.0), model, tp)
        for chunk, cached, decodes, context, seconds in tables.mixed_attention(run):
            tokens, jobs = chunk + decodes, (1 if chunk else 0) + decodes
            if (
                not judges("tokens", tokens)
                or tokens not in dense["qkv_proj"]
                or jobs not in single["sampler"]
            ):
                continue
            layer = sum(
                times[tokens]
                for part, times in dense.items()
                if "embedding" not in part and "final" not in part
            )
            measured = model.num_layers * (layer + dense["layernorm"][tokens] + seconds)
            measured += sum(times[jobs] for times in single.values())
            shape = _mixed_shape(chunk, cached, decodes, context)
            kind = "mixed" if chunk and decodes else "prefill" if chunk else "decode"
            yield Judged(kind, measured, law.step_s(shape))


def _mixed_shape(chunk: int, cached: int, decodes: int, context: int) -> BatchShape:
    shape = prefill_shape(1, chunk, cached) if chunk else BatchShape()
    rest = decode_shape(decodes, context)
    return BatchShape(
        num_jobs=shape.num_jobs + rest.num_jobs,
        num_tokens=shape.num_tokens + rest.num_tokens,
        num_decodes=rest.num_decodes,
        decode_context_tokens=rest.decode_context_tokens,
        prefill_context_tokens=shape.prefill_context_tokens,
        prefill_pairs=shape.prefill_pairs,
    )


def layer_runs(kernels: str) -> tuple[tuple[str, ModelShape, int], ...]:
    """LLMServingSim's runs on a device: file stem, model, GPUs. Experts are left out."""
    eight, large = model_shape("Llama-3.1-8B"), model_shape("Qwen3-32B")
    return {
        "rtx-4090": (("RTX4090_Llama-3.1-8B_tp1", eight, 1),),
        "rtx-pro-6000": (
            ("RTXPRO6000_Llama-3.1-8B_tp1", eight, 1),
            ("RTXPRO6000_Llama-3.1-8B_tp2", eight, 2),
            ("RTXPRO6000_Qwen3-32B_tp1", large, 1),
            ("RTXPRO6000_Qwen3-32B_tp2", large, 2),
        ),
    }[kernels]
