from __future__ import annotations

import pytest

from bench.simulator.e2e_runs import (
    INDIRECT_LINK_RATIO,
    PublishedRun,
    SlowerPrompts,
    Timeline,
    device_of,
    figures,
    frontend_s,
    hit_rate,
    is_asynchronous,
    relative_errors,
    system_of,
    trace_requests,
    variants_of,
)
from headway.core.batch_shape import BatchShape

SETTINGS = {
    "gpu": "RTX PRO 6000 96GB",
    "model": "Qwen/Qwen3-32B",
    "n_gpus": "2",
    "vllm_version": "0.19.0",
    "max_num_batched_tokens": "2048",
    "max_num_seqs": "128",
    "kv_cache_tokens": "1600",
    "prefix_caching": "",
    "shared_prefix_tokens": "1024",
}
ROW = {
    "req": "a",
    "arrival_s": "0.5",
    "input_tokens": "1300",
    "output_tokens": "3",
    "queue_s": "1.0",
    "prefill_s": "0.5",
    "ttft_s": "1.625",
    "e2e_s": "2.625",
}
RUN = PublishedRun(name="test", settings=SETTINGS, requests=[ROW])


class OneSecond:
    def step_s(self, shape: BatchShape) -> float:
        return 1.0


def test_figures_by_hand() -> None:
    found = figures([Timeline(tokens=1, ttft_s=2.0, e2e_s=2.0), Timeline(tokens=5, ttft_s=4.0, e2e_s=8.0)])
    assert (found.ttft_mean_s, found.ttft_p50_s, found.ttft_p99_s) == pytest.approx((3.0, 3.0, 3.98))
    assert found.tpot_mean_s == 1.0  # of the second alone: 4 s for 4 tokens
    assert (found.e2e_mean_s, found.e2e_p50_s, found.e2e_p99_s) == pytest.approx((5.0, 5.0, 7.94))


def test_errors_are_relative_to_the_real_run() -> None:
    real = figures([Timeline(tokens=3, ttft_s=1.0, e2e_s=3.0)])
    simulated = figures([Timeline(tokens=3, ttft_s=0.9, e2e_s=3.3)])
    errors = relative_errors(real, simulated)
    assert errors["ttft_mean"] == -0.1
    assert errors["tpot_mean"] == 0.2
    assert errors["e2e_p99"] == 0.1


def test_what_the_server_adds_before_the_engine_is_neither_queue_nor_prefill() -> None:
    assert frontend_s(ROW) == 0.125


def test_versions_and_devices() -> None:
    assert [is_asynchronous(version) for version in ("0.11.0", "0.14.0", "0.19.0", "1.0.0")] == [
        False,
        True,
        True,
        True,
    ]
    assert device_of("H100-80GB (inferred)") == "h100"
    assert device_of("RTX 4090 24GB") == "rtx-4090"


def test_requests_share_the_first_tokens_that_the_settings_name() -> None:
    (request,) = trace_requests(RUN)
    assert request.prefix_blocks == (0, 1)
    assert request.max_output_tokens == request.output_tokens == 3
    assert hit_rate([request], 130) == 0.1


def test_an_engine_has_the_sizes_of_its_run() -> None:
    limits = system_of(RUN).limits
    assert (limits.num_blocks, limits.max_num_seqs, limits.max_num_batched_tokens) == (99, 128, 2048)
    assert limits.asynchronous
    assert limits.prefix_caching  # nothing said is vLLM's default


def test_a_pair_without_direct_link_takes_longer() -> None:
    (slow,) = variants_of(RUN, prefill_factor=1.1).values()
    shape = BatchShape(num_jobs=1, num_tokens=2048, prefill_context_tokens=2048, prefill_pairs=2048 * 1024.5)
    assert slow.calibration.step.step_s(shape) > system_of(RUN).calibration.step.step_s(shape)
    assert system_of(RUN, INDIRECT_LINK_RATIO).limits == slow.limits


def test_only_steps_bound_by_arithmetic_take_longer() -> None:
    law = SlowerPrompts(OneSecond(), 1.5)
    assert law.step_s(BatchShape(num_jobs=600, num_tokens=600, num_decodes=600)) == 1.0
    assert law.step_s(BatchShape(num_jobs=1, num_tokens=64)) == 1.0
    assert law.step_s(BatchShape(num_jobs=1, num_tokens=600)) == 1.5
