"""From measurements to a cost file, and how well its laws hold by kind of step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headway.core.batch_shape import BatchShape, StepKind
from headway.engine.kv.block_copies import Direction
from headway.engine.profiling.profile import Measurements
from headway.engine.servers.vllm_flags import parse_vllm_flags
from headway.errors import ConfigError
from headway.predict.steps.calibration import CostFile, EngineDefaults, measured_step
from headway.predict.steps.copies import fit_transfer
from headway.predict.steps.fitting import Errors, errors_of
from headway.predict.steps.law import HELD_OUT_EVERY, StepTimeFit, fit_step_time

_SIZES = (
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--max-cudagraph-capture-size",
    "--tensor-parallel-size",
    "-tp",
)
"""vLLM's flags that a cost file has numbers of, and plans their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What was measured, with which of vLLM's flags, where, and on which day."""

    machine: str
    model: str
    vllm_version: str
    measured_on: str
    vllm_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A cost file's contents, and the errors on steps the fit has not seen, by kind of step."""

    cost: CostFile
    errors: dict[str, Errors]

    def to_dict(self) -> dict[str, object]:
        """What scripts read: errors as fractions, seconds, bytes, counts."""
        cost = self.cost
        return {
            "machine": cost.machine,
            "model": cost.model,
            "steps": cost.step.num_rows,
            "errors": {
                kind: {"steps": e.num_rows, "median": e.median_error, "p90": e.p90_error}
                for kind, e in self.errors.items()
            },
            "host_s": cost.host_s,
            "to_host": {"start_s": cost.to_host.start_s, "bytes_per_s": cost.to_host.bytes_per_s},
            "to_device": {"start_s": cost.to_device.start_s, "bytes_per_s": cost.to_device.bytes_per_s},
            "kv_bytes_per_token": cost.kv_bytes_per_token,
            "kv_capacity_tokens": cost.kv_capacity_tokens,
            "block_size": cost.block_size,
        }


def conclude(measured: Measurements, identity: Identity, seed: int = 0) -> ProfileResult:
    """Fit the laws; every fifth step, drawn by `seed`, only judges them.

    Raises ConfigError, naming what is missing, if too little was measured.
    """
    missing = measured.missing()
    if missing:
        raise ConfigError(f"too little was measured for a cost file; missing: {', '.join(missing)}")
    rows = measured.rows(random.Random(seed))
    fit = unbiased(fit_step_time(rows), rows)
    sizes = measured.sizes
    cost = CostFile(
        machine=identity.machine,
        model=identity.model,
        dtype=sizes.dtype,
        vllm_version=identity.vllm_version,
        measured_on=identity.measured_on,
        tensor_parallel=sizes.tensor_parallel,
        step=fit,
        host_s=measured.host_s(),
        to_host=fit_transfer(measured.transfers(Direction.TO_HOST)),
        to_device=fit_transfer(measured.transfers(Direction.TO_DEVICE)),
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        kv_capacity_tokens=sizes.kv_capacity_tokens,
        block_size=sizes.block_size,
        engine=EngineDefaults(
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            asynchronous=sizes.asynchronous,
            vllm_flags=_saying_no_size(identity.vllm_flags),
        ),
        graphed_tokens=sizes.graphed_tokens,
        rows=tuple(measured_step(shape, seconds) for shape, seconds in rows),
    )
    unseen = rows[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    pairs = {
        kind: [(s, fit.law.step_s(shape)) for shape, s in unseen if shape.kind == kind] for kind in StepKind
    }
    return ProfileResult(cost, {kind: errors_of(found) for kind, found in pairs.items()})


def _saying_no_size(vllm_flags: Sequence[str]) -> tuple[str, ...]:
    flags = parse_vllm_flags(vllm_flags)
    return tuple(word for flag in flags if flag.name not in _SIZES for word in flag.words)


def unbiased(fit: StepTimeFit, rows: Sequence[tuple[BatchShape, float]]) -> StepTimeFit:
    """The fit with residuals whose mean, as a clock draws them, is that of all measured time over predicted.

    The law follows the typical step and holds outliers back, while a run's length is a sum over all steps; and
    quantiles of few steps, drawn with straight lines between, weigh their largest outlier too much. A bias of 2 %
    in every step is one of 10 % and more in the waiting times of a loaded engine.
    """
    true_mean = sum(s for _, s in rows) / sum(fit.law.step_s(shape) for shape, _ in rows)
    residuals = fit.held_out.residuals
    drawn = [sum(pair) / 2 for pair in pairwise(residuals)] or residuals
    scale = true_mean * len(drawn) / sum(drawn)
    held_out = replace(fit.held_out, residuals=tuple(residual * scale for residual in residuals))
    return replace(fit, held_out=held_out)
