"""Whole steps: measured, or summed up from measured kernels, beside what the catalogue predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import msgspec

from bench.gpu_tables import AIC, COMPOSED, Composed, Tables, judges, products
from headway.core.batch_shape import BatchShape
from headway.core.cuda_graphs import MOST_GRAPHED_TOKENS
from headway.predict.calibration import GraphedStep, StepSeconds
from headway.predict.device_step import DeviceStep, Gpu
from headway.predict.hardware import Catalogue, Hardware
from headway.predict.known_models import model_shape
from headway.predict.model_shape import ModelShape

SYSTEMS = {name: table.removeprefix("aic_").rpartition("_vllm")[0] for name, table in AIC.items()}
LEAST_TOKENS, MOST_TOKENS = 1, 32768
CONTEXTS = (128, 32768)
"""Contexts and prompts of the steps composed: what serving meets."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One whole step: of which kind, what it took and what was predicted."""

    kind: str
    measured_s: float
    predicted_s: float


def judge_steps(catalogue: Catalogue, tables: Tables) -> dict[str, list[Judged]]:
    """Device -> whole steps no part of which was fitted."""
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
    """Prefill, and a token's mean step, of requests alone on an H100, without asynchronous scheduling."""
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
    """Jobs, and mean seconds a token measured and predicted without asynchronous scheduling, of a closed loop.

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
    """The device as the step law takes it; `bare` leaves out everything but products, attention, collectives."""
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
    """Steps of an engine with vLLM's own seats, and so its own CUDA graphs."""
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
    """Measured seconds of one layer's products and collectives, if each was measured at just this size."""
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
