from __future__ import annotations

import pytest

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration, catalogue, hardware, nearest
from headway.predict.steps.kernels import Peaks

LLAMA = model_shape("Llama-3.1-8B")
SHEET = "custom:tflops=312,bandwidth=2039,memory=80"
DECODES = BatchShape(num_jobs=8, num_tokens=8, num_decodes=8, decode_context_tokens=8000)


def test_a_sheet_of_a_measured_gpu_is_that_gpu_with_another_provenance() -> None:
    custom, known = calibration(SHEET, LLAMA), calibration("a100-80g", LLAMA)
    assert custom.step.step_s(DECODES) == known.step.step_s(DECODES)
    assert custom.kv_capacity_tokens == known.kv_capacity_tokens
    assert custom.residuals == known.residuals
    assert custom.derived
    assert not known.derived


def test_twice_the_bandwidth_and_memory_count() -> None:
    wide = calibration("custom:bandwidth=4078,memory=160,TFLOPS=312,host=64", LLAMA)
    plain = calibration(SHEET, LLAMA)
    assert wide.step.step_s(DECODES) < plain.step.step_s(DECODES)
    assert wide.kv_capacity_tokens > 2 * plain.kv_capacity_tokens
    assert wide.to_host.bytes_per_s == 2 * plain.to_host.bytes_per_s


def test_what_is_said_is_how_far_measured_gpus_are_off_when_predicted_so() -> None:
    errors = catalogue().data_sheet_errors
    assert errors.num_rows == sum(
        device.errors.num_rows for device in catalogue().measured() if device.errors
    )
    assert 0.03 < errors.median_error < errors.p90_error < 0.5
    said = calibration(SHEET, LLAMA).provenance
    assert said.startswith(
        "custom GPU (312 TFLOP/s, 2039 GB/s, 80 GiB): derived from a100-80g by its data sheet"
    )
    assert f"error {errors.median_error:.1%} median, {errors.p90_error:.0%} p90" in said


@pytest.mark.parametrize(
    ("flops_per_s", "bytes_per_s", "like"),
    [(989e12, 4000e9, "h100"), (989e12, 4100e9, "h200"), (2500e12, 8000e9, "b200"), (300e12, 864e9, "l40s")],
)
def test_the_nearest_gpu_is_nearest_in_ratios(flops_per_s: float, bytes_per_s: float, like: str) -> None:
    peaks = Peaks(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s)
    assert nearest(peaks, catalogue().measured()).name == like


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("custom:", "in which '' is unknown; accepted: custom:tflops=X"),
        ("custom:tflops=312,bandwidth=2039", "which lacks 'memory'; accepted: custom:tflops=X"),
        ("custom:tflops=312,bandwidth=2039,memory=80,cores=5", "in which 'cores' is unknown"),
        ("custom:tflops=312,tflops=312,bandwidth=2039,memory=80", "in which 'tflops' is given twice"),
        (
            "custom:tflops=312,bandwidth=2.039,memory=80",
            "bandwidth is '2.039'; accepted: GB/s of the GPU's memory",
        ),
        ("custom:tflops=0.312,bandwidth=2039,memory=80", "tflops is '0.312'; accepted: dense 16-bit TFLOP/s"),
        ("custom:tflops=312,bandwidth=2039,memory=80e9", "memory is '80e9'; accepted: GiB, 4 to 2048"),
        ("custom:tflops=many,bandwidth=2039,memory=80", "tflops is 'many'; accepted: dense"),
        ("custom:tflops=nan,bandwidth=2039,memory=80", "tflops is 'nan'; accepted: dense"),
    ],
)
def test_what_is_no_data_sheet_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hardware(text)
    assert says in str(caught.value)
    assert caught.value.setting == "hardware"
