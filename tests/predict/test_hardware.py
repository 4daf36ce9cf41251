from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.models.roofline import Roofline
from headway.predict.steps.hardware import calibration, catalogue, hardware, hardware_names, is_cost_file
from headway.predict.steps.kernels import (
    AllReduce,
    Heads,
    Peaks,
    decode_ideal_s,
    gemm_ideal_s,
    prefill_ideal_s,
)
from tests.predict.shapes import batch, batches, decodes
from tests.strategies import UNTIMED

LLAMA = model_shape("Llama-3.1-8B")
MEASURED = {"a100-80g", "h100", "h200", "b200", "l40s", "rtx-4090", "rtx-pro-6000"}
DERIVED = {
    "a100-40g": "a100-80g",
    "a800-80g": "a100-80g",
    "a800-80g-pcie": "a100-80g",
    "v100-32g": "a100-80g",
}
LAWS = {name: calibration(name, LLAMA).step for name in ("a100-80g", "h100", "rtx-pro-6000")}


def test_the_catalogue_holds_what_the_papers_and_the_field_use() -> None:
    assert set(hardware_names()) == MEASURED | set(DERIVED)


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_measured_entry_says_on_what_and_how_well(name: str) -> None:
    found = hardware(name)
    assert found.errors is not None
    assert found.errors.num_rows >= 100
    assert found.errors.median_error <= 0.05
    assert found.derived_from is None
    assert f"{found.errors.median_error:.1%} median" in found.provenance()


@pytest.mark.parametrize(("name", "source"), sorted(DERIVED.items()))
def test_a_derived_entry_says_so_and_from_what(name: str, source: str) -> None:
    found = calibration(name, LLAMA)
    assert found.derived
    assert f"derived from {source}" in found.provenance
    assert found.residuals == calibration(source, LLAMA).residuals
    assert not calibration(source, LLAMA).derived


@pytest.mark.parametrize("name", sorted(MEASURED | set(DERIVED)))
def test_an_entry_calibrates_what_fits_and_refuses_what_does_not(name: str) -> None:
    found = calibration(name, LLAMA)
    assert found.kv_capacity_tokens > 1000
    assert found.model == LLAMA
    assert found.residuals == tuple(sorted(found.residuals))
    assert found.step.step_s(decodes(1, 100)) > 0
    with pytest.raises(ConfigError, match="does not fit"):
        calibration(name, model_shape("opt-175b"))
    assert calibration(name, model_shape("opt-175b"), 32).kv_capacity_tokens > 0


def test_kv_capacity_by_hand() -> None:
    # An A100 of 80 GiB: 0.92 x 85,899,345,920 - 1,500,000,000 reserved - 16,059,990,016 of weights
    # = 61,467,408,230 bytes, at 131,072 a token: 468,959.
    assert calibration("a100-80g", LLAMA).kv_capacity_tokens == 468_959


def test_memory_is_what_devices_report_though_their_names_say_gb() -> None:
    found = {name: hardware(name).memory_bytes / 2**30 for name in ("h100", "h200", "rtx-pro-6000")}
    assert found == pytest.approx({"h100": 80, "h200": 141, "rtx-pro-6000": 95.6}, rel=0.001)


def test_each_stage_brings_its_gpus_memory_and_links_and_the_weights_are_there_once() -> None:
    one, two = calibration("a100-80g", LLAMA, 2), calibration("a100-80g", LLAMA, 2, stages=2)
    # Two GPUs more: 2 x (0.92 x 85,899,345,920 - 1,500,000,000) bytes at 131,072 a token.
    assert two.kv_capacity_tokens - one.kv_capacity_tokens == pytest.approx(1_182_974, abs=1)
    assert two.to_host.bytes_per_s == 2 * one.to_host.bytes_per_s == 4 * 25.6e9
    assert two.step.step_s(decodes(4, 100)) == one.step.step_s(decodes(4, 100))
    assert (one.name, two.name) == ("2 x a100-80g", "4 x a100-80g")


def test_a_model_may_need_several_stages() -> None:
    gpt = model_shape("gpt-175b")
    with pytest.raises(ConfigError, match=r"does not fit 8 x a100-40g"):
        calibration("a100-40g", gpt, 8)
    assert calibration("a100-40g", gpt, 8, stages=2).kv_capacity_tokens > 50_000


