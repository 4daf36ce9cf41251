"""Whole iterations of engines of 2023 and 2024, which launched kernel by kernel and summed over GPUs less well.

Today's kernels with a few numbers for the stack, fitted per device to some rows and judged on the others:
prefill = f x device + g x collectives + what every step costs + h x tokens over 2048 beyond two GPUs;
decode = the larger of launching and f x device + collectives, + what each sequence costs the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from bench.gpu_steps import Judged, decode_shape, gpu_of, prefill_shape, with_graphs
from bench.gpu_tables import Tables, judges
from headway.core.batch_shape import BatchShape
from headway.predict.device_step import DeviceStep
from headway.predict.hardware import Catalogue
from headway.predict.known_models import model_shape
from headway.predict.nnls import nnls

PUBLISHED = {"a100-80g": "a100-80gb", "h100": "h100-80gb"}
KINK_TOKENS = 2048
OUT_OF_MEMORY = (2, 64)
"""GPUs and sequences of Splitwise's rows that took less time than a quarter of their work: requests failed."""


@dataclass(frozen=True, slots=True)
class _Iteration:
    tp: int
    shape: BatchShape
    measured_s: float
    device_s: float
    collectives_s: float
    judging: bool

    @property
    def late_tokens(self) -> float:
        """Tokens, in ten thousands, that more than two GPUs sum up the slow way."""
        return max(0, self.shape.num_tokens - KINK_TOKENS) * 1e-4 if self.tp > 2 else 0.0


def old_stacks(catalogue: Catalogue, tables: Tables) -> dict[str, list[Judged]]:
    """Device and source -> unseen whole iterations of Llama-2-70B on 2, 4 and 8 GPUs (Splitwise)."""
    found = {}
    for name, published in PUBLISHED.items():
        rows = list(_iterations(catalogue, tables, name, published))
        prefills = [row for row in rows if not row.shape.num_decodes]
        decodes = [row for row in rows if row.shape.num_decodes]
        found[f"{name} (Splitwise)"] = [*_judge_prefills(prefills), *_judge_decodes(decodes)]
    return found


def _iterations(catalogue: Catalogue, tables: Tables, name: str, published: str) -> Iterator[_Iteration]:
    model = model_shape("Llama-2-70b-hf")
    device = catalogue.hardware[name]
    kernels = {tp: DeviceStep(gpu_of(catalogue, device), model, tp) for tp in (2, 4, 8)}
    laws = {tp: with_graphs(device, its) for tp, its in kernels.items()}
    for tp, prompt, batch, output, prompt_s, token_s in tables.splitwise(published):
        if (tp, batch) == OUT_OF_MEMORY:
            continue
        judging = judges("whole", tp, prompt, batch, output)
        steps = (
            (prefill_shape(batch, prompt), prompt_s),
            (decode_shape(batch, prompt + output // 2), token_s),
        )
        for shape, measured_s in steps:
            together = model.num_layers * kernels[tp].collectives_s(shape.num_tokens)
            yield _Iteration(tp, shape, measured_s, laws[tp].step_s(shape) - together, together, judging)


def _judge_prefills(rows: list[_Iteration]) -> Iterator[Judged]:
    features = np.array([[row.device_s, row.collectives_s, 1.0, row.late_tokens] for row in rows])
    measured = np.array([row.measured_s for row in rows])
    fitted = np.array([not row.judging for row in rows])
    numbers = nnls(features[fitted] / measured[fitted, None], np.ones(int(fitted.sum())))
    for row, expected in zip(rows, features @ numbers, strict=True):
        if row.judging:
            yield Judged("prefill", row.measured_s, float(expected))


def _judge_decodes(rows: list[_Iteration]) -> Iterator[Judged]:
    fitted = [row for row in rows if not row.judging]
    launching = [step * 5e-4 for step in range(40, 100)]
    factors = [1 + step * 0.02 for step in range(30)]
    grid = product(launching, factors, [step * 2e-5 for step in range(25)])
    best = min(grid, key=lambda numbers: float(np.mean([_decode_error(row, *numbers) for row in fitted])))
    for row in rows:
        if row.judging:
            yield Judged("decode", row.measured_s, _decode_s(row, *best))


def _decode_s(row: _Iteration, launching_s: float, factor: float, sequence_s: float) -> float:
    device_s = factor * row.device_s + row.collectives_s
    return float(max(launching_s, device_s) + sequence_s * row.shape.num_jobs)


def _decode_error(row: _Iteration, launching_s: float, factor: float, sequence_s: float) -> float:
    return abs(row.measured_s / _decode_s(row, launching_s, factor, sequence_s) - 1)
