from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from headway.core.batch_shape import BatchShape
from headway.predict.models.known_models import model_shape
from headway.predict.models.roofline import Roofline
from tests.predict.shapes import batch, batches, decodes
from tests.strategies import UNTIMED

LLAMA = model_shape("Llama-3.1-8B")
A100_FLOPS, A100_BYTES = 312e12, 2.039e12


@pytest.mark.parametrize(("shape", "compute_ms", "memory_ms"), [
    (batch((2048, 0)), 95.2, 12.6),
    (decodes(64, 1023), 3.2, 11.7),
    (batch((512, 512), *[(1, 1023)] * 64), 26.8, 13.1),
])  # fmt: skip
def test_the_sanity_numbers_of_the_specification(
    shape: BatchShape, compute_ms: float, memory_ms: float
) -> None:
    # Llama-3.1-8B: 6.979 G weights in layers, 0.525 G in the head. A prompt of 2048:
    # 2 x 2048 x 6.979 G + 32 x 4 x 4096 x (2048 x 2049 / 2) + 2 x 0.525 G = 28.59 + 1.10 + 0.00 = 29.69 TFLOP,
    # 95.2 ms at 312 TFLOP/s.
    roofline = Roofline(LLAMA)
    assert roofline.of(shape).flops / A100_FLOPS * 1e3 == pytest.approx(compute_ms, abs=0.05)
    assert roofline.of(shape).bytes / A100_BYTES * 1e3 == pytest.approx(memory_ms, abs=0.05)


def test_one_decode_by_hand() -> None:
    # 2 x (6,979,321,856 + 525,336,576) multiplications and additions, 4 x 4096 a layer and key for 10 keys.
    flops = 2 * (6_979_321_856 + 525_336_576) + 32 * 4 * 4096 * 10
    assert Roofline(LLAMA).of(decodes(1, 9)).flops == flops


def test_tensor_parallelism_divides_the_work() -> None:
    shape = batch((700, 300), (1, 50))
    assert Roofline(LLAMA, 4).of(shape).flops == pytest.approx(Roofline(LLAMA).of(shape).flops / 4)
    # Hidden-wide activations stay whole, so less than a quarter is saved.
    assert 0.25 < Roofline(LLAMA, 4).of(shape).bytes / Roofline(LLAMA).of(shape).bytes < 0.35


def test_a_gpu_holds_at_least_one_kv_head() -> None:
    shape = decodes(256, 8000)
    assert Roofline(LLAMA, 16).of(shape).bytes > Roofline(LLAMA, 8).of(shape).bytes / 2 * 1.5


def test_grouped_queries_read_less_cache() -> None:
    many = replace(LLAMA, num_kv_heads=32)
    shape = decodes(64, 4000)
    extra = Roofline(many).of(shape).bytes - Roofline(LLAMA).of(shape).bytes
    assert extra == pytest.approx(32 * 64 * 4001 * 2 * 24 * 128 * 2, rel=0.03)


def test_experts_are_read_as_tokens_choose_them() -> None:
    # Of 8 experts 2 are chosen: one token reads a quarter of them, many tokens all.
    mixtral = model_shape("mixtral-8x7b-v0.1")
    roofline = Roofline(mixtral)
    one, many = (roofline.of(decodes(count, 0)).bytes for count in (1, 64))
    experts = 32 * 8 * mixtral.expert_weights * 2
    assert many - one == pytest.approx(0.75 * experts, rel=0.01)


@UNTIMED
@given(shape=batches)
def test_more_work_is_more(shape: BatchShape) -> None:
    roofline = Roofline(LLAMA)
    more = replace(shape)
    more.add(5, 100)
    assert roofline.of(more).flops > roofline.of(shape).flops > 0
    assert roofline.of(more).bytes > roofline.of(shape).bytes > 0


def test_prefill_attention_is_what_prompts_add_beyond_their_tokens() -> None:
    work = Roofline(LLAMA)
    together, apart = batch((1024, 0)), batch(*[(512, 0)] * 2)
    # The same 1024 tokens; one sequence more has one more row of the LM head.
    head = 2 * LLAMA.hidden_size * LLAMA.vocab_size
    more = work.of(together).prefill_attention_flops - work.of(apart).prefill_attention_flops
    assert work.of(together).flops - work.of(apart).flops == pytest.approx(more - head)
    assert work.of(decodes(4, 1000)).prefill_attention_flops == 0
