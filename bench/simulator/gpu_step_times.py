"""The shipped catalogue on rows its fit has not seen: `python bench/simulator/gpu_step_times.py --data DIR [--json]`.

A row is a whole step; single kernels are listed among the kinds, and count for nothing else. Kinds:
- decode, prefill, mixed: summed up from kernels, each measured at just this size, of models no size of which was
  fitted (aiconfigurator), or at token counts that were not (LLMServingSim);
- lone: requests of Llama-2-7b alone on an H100 under vLLM 0.11, whole, nothing of them fitted;
- served: Qwen3-32B under vLLM 0.12 on H100s, whole; the host's two numbers were fitted to other such rows.
Engines of 2023 (Splitwise) are listed apart: the same law with four numbers for their stack, see `old_stacks`.
stdout is `{"<device>": {"rows", "median_error", "p90_error", "kinds": {...}}}`; without --json a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import numpy as np

from bench.simulator.gpu_tables import (
    AIC,
    Judged,
    Tables,
    add_data_flag,
    decode_shape,
    gpu_of,
    judge_steps,
    judges,
    prefill_shape,
    with_graphs,
)
from headway.core.batch_shape import BatchShape
from headway.predict.models.known_models import model_shape
from headway.predict.steps.device_step import DeviceStep
from headway.predict.steps.fitting import errors_of, nnls
from headway.predict.steps.hardware import Catalogue, Hardware, catalogue
from headway.predict.steps.kernels import Chunks, Heads

# ---- single kernels on rows that no fit has seen -----------------------------------------------------

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


# ---- Whole iterations of engines of 2023 and 2024, which launched kernel by kernel and summed over GPUs less well.
#
# Today's kernels with a few numbers for the stack, fitted per device to some rows and judged on the others:
# prefill = f x device + g x collectives + what every step costs + h x tokens over 2048 beyond two GPUs;
# decode = the larger of launching and f x device + collectives, + what each sequence costs the host.


PUBLISHED = {"a100-80g": "a100-80gb", "h100": "h100-80gb"}
KINK_TOKENS = 2048
OUT_OF_MEMORY = (2, 64)
"""GPUs and sequences of Splitwise's rows with less time than a quarter of their work takes: requests failed."""


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


# ---- the bench ---------------------------------------------------------------------------------------


def main() -> None:
    """Judge, and print one object or a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_data_flag(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    tables, shipped = Tables(arguments.data), catalogue()
    found = {name: _by_kind(steps) for name, steps in judge_steps(shipped, tables).items()}
    for name, kernels in judge_kernels(shipped, tables).items():
        found[name]["kinds"] |= _by_kind(kernels)["kinds"]
    found |= {name: _by_kind(steps) for name, steps in old_stacks(shipped, tables).items()}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, device in found.items():
        for kind, errors in {"all": device, **device["kinds"]}.items():
            print(
                f"{name:24} {kind:15} {errors['rows']:5} rows  median {errors['median_error']:6.1%}"
                f"  p90 {errors['p90_error']:6.1%}"
            )


def _by_kind(steps: Sequence[Judged]) -> dict[str, Any]:
    kinds = sorted({step.kind for step in steps})
    return {
        **_errors(steps),
        "kinds": {kind: _errors([step for step in steps if step.kind == kind]) for kind in kinds},
    }


def _errors(steps: Sequence[Judged]) -> dict[str, float]:
    errors = errors_of([(step.measured_s, step.predicted_s) for step in steps])
    return {
        "rows": errors.num_rows,
        "median_error": round(errors.median_error, 4),
        "p90_error": round(errors.p90_error, 4),
    }


if __name__ == "__main__":
    main()
