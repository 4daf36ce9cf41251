"""Single kernels on rows no fit has seen, beside what the catalogue predicts."""

from __future__ import annotations

from collections.abc import Iterator

from bench.gpu_steps import Judged
from bench.gpu_tables import AIC, Tables
from headway.predict.hardware import Catalogue, Hardware
from headway.predict.kernels import Chunks, Heads

HEAD_DIM = 128


def judge_kernels(catalogue: Catalogue, tables: Tables) -> dict[str, list[Judged]]:
    """Device -> products and attention of one layer, of the devices with tables of kernels."""
    return {
        name: list(_kernels(catalogue, device, tables))
        for name, device in catalogue.hardware.items()
        if device.kernels in AIC and device.derived_from is None
    }


def _kernels(catalogue: Catalogue, device: Hardware, tables: Tables) -> Iterator[Judged]:
    law, peaks = catalogue.kernels[device.kernels], device.peaks
    for rows, columns, depth, seconds in tables.gemm(device.kernels).judging:
        yield Judged("kernel: product", seconds, law.gemm_s(peaks, rows, columns, depth))
    for batch, context, query, kv, seconds in tables.decode(device.kernels).judging:
        heads = Heads(query=query, kv=kv, dim=HEAD_DIM)
        yield Judged("kernel: decode", seconds, law.decode_s(peaks, heads, batch, context))
    for batch, prompt, query, kv, seconds in tables.prefill(device.kernels).judging:
        heads = Heads(query=query, kv=kv, dim=HEAD_DIM)
        tokens = int(batch * prompt)
        chunks = Chunks(int(batch), tokens, tokens * (prompt + 1) / 2, tokens)
        predicted = law.prefill_s(peaks, heads, law.prefill_work(heads), chunks)
        yield Judged("kernel: prefill", seconds, predicted)
