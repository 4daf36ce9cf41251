"""Costs of an engine on one machine, and the file in which `headway profile` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol

import msgspec

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.json_file import write_json
from headway.predict.models.model_shape import ModelShape
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.law import StepTimeFit


class StepSeconds(Protocol):
    """Seconds of a step, without noise."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape, more than 0. O(1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphedStep:
    """A step law, plus the extra time of steps with more tokens than CUDA graphs hold."""

    kernels: StepSeconds
    ungraphed_s: float
    graphed_tokens: int

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        seconds = self.kernels.step_s(shape)
        return seconds + self.ungraphed_s if shape.num_tokens > self.graphed_tokens else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Costs of one model on one instance (all of its GPUs together), measured here or fitted to published times.

    `host_s`, plus `host_job_s` for each job of the step, is what the host needs before the device can start;
    asynchronous scheduling hides it behind the step before, so it is not part of `step.step_s`. `ungraphed_s` is the
    extra time of a step beyond CUDA graphs, whose kernels are launched one by one. `residuals` are measured over
    predicted seconds of held-out steps, as ascending equidistant quantiles; (1.0,) if nothing was measured. `model` is
    what policies' own models start from; None: unknown sizes. `kv_bytes` is the memory for KV on all its GPUs, 0 if
    only the number of tokens is known.
    """

    name: str
    provenance: str
    derived: bool
    step: StepSeconds
    host_s: float
    residuals: tuple[float, ...]
    to_host: TransferModel
    to_device: TransferModel
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    kv_bytes: int = 0
    host_job_s: float = 0.0
    ungraphed_s: float = 0.0
    model: ModelShape | None = None

    def step_with(self, graphed_tokens: int) -> StepSeconds:
        """The step law of an engine whose CUDA graphs hold steps of at most this many tokens, 0 without graphs."""
        if not self.ungraphed_s:
            return self.step
        return GraphedStep(kernels=self.step, ungraphed_s=self.ungraphed_s, graphed_tokens=graphed_tokens)


VERSION: Final = 1
_Count = Annotated[int, msgspec.Meta(ge=1)]


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured step, kept so that the fit can be repeated."""

    num_jobs: int
    num_tokens: int
    num_decodes: int
    decode_context_tokens: int
    prefill_context_tokens: int
    prefill_pairs: float
    seconds: float


class EngineDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine's defaults: its sizes, and, if it was measured, vLLM's other flags at the time."""

    max_num_seqs: _Count
    max_num_batched_tokens: _Count
    asynchronous: bool
    vllm_flags: tuple[str, ...] = ()


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured, on what, when, and how good the fit is.

    `model` is the name or directory that was served, `measured_on` the day as the caller writes it. `to_host` and
    `to_device` carry one block or more at a time. `graphed_tokens` is the largest step in CUDA graphs, 0 without
    graphs. `kv_blocks` are those shared by groups of layers with sliding windows; 0 if all layers keep all tokens, for
    which `kv_capacity_tokens` is given. Sizes are of one instance, all GPUs together.
    """

    format: Literal["headway-cost"] = "headway-cost"
    version: Literal[1] = VERSION
    machine: str
    model: str
    dtype: str
    vllm_version: str
    measured_on: str
    tensor_parallel: _Count = 1
    step: StepTimeFit
    host_s: Annotated[float, msgspec.Meta(ge=0)]
    to_host: TransferModel
    to_device: TransferModel
    kv_bytes_per_token: _Count
    kv_capacity_tokens: _Count
    block_size: _Count
    kv_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    graphed_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    engine: EngineDefaults | None = None
    rows: tuple[MeasuredStep, ...] = ()

    def calibration(self) -> Calibration:
        """The part that simulator and policies need."""
        errors = self.step.held_out
        return Calibration(
            name=self.machine,
            provenance=(
                f"measured on {self.machine} ({self.measured_on}, vLLM {self.vllm_version}, {self.model}, "
                f"{self.dtype}): {self.step.num_rows} steps, error on {errors.num_rows} unseen ones "
                f"{errors.median_error:.1%} median, {errors.p90_error:.1%} p90"
            ),
            derived=False,
            step=self.step.law,
            host_s=self.host_s,
            residuals=errors.residuals,
            to_host=self.to_host,
            to_device=self.to_device,
            kv_bytes_per_token=self.kv_bytes_per_token,
            kv_capacity_tokens=self.kv_capacity_tokens,
        )


def measured_step(shape: BatchShape, seconds: float) -> MeasuredStep:
    """The row of a cost file for one measured step."""
    return MeasuredStep(
        num_jobs=shape.num_jobs,
        num_tokens=shape.num_tokens,
        num_decodes=shape.num_decodes,
        decode_context_tokens=shape.decode_context_tokens,
        prefill_context_tokens=shape.prefill_context_tokens,
        prefill_pairs=shape.prefill_pairs,
        seconds=seconds,
    )


def write_cost_file(path: Path, cost: CostFile) -> None:
    """Write `cost` to `path` by one rename, so that no reader finds half of it."""
    write_json(path, cost, indent=1)


def load_cost_file(path: Path) -> CostFile:
    """Load and check a cost file.

    Raises ConfigError for one that is missing, not of this version, or with impossible numbers, such as a bandwidth of
    0.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cost file {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cost file {path} is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != "headway-cost":
        raise ConfigError(f"{path} is not a cost file; `headway profile` writes one")
    if raw.get("version") != VERSION:
        raise ConfigError(
            f"cost file {path} has version {raw.get('version')!r}; accepted: {VERSION}. Run `headway profile` again"
        )
    try:
        cost = msgspec.convert(raw, CostFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cost file {path}: {error}") from error
    unknown = _unknown(raw, msgspec.to_builtins(cost))
    if unknown:
        raise ConfigError(f"cost file {path}: unknown field {unknown!r}")
    return cost


def _unknown(raw: Mapping[str, object], known: Mapping[str, object]) -> str | None:
    """The first key of nested objects that the format lacks: dataclasses would drop it silently."""
    for key, value in raw.items():
        if key not in known:
            return key
        inner = known[key]
        if isinstance(value, dict) and isinstance(inner, dict):
            found = _unknown(value, inner)
            if found is not None:
                return f"{key}.{found}"
    return None
