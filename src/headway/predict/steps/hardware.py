"""The catalogue of GPUs, and the conversion of a hardware name into step costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import inf, log
from pathlib import Path
from typing import NamedTuple

import msgspec

from headway.errors import ConfigError, meant
from headway.predict.models.kv_groups import kv_layout_of
from headway.predict.models.model_shape import ModelShape
from headway.predict.models.parallelism import check_parallelism
from headway.predict.steps.attention_kernels import DEFAULT_ATTENTION, attention_kernels
from headway.predict.steps.calibration import Calibration, load_cost_file
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.device_step import DeviceStep, Gpu
from headway.predict.steps.fitting import Errors
from headway.predict.steps.kernels import AllReduce, Kernels, Peaks
from headway.written_path import written_path

LOCAL = "local"
"""Name for this machine, which requires a cost file."""
GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default share of a GPU's memory."""
RESERVE_BYTES = 1_500_000_000
"""Activations, graphs and context on each GPU: the gap between weights, KV cache and vLLM's share on the four
single-GPU servers whose KV cache is published (0.7 to 1.7 GB).
"""
HOST_COPY_SHARE = 0.8
"""Share of the host link's rate that copies reach, each way; assumed, since no table of copies is published.
`headway profile` measures it.
"""
GPU_BLOCK_TOKENS = 16
"""vLLM's default tokens of a KV block on GPUs."""
_IN_FLIGHT_TOKENS = 2 * 8192
"""Tokens of two steps of vLLM's default size."""
_LONG_CONTEXT = 131072
"""Context of a model with sliding windows that does not state how long a request may be."""
_CATALOGUE = "hardware.json"


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU type: its data sheet, the kernels it uses, and how well these are known.

    `kernels` and `all_reduce` name rows of the catalogue. `errors` are of whole steps on held-out rows; None for a GPU
    that was not measured, which uses the residuals of the one it is derived from.
    """

    name: str
    title: str
    memory_bytes: int
    peaks: Peaks
    host_bytes_per_s: float
    host_start_s: float
    kernels: str
    all_reduce: str
    link_ratio: float
    step_overhead_s: float
    ungraphed_s: float
    host_s: float
    host_job_s: float
    sampler_s: float
    sampler_job_s: float
    sources: str
    derived_from: str | None = None
    ratios: str = ""
    num_rows: int = 0
    errors: Errors | None = None

    def provenance(self) -> str:
        """The source of the numbers, in one sentence for a table's foot."""
        if self.errors is None:
            return f"{self.title}: derived from {self.derived_from} by {self.ratios}; {self.sources}"
        return (
            f"{self.title}: fitted to {self.num_rows} measured kernels ({self.sources}); whole steps on "
            f"{self.errors.num_rows} unseen rows: error {self.errors.median_error:.1%} median, "
            f"{self.errors.p90_error:.1%} p90"
        )

    def calibrate(
        self,
        model: ModelShape,
        tp: int = 1,
        stages: int = 1,
        *,
        gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION,
        attention: str = DEFAULT_ATTENTION,
    ) -> Calibration:
        """Costs of `model` on an instance of `tp` of these GPUs, for each pipeline stage.

        `attention` names the engine version whose kernel layout is used; the kernels are the measured ones. A step's
        time is that of all its stages in sequence. Transfers are of a whole instance: its GPUs copy their shares side
        by side, each stage its own layers. Raises ConfigError for a model that leaves no memory for a KV cache, and for
        an unknown `attention`.
        """
        gpus, layout = tp * stages, attention_kernels(attention)
        kv_bytes = self._kv_bytes(model, tp, stages, gpu_memory_utilization)
        shipped = catalogue()
        step = DeviceStep(
            Gpu(
                peaks=self.peaks,
                kernels=shipped.kernels[self.kernels].launched(layout),
                all_reduce=shipped.all_reduce[self.all_reduce],
                link_ratio=self.link_ratio,
                step_overhead_s=self.step_overhead_s,
                sampler_s=self.sampler_s,
                sampler_job_s=self.sampler_job_s,
            ),
            model,
            tp,
        )
        copies = TransferModel(start_s=self.host_start_s, bytes_per_s=gpus * self.host_bytes_per_s)
        return Calibration(
            name=self.name if gpus == 1 else f"{gpus} x {self.name}",
            provenance=f"{self.provenance()}; attention as in {layout}{_not_measured(model)}",
            derived=self.derived_from is not None,
            step=step,
            ungraphed_s=self.ungraphed_s,
            host_s=self.host_s,
            host_job_s=self.host_job_s,
            model=model,
            residuals=self._residuals(),
            to_host=copies,
            to_device=copies,
            kv_bytes_per_token=tp * model.gpu_kv_bytes_per_token(tp),
            kv_capacity_tokens=_capacity_tokens(model, tp, kv_bytes),
            kv_bytes=kv_bytes,
        )

    def _kv_bytes(self, model: ModelShape, tp: int, stages: int, utilization: float) -> int:
        """Memory for KV on all GPUs. Raises ConfigError if the model leaves none, or cannot be split so."""
        check_parallelism(model, tp, stages)
        if not 0 < utilization <= 1:
            raise ConfigError(f"the share of GPU memory must lie in (0, 1]; found {utilization}")
        gpus = tp * stages
        usable = int(gpus * (self.memory_bytes * utilization - RESERVE_BYTES) - model.weight_bytes)
        if usable < tp * model.gpu_kv_bytes_per_token(tp):
            raise ConfigError(
                f"{model.name} ({model.weight_bytes / 1e9:.0f} GB of weights) does not fit {gpus} x {self.name} "
                f"({self.memory_bytes / 1e9:.0f} GB each); more GPUs an instance or a larger one are accepted"
            )
        return usable

    def _residuals(self) -> tuple[float, ...]:
        if self.errors is not None:
            return self.errors.residuals
        return hardware(self.derived_from)._residuals() if self.derived_from else (1.0,)


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shipped file: fitted numbers only, as `bench/simulator/fit_hardware.py` writes it.

    `data_sheet_errors` are of the measured GPUs, each predicted from its data sheet and the nearest other's kernels.
    """

    version: int = 1
    kernels: dict[str, Kernels]
    all_reduce: dict[str, AllReduce]
    hardware: dict[str, Hardware]
    data_sheet_errors: Errors

    def measured(self) -> list[Hardware]:
        """The GPUs whose kernels were measured."""
        return [device for device in self.hardware.values() if device.derived_from is None]


@cache
def catalogue() -> Catalogue:
    """The shipped catalogue, read once."""
    text = files(__package__).joinpath(_CATALOGUE).read_bytes()
    return msgspec.json.decode(text, type=Catalogue)


def hardware_names() -> tuple[str, ...]:
    """Names of the catalogue, in order."""
    return tuple(catalogue().hardware)


def hardware(name: str) -> Hardware:
    """A GPU type by name, or by its data sheet; case does not matter. Raises ConfigError with the accepted names."""
    if name.lower().startswith(PREFIX):
        return from_data_sheet(
            name.lower(), catalogue().measured(), catalogue().data_sheet_errors, HOST_COPY_SHARE
        )
    found = catalogue().hardware.get(name.lower())
    if found is None:
        names = hardware_names()
        accepted = f"{', '.join(names)}, a data sheet ({ACCEPTED}), or a cost file of `headway profile`"
        raise ConfigError(f"unknown hardware {name!r}; {meant(name, names, accepted)}")
    return found


def is_cost_file(name: str) -> bool:
    """Whether a hardware name means a file: it ends in `.json`, or exists and is no GPU's name."""
    path = written_path(name)
    return path.suffix == ".json" or (name.lower() not in catalogue().hardware and path.is_file())