def test_kv_heads_are_held_twice_beyond_their_number() -> None:
    assert calibration("h100", LLAMA, 16).kv_bytes_per_token == 2 * LLAMA.kv_bytes_per_token
    assert calibration("h100", LLAMA, 8).kv_bytes_per_token == LLAMA.kv_bytes_per_token


@pytest.mark.parametrize("tp", [0, 3, -1])
def test_gpus_that_do_not_divide_the_heads_are_refused(tp: int) -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        calibration("h100", LLAMA, tp)


def test_gpus_that_do_not_share_the_kv_heads_evenly_are_refused() -> None:
    # As Phi-4: each of 4 GPUs would hold two and a half of its 10 KV heads.
    phi = replace(LLAMA, num_heads=40, num_kv_heads=10, vocab_size=102_400, intermediate_size=17920)
    with pytest.raises(ConfigError, match="tensor parallelism 4 does not share the 10 KV heads"):
        calibration("h100", phi, 4)
    for tp in (1, 2, 5, 10, 20):
        assert calibration("h100", phi, tp).kv_capacity_tokens > 0


def test_a_share_of_memory_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ConfigError, match="share"):
        hardware("h100").calibrate(LLAMA, gpu_memory_utilization=1.5)


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("tpu", "~no-such-user"):
        with pytest.raises(ConfigError, match=rf"{name}.*a100-80g.*cost file"):
            calibration(name, LLAMA)


def test_published_servers_are_met() -> None:
    # Lone requests of vLLM 0.11 on an H100 (no asynchronous scheduling, so the host's part is added):
    # CodeLlama-34b decodes a token in 26.05 ms at 3000 of context, Llama-2-7b in 6.66 ms at 1700.
    for name, context, measured_s in (("codellama-34b", 3000, 0.02605), ("llama-2-7b", 1700, 0.00666)):
        found = calibration("h100", model_shape(name))
        predicted = found.step.step_s(decodes(1, context)) + found.host_s + found.host_job_s
        assert predicted == pytest.approx(measured_s, rel=0.05)


def test_a_newer_gpu_is_faster() -> None:
    for shape in (decodes(32, 1000), batch((2048, 0))):
        times = [
            calibration(name, LLAMA).step.step_s(shape) for name in ("v100-32g", "a100-80g", "h100", "b200")
        ]
        assert times == sorted(times, reverse=True)


def test_more_gpus_are_faster_but_not_by_their_number() -> None:
    one, four = (calibration("h100", LLAMA, tp).step.step_s(batch((4096, 0))) for tp in (1, 4))
    assert one / 4 < four < one


def test_a_slower_link_costs() -> None:
    large, shape = model_shape("Llama-2-70b"), batch((4096, 0))
    a800, a100 = (calibration(name, large, 4).step.step_s(shape) for name in ("a800-80g", "a100-80g"))
    assert a800 > a100


def test_a_step_beyond_cuda_graphs_is_launched_kernel_by_kernel() -> None:
    shape = batch((300, 0))
    h100, a100 = calibration("h100", LLAMA), calibration("a100-40g", LLAMA)
    kernels_s = h100.step.step_s(shape)
    assert [h100.step_with(graphed).step_s(shape) for graphed in (512, 300, 299, 0)] == pytest.approx(
        [kernels_s, kernels_s, kernels_s + 0.006, kernels_s + 0.006]
    )
    # What that takes on other devices nobody has measured.
    assert a100.step_with(0).step_s(shape) == a100.step.step_s(shape)


@pytest.mark.parametrize("name", ["mixtral-8x7b-v0.1", "qwen3-30b-a3b"])
def test_experts_cost_between_their_active_part_and_all(name: str) -> None:
    model = model_shape(name)
    step = calibration("h200", model).step
    peaks = hardware("h200").peaks
    one, many = step.step_s(decodes(1, 100)), step.step_s(decodes(64, 100))
    assert many > 1.5 * one
    assert many > Roofline(model).of(decodes(64, 100)).bytes / peaks.bytes_per_s


