from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.predict.hardware import hardware
from headway.predict.model_shape import model_shape_of
from headway.predict.roofline import Roofline
from tests.predict.configs import DEEPSEEK_V2_LITE, DEEPSEEK_V3, LLAMA
from tests.predict.shapes import batch, decodes


def test_what_a_token_of_deepseek_v3_caches() -> None:
    # The latent and the rotated key, whatever the number of heads: (512 + 64) values a layer of two bytes.
    assert model_shape_of(DEEPSEEK_V3).kv_bytes_per_token == 61 * (512 + 64) * 2


def test_its_projections_by_hand() -> None:
    # Queries by way of 1536 (7168 x 1536, 1536 x 128 x 192), latent 7168 x 576, out of it 512 x 128 x 256,
    # and 128 x 128 x 7168 at the end.
    shape = model_shape_of(DEEPSEEK_V3)
    assert shape.attention_weights == 11_010_048 + 37_748_736 + 4_128_768 + 16_777_216 + 117_440_512


def test_a_prompt_attends_by_heads_and_a_single_token_among_latents() -> None:
    shape = model_shape_of(DEEPSEEK_V2_LITE)
    work = Roofline(shape)
    # A prompt's pair: 16 heads, a multiplication and an addition for each of 192 and 128 values.
    assert work.prefill_attention_flops(batch((2, 0))) == 27 * 3 * 16 * 2 * (192 + 128)
    # A decode's: for each of 576 and 512.
    more = work.flops(decodes(1, 100)) - work.flops(decodes(1, 0))
    assert more == pytest.approx(27 * 100 * 16 * 2 * (576 + 512))


def test_every_gpu_reads_the_whole_latent() -> None:
    shape = model_shape_of(DEEPSEEK_V2_LITE)
    for tp in (1, 8):
        work = Roofline(shape, tp)
        assert work.prefill_context_bytes(batch((16, 1000))) == 27 * 576 * 2 * 1016
    one, eight = (hardware("h100").calibrate(shape, tp) for tp in (1, 8))
    assert one.kv_bytes_per_token == 27 * 576 * 2
    assert eight.kv_bytes_per_token == 8 * one.kv_bytes_per_token
    assert "latent attention" in eight.provenance


def test_steps_take_longer_the_more_they_hold() -> None:
    step = hardware("h200").calibrate(model_shape_of(DEEPSEEK_V3), 8).step
    assert 0 < step.step_s(decodes(1, 100)) < step.step_s(decodes(64, 100)) < step.step_s(decodes(64, 8000))
    assert step.step_s(batch((512, 0))) < step.step_s(batch((4096, 0)))


def test_a_family_whose_heads_are_cached_is_not_taken_for_one_whose_latents_are() -> None:
    sizes = {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        model_shape_of(LLAMA | {"model_type": "minicpm3"} | sizes, "m")