def calibration(
    name: str, model: ModelShape, tp: int = 1, stages: int = 1, *, attention: str = DEFAULT_ATTENTION
) -> Calibration:
    """Costs of `model` on `name`: GPUs of the catalogue, or a cost file of this very model.

    Raises ConfigError for `local` without a file, for a file of another model, number of GPUs or `attention`, and as
    `Hardware.calibrate` does.
    """
    if is_cost_file(name):
        if attention != DEFAULT_ATTENTION:
            raise ConfigError.of("attention", f"{attention!r}; accepted with a cost file: as it was measured")
        if stages > 1:
            raise ConfigError.of("pp", f"{stages}; accepted with a cost file: 1, as it was measured")
        return _from_file(written_path(name), model, tp)
    if name.lower() == LOCAL:
        raise ConfigError(
            "this machine has not been measured; run `headway profile --model MODEL --out FILE` and give FILE "
            "as the hardware"
        )
    return hardware(name).calibrate(model, tp, stages, attention=attention)


def _from_file(path: Path, model: ModelShape, tp: int) -> Calibration:
    cost = load_cost_file(path)
    if _last_part(cost.model) != _last_part(model.name) or cost.tensor_parallel != tp:
        raise ConfigError(
            f"cost file {path} was measured with {cost.model} on {cost.tensor_parallel} GPU(s); found "
            f"{model.name} on {tp}. Run `headway profile` with this model"
        )
    return replace(cost.calibration(), model=model)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _not_measured(model: ModelShape) -> str:
    """Features of a model that the catalogue's kernels were not measured with, so that their cost follows from
    sizes.
    """
    said = ""
    if model.quantized:
        said += "; quantised weights are read as small as they are and multiplied as fast as 16 bits: not measured"
    if model.latent:
        said += "; latent attention is taken as heads of its sizes: not measured"
    return said