@pytest.mark.parametrize("name", sorted(LAWS))
def test_no_step_beats_the_data_sheet(name: str) -> None:
    peaks, roofline = hardware(name).peaks, Roofline(LLAMA)
    for shape in (decodes(1, 100), decodes(256, 500), batch((8192, 0)), batch((512, 4000), (1, 900))):
        bound = max(
            roofline.of(shape).bytes / peaks.bytes_per_s, roofline.of(shape).flops / peaks.flops_per_s
        )
        assert LAWS[name].step_s(shape) > 0.95 * bound


@UNTIMED
@given(name=st.sampled_from(sorted(LAWS)), shape=batches)
def test_every_step_takes_time(name: str, shape: BatchShape) -> None:
    assert LAWS[name].step_s(shape) > 0


@UNTIMED
@given(
    name=st.sampled_from(sorted(LAWS)),
    count=st.integers(1, 256),
    context=st.integers(1, 30_000),
    longer=st.integers(1, 5_000),
)
def test_longer_contexts_never_decode_faster(name: str, count: int, context: int, longer: int) -> None:
    law = LAWS[name]
    assert law.step_s(decodes(count, context + longer)) >= law.step_s(decodes(count, context))


@UNTIMED
@given(name=st.sampled_from(sorted(LAWS)), tokens=st.integers(2, 8000), more=st.integers(1, 2000))
def test_longer_prompts_never_prefill_faster(name: str, tokens: int, more: int) -> None:
    law = LAWS[name]
    # Attention's surface may dip by a little where another tile is chosen; products hide it.
    assert law.step_s(batch((tokens + more, 0))) >= 0.99 * law.step_s(batch((tokens, 0)))


PEAKS = Peaks(flops_per_s=1e12, bytes_per_s=1e9)


def test_ideal_times_by_hand() -> None:
    # 1 x 1000 x 500: 2 x (500 + 500,000 + 1000) bytes at 1 GB/s = 1.003 ms, 1 MFLOP in 1 us; start 2 us.
    assert gemm_ideal_s(PEAKS, 1, 1000, 500) == pytest.approx(2e-6 + 1.003e-3)
    # 2 sequences of 10 keys, 4 KV heads of 8: 2 x 8 x 2 x 2 x (4 x 10 + 16) = 3584 bytes; start 5 us.
    heads = Heads(query=16, kv=4, dim=8)
    assert decode_ideal_s(PEAKS, heads, 2, 10) == pytest.approx(5e-6 + 3.584e-6)
    # 100 pairs: 4 x 8 x 16 x 100 = 51,200 FLOP; 2 x 8 x 2 x (16 x 10 + 4 x 10) = 6400 bytes.
    assert prefill_ideal_s(PEAKS, heads, 10, 100, 10) == pytest.approx(5e-6 + 5.12e-8 + 6.4e-6)


def test_a_collective_by_hand() -> None:
    # 1 us at 1 KiB, 4 us at 1 MiB; a link of half the speed doubles what exceeds the start; 16 of 4 MiB: 4 x.
    law = AllReduce(
        measured_on="x", log2_bytes=(10.0, 20.0), log2_seconds={2: (-20.0, -18.0), 4: (-19.0, -17.0)}
    )
    start = 2.0**-20
    assert law.seconds(1, 1e6) == 0.0
    assert law.seconds(2, 1024) == pytest.approx(start)
    assert law.seconds(2, 2**20) == pytest.approx(4 * start)
    assert law.seconds(2, 2**20, link_ratio=2.0) == pytest.approx(7 * start)
    assert law.seconds(2, 2**22) == pytest.approx(16 * start)
    assert law.seconds(8, 1024) == law.seconds(4, 1024) == law.seconds(3, 1024) == pytest.approx(2 * start)


def test_decodes_beside_prompts_cost_more_where_they_share_a_kernel() -> None:
    mixed = batch((16, 0), *[(1, 8000)] * 32)
    apart = {name: law.step_s(decodes(32, 8000)) for name, law in LAWS.items()}
    assert LAWS["rtx-pro-6000"].step_s(mixed) > 1.2 * apart["rtx-pro-6000"]
    assert LAWS["h100"].step_s(mixed) < 1.2 * apart["h100"]


