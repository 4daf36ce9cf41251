"""A GPU without measurements, from its data sheet: `custom:tflops=312,bandwidth=2039,memory=80`."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headway.errors import ConfigError
from headway.predict.steps.fitting import Errors
from headway.predict.steps.kernels import Peaks

if TYPE_CHECKING:
    from headway.predict.steps.hardware import Hardware

PREFIX = "custom:"


class _Entry(NamedTuple):
    """A number of a data sheet: what it is, its unit in bytes or operations a second, and what it may be."""

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
"""Bounds tell a number in another unit: no GPU has 3.35 GB/s."""
_OPTIONAL = ("host",)
ACCEPTED = "custom:tflops=X,bandwidth=GB/s,memory=GiB[,host=GB/s]"


def nearest(peaks: Peaks, measured: Iterable[Hardware]) -> Hardware:
    """The measured GPU whose peaks are nearest, in ratios."""
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
    which is the nearest GPU's unless `host` is given. Raises ConfigError naming the entry that is unknown, missing or
    out of bounds.
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
            raise ConfigError.of("hardware", f"{text!r}, in which {key!r} is {said}", ACCEPTED)
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
