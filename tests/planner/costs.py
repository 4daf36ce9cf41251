"""A cost file of a made-up machine."""

from __future__ import annotations

from pathlib import Path

from headway.predict.steps.calibration import CostFile, EngineDefaults, MeasuredStep, write_cost_file
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.fitting import Errors
from headway.predict.steps.law import Curve, StepTimeFit, StepTimeLaw

LAW = StepTimeLaw(
    tokens=Curve(knots=(0, 1), seconds=(0.005, 0.00505)),
    jobs=Curve(knots=(0, 1), seconds=(0.0, 0.0001)),
    decode_context_s=1e-7,
    prefill_context_s=0.0,
    prefill_pair_s=0.0,
)


def write_costs(
    path: Path, *, jobs: int, tokens: int, graphed_tokens: int = 0, engine: EngineDefaults | None = None
) -> Path:
    """A cost file measured with steps of up to this many jobs and tokens."""
    copies = TransferModel(start_s=0.0, bytes_per_s=1e9)
    step = MeasuredStep(
        num_jobs=jobs,
        num_tokens=tokens,
        num_decodes=0,
        decode_context_tokens=0,
        prefill_context_tokens=0,
        prefill_pairs=0.0,
        seconds=0.1,
    )
    errors = Errors(num_rows=1, median_error=0.0, p90_error=0.0, residuals=(1.0,))
    write_cost_file(
        path,
        CostFile(
            machine="made up",
            model="demo",
            dtype="bfloat16",
            vllm_version="0.32",
            measured_on="2026-01-01",
            step=StepTimeFit(law=LAW, num_rows=1, held_out=errors),
            host_s=0.0005,
            to_host=copies,
            to_device=copies,
            kv_bytes_per_token=4096,
            kv_capacity_tokens=64_000,
            block_size=32,
            graphed_tokens=graphed_tokens,
            engine=engine,
            rows=(step,),
        ),
    )
    return path
