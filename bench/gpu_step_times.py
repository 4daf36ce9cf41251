"""Judges the shipped catalogue on rows its fit has not seen: `python bench/gpu_step_times.py --data DIR [--json]`.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.gpu_kernels import judge_kernels
from bench.gpu_steps import Judged, judge_steps
from bench.gpu_tables import Tables, add_data_flag
from bench.old_stacks import old_stacks
from headway.predict.hardware import catalogue
from headway.predict.residuals import errors_of


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
