"""Kernel layouts of engine versions: where they differ, where not, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.steps.attention_kernels import ATTENTION_KERNELS, DEFAULT_ATTENTION
from headway.predict.steps.hardware import calibration, catalogue, hardware
from headway.predict.steps.kernels import Heads, decode_ideal_s

MISTRAL = model_shape("mistralai/Mistral-7B-v0.1")


def step(decodes: int, prompt_tokens: int) -> BatchShape:
    """Decodes of 2,000 tokens of context beside a new prompt."""
    shape = BatchShape()
    for _ in range(decodes):
        shape.add(1, 2000)
    if prompt_tokens:
        shape.add(prompt_tokens, 0)
    return shape


def seconds(name: str, attention: str, shape: BatchShape) -> float:
    return calibration(name, MISTRAL, attention=attention).step.step_s(shape)


@pytest.mark.parametrize("apart", ["flashinfer", "vllm-v0", "sarathi-serve"])
def test_decodes_beside_a_prompt_cost_less_in_a_kernel_of_their_own(apart: str) -> None:
    mixed = step(64, 512)
    assert seconds("a100-80g", apart, mixed) < 0.8 * seconds("a100-80g", "flash-attn", mixed)


@pytest.mark.parametrize("shape", [step(64, 0), step(0, 512)])
def test_steps_of_one_kind_have_one_kernel_in_any_layout(shape: BatchShape) -> None:
    assert len({seconds("a100-80g", name, shape) for name in ATTENTION_KERNELS}) == 1


def test_a_gpu_whose_shared_kernel_costs_decodes_nothing_is_as_fast_either_way() -> None:
    assert seconds("h100", "flashinfer", step(64, 512)) == seconds("h100", "flash-attn", step(64, 512))


def test_a_decode_in_its_own_kernel_costs_as_much_beside_a_prompt_as_alone() -> None:
    attention = "vllm-v0"
    more = seconds("a100-80g", attention, step(64, 512)) - seconds("a100-80g", attention, step(32, 512))
    alone = seconds("a100-80g", attention, step(64, 0)) - seconds("a100-80g", attention, step(32, 0))
    assert more == pytest.approx(alone, rel=0.5)


def test_what_a_calibration_says_of_itself_names_the_engine_and_where_it_was_read() -> None:
    said = calibration("a100-80g", MISTRAL, attention="sarathi-serve").provenance
    assert "Sarathi-Serve: a kernel each for prompts and decodes" in said
    assert "flashinfer_attention_wrapper.py" in said
    default = ATTENTION_KERNELS[DEFAULT_ATTENTION]
    assert f"{default}" in calibration("a100-80g", MISTRAL).provenance
    assert all(row.source and row.engines for row in ATTENTION_KERNELS.values())


def test_an_engine_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError, match=r"attention is 'xformers'; accepted: flash-attn, flashinfer, vllm-v0"
    ):
        calibration("a100-80g", MISTRAL, attention="xformers")


def test_a_cost_file_is_as_it_was_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"attention is 'vllm-v0'; accepted with a cost file: as it was"):
        calibration(f"{tmp_path / 'cost.json'}", MISTRAL, attention="vllm-v0")


def test_kv_heads_beyond_the_measured_are_as_more_sequences() -> None:
    # 8 sequences of 40 KV heads are as efficient as 40 sequences of 8, which were measured.
    device = hardware("a100-80g")
    kernels = catalogue().kernels[device.kernels]

    def efficiency(sequences: int, heads: int) -> float:
        each = Heads(query=heads, kv=heads, dim=128)
        seconds = kernels.decode_s(device.peaks, each, sequences, 2048)
        return decode_ideal_s(device.peaks, each, sequences, 2048) / seconds

    assert efficiency(8, 40) == pytest.approx(efficiency(40, 8))
    assert efficiency(8, 40) > efficiency(8, 8)