def _capacity_tokens(model: ModelShape, tp: int, kv_bytes: int) -> int:
    """Tokens of KV that this memory holds; with sliding windows, in requests of context length."""
    if not model.windowed:
        return kv_bytes // (tp * model.gpu_kv_bytes_per_token(tp))
    layout = kv_layout_of(model, tp, GPU_BLOCK_TOKENS)
    context = model.context_tokens or _LONG_CONTEXT
    return layout.capacity_tokens(kv_bytes // layout.block_bytes, context, _IN_FLIGHT_TOKENS)


# ---- a GPU without measurements, from its data sheet: `custom:tflops=312,bandwidth=2039,memory=80` ----

PREFIX = "custom:"


class _Entry(NamedTuple):
    """A number of a data sheet: its meaning, its unit in bytes or operations a second, and its bounds."""

    unit: float
    least: float
    most: float
    accepted: str


_SHEET = {
    "tflops": _Entry(1e12, 10, 20_000, "dense 16-bit TFLOP/s, 10 to 20000"),
    "bandwidth": _Entry(1e9, 100, 50_000, "GB/s of the GPU's memory, 100 to 50000"),
    "memory": _Entry(2**30, 4, 2048, "GiB, 4 to 2048"),
    "host": _Entry(1e9, 4, 2000, "GB/s each way to host memory, 4 to 2000"),
}
"""The bounds detect numbers in another unit: no GPU has 3.35 GB/s."""
_OPTIONAL = ("host",)
ACCEPTED = "custom:tflops=X,bandwidth=GB/s,memory=GiB[,host=GB/s]"


def nearest(peaks: Peaks, measured: Iterable[Hardware]) -> Hardware:
    """The measured GPU whose peaks are nearest, by ratios."""
    return min(
        measured,
        key=lambda device: (
            log(device.peaks.flops_per_s / peaks.flops_per_s) ** 2
            + log(device.peaks.bytes_per_s / peaks.bytes_per_s) ** 2
        ),
    )


def from_data_sheet(text: str, measured: Iterable[Hardware], errors: Errors, host_share: float) -> Hardware:
    """The GPU that `text` describes, with the kernels, collectives and overheads of the nearest measured one.

    `errors` are of measured GPUs predicted in this way; `host_share` is the share of the host link that copies reach,
    the nearest GPU's unless `host` is given. Raises ConfigError naming the entry that is unknown, missing or out of
    bounds.
    """
    sheet = _entries(text)
    tflops, bandwidth, memory = (sheet[key] * _SHEET[key].unit for key in ("tflops", "bandwidth", "memory"))
    peaks = Peaks(flops_per_s=tflops, bytes_per_s=bandwidth)
    like = nearest(peaks, measured)
    host_bytes_per_s = like.host_bytes_per_s
    if "host" in sheet:
        host_bytes_per_s = host_share * sheet["host"] * _SHEET["host"].unit
    return msgspec.structs.replace(
        like,
        name=text,
        title=f"custom GPU ({sheet['tflops']:g} TFLOP/s, {sheet['bandwidth']:g} GB/s, {sheet['memory']:g} GiB)",
        memory_bytes=int(memory),
        peaks=peaks,
        host_bytes_per_s=host_bytes_per_s,
        derived_from=like.name,
        ratios=(
            f"its data sheet, {like.title} being nearest; measured GPUs predicted so, each by another's kernels: "
            f"whole steps on {errors.num_rows:,} unseen rows, error {errors.median_error:.1%} median, "
            f"{errors.p90_error:.0%} p90"
        ),
        num_rows=0,
        errors=None,
    )


def _entries(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in text[len(PREFIX) :].split(","):
        key, _, value = part.partition("=")
        if key not in _SHEET or key in found:
            said = "given twice" if key in found else "unknown"
            raise ConfigError.of(
                "hardware", f"{text!r}, in which {key!r} is {said}; {meant(key, _SHEET, ACCEPTED)}"
            )
        try:
            number = float(value)
        except ValueError:
            number = inf
        entry = _SHEET[key]
        if not entry.least <= number <= entry.most:
            raise ConfigError.of("hardware", f"{text!r}, in which {key} is {value!r}", entry.accepted)
        found[key] = number
    if missing := [key for key in _SHEET if key not in found and key not in _OPTIONAL]:
        raise ConfigError.of("hardware", f"{text!r}, which lacks {missing[0]!r}", ACCEPTED)
    return found