@pytest.mark.parametrize("name", sorted(MEASURED | set(DERIVED)))
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "opt-13b"])
def test_a_prompt_beside_decodes_never_makes_them_faster(name: str, model: str) -> None:
    # Where decodes share the kernel of prompts. With one KV head for each query head its assumed tile beat reading the
    # cache, so that every step with a few prompt tokens was faster than one without (35 ms in place of 44).
    try:
        law = calibration(name, model_shape(model)).step
    except ConfigError:
        pytest.skip(f"{model} does not fit")
    for count in (1, 20, 60, 200):
        for context in (100, 1000, 2000):
            alone, beside = decodes(count, context), decodes(count, context)
            beside.add(2, 0)
            assert law.step_s(beside) >= law.step_s(alone)


def test_a_chunk_waits_for_its_longest_tile() -> None:
    # 16 tokens after 30,000: hardly any work, yet its tile reads 30,000 keys in each of 32 layers.
    law = LAWS["h100"]
    assert law.step_s(batch((16, 30_000))) - law.step_s(batch((16, 0))) > 32 * 30_000 * 6e-9


def test_a_quantised_cache_holds_more() -> None:
    small = replace(LLAMA, kv_bytes_per_value=1)
    assert calibration("h100", small).kv_capacity_tokens == pytest.approx(
        2 * calibration("h100", LLAMA).kv_capacity_tokens, abs=2
    )


@pytest.mark.parametrize("name", ["h100", "a100-80g"])
@pytest.mark.parametrize("new", [1024, 8192])
def test_past_the_longest_measured_prompt_a_pair_costs_the_same(name: str, new: int) -> None:
    # As many tiles of queries, each with more keys. Measured chunks of an RTX PRO 6000 need 0.061 and 0.060 ns a pair
    # after 16,384 tokens, with 1,024 new ones and with 2,048.
    def more_s(past: int) -> float:
        return LAWS[name].step_s(batch((new, 2 * past))) - LAWS[name].step_s(batch((new, past)))

    assert more_s(60_000) == pytest.approx(2 * more_s(30_000), rel=0.02)


def test_a_file_that_is_called_like_a_gpu_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("h100", "measured"):
        (tmp_path / name).touch()
    assert not is_cost_file("h100")
    assert not is_cost_file("H100")
    assert is_cost_file("./h100")
    assert is_cost_file("measured")
    assert is_cost_file("missing.json")
    assert not is_cost_file("missing")


A100_LONE_DECODES_US = {
    (8, 8): {512: 20.5, 2048: 60.3, 8192: 204.5, 32768: 777.1},
    (16, 4): {512: 20.6, 2048: 60.8, 8192: 205.7, 32768: 815.6},
    (16, 8): {512: 33.0, 2048: 101.1, 8192: 378.1, 32768: 1579.1},
    (128, 8): {512: 187.7, 2048: 625.2, 8192: 2678.5},
}
"""(sequences, heads) -> context -> microseconds of one layer's decode attention on an A100 under vLLM 0.14, each query
head with a KV head of its own. Rows of aiconfigurator's table that the fit has not seen: it has one and two heads."""


@pytest.mark.parametrize("shape", sorted(A100_LONE_DECODES_US))
def test_decodes_of_heads_that_share_no_kv_take_what_they_took(shape: tuple[int, int]) -> None:
    sequences, heads = shape
    kernels, peaks = catalogue().kernels["a100"], hardware("a100-80g").peaks
    for context, measured_us in A100_LONE_DECODES_US[shape].items():
        found_s = kernels.decode_s(peaks, Heads(query=heads, kv=heads, dim=128), sequences, context)
        assert 1e6 * found_s == pytest.approx(measured_us, rel=0.1)


def test_heads_that_share_no_kv_are_as_many_sequences_more() -> None:
    kernels, peaks = catalogue().kernels["a100"], hardware("a100-80g").peaks

    def decode_s(sequences: int, heads: int, kv_heads: int) -> float:
        return kernels.decode_s(peaks, Heads(query=heads, kv=kv_heads, dim=128), sequences, 2048)

    assert decode_s(8, 40, 40) == pytest.approx(decode_s(40, 8, 8))
    # Keys that heads share are read once, and split over idle processors.
    assert decode_s(8, 40, 8) < decode_s(8, 40, 40)
