from __future__ import annotations

import copy
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import vllm
from vllm.config import ECTransferConfig, MultiModalConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

from headway.engine import HeadwayScheduler
from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import StepLog, engine_config, make_scheduler
from headway.engine.scheduler import AsyncPolicyScheduler, PolicyScheduler, scheduler_class
from headway.engine.self_check import compare_logs, features_in_use, self_check
from headway.engine.start import RUST_FRONT_END, refuse_unsupported
from headway.engine.step.shaping import Shaping
from headway.engine.vllm.seams import PATCHES, SCHEDULING, changed, missing
from headway.errors import ConfigError, SeamError

pytestmark = pytest.mark.vllm


def make_config(asynchronous: bool = False, **overrides: Any) -> Any:
    config = engine_config(
        str(ensure_demo_random()), **{"max_num_seqs": 32, "max_num_batched_tokens": 512, **overrides}
    )
    config.scheduler_config.async_scheduling = asynchronous
    return config


@pytest.fixture(scope="module")
def stock_config() -> Any:
    return make_config()


@pytest.fixture
def config(stock_config: Any) -> Any:
    return copy.deepcopy(stock_config)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """To make the installed vLLM another one."""
    return monkeypatch


def build(config: Any, **settings: Any) -> Any:
    """Build the scheduler as vLLM does."""
    config.additional_config = {"headway": settings}
    return make_scheduler(HeadwayScheduler, config, num_blocks=64)


# ---- which base ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asynchronous", "ours", "stock"),
    [(False, PolicyScheduler, Scheduler), (True, AsyncPolicyScheduler, AsyncScheduler)],
)
def test_the_base_is_the_one_stock_would_have_chosen(
    config: Any, asynchronous: bool, ours: type[Any], stock: type[Any]
) -> None:
    config.scheduler_config.async_scheduling = asynchronous
    assert scheduler_class(config) is ours
    built = build(config)
    assert type(built) is ours
    assert isinstance(built, stock)
    assert isinstance(built, AsyncScheduler) == asynchronous


def test_ours_comes_before_the_asynchronous_base_and_that_before_stock() -> None:
    order = AsyncPolicyScheduler.__mro__
    assert order.index(PolicyScheduler) < order.index(AsyncScheduler) < order.index(Scheduler)


def test_it_says_what_it_serves_with(config: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headway"):
        built = build(config, policy="sjf")
    assert built.guard.policy.name == "sjf"
    assert (
        "Headway policy sjf (shortest prompt first; helps the many, long prompts wait), PolicyScheduler"
        in caplog.text
    )


WITHOUT_MEMORY = "has no host memory to swap KV to, so it recomputes instead; --host-kv-gib GIB of"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"policy": "vllm"}, False),
        ({"eviction": "swap:serial=true"}, True),
        ({"policy": "adaptivellm-plus"}, True),
        ({"policy": "adaptivellm-plus", "eviction": "recompute"}, False),
        ({"policy": "fastserve"}, True),
        ({"policy": "fastserve", "eviction": "proactive:ahead=false,serial=true"}, True),
        ({"policy": "fastserve", "eviction": "proactive:drop=true,ahead=false"}, False),
    ],
)
def test_a_policy_that_swaps_says_once_that_it_has_nowhere_to(
    config: Any, settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert build(config, **settings).swaps is None
    assert caplog.text.count(WITHOUT_MEMORY) == warned


def test_a_policy_that_swaps_and_has_memory_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    built = build(make_config(host_kv=HostKv(blocks=9)), policy="adaptivellm-plus")
    assert built.swaps.copies.host.num_blocks == 9
    assert WITHOUT_MEMORY not in caplog.text
    assert "never swaps" not in caplog.text


@pytest.mark.parametrize(("policy", "said"), [("vllm-0.2.5", True), ("vllm-v0", False)])
def test_padding_that_no_step_computes_here_is_said(
    policy: str, said: bool, config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    build(config, policy=policy)
    assert ("this vLLM pads none, so no step computes padding here" in caplog.text) is said


def test_memory_that_is_of_no_use_is_said(config: Any, caplog: pytest.LogCaptureFixture) -> None:
    build(make_config(host_kv=HostKv(blocks=9)), policy="sjf")
    assert (
        "policy sjf never swaps KV, so the host memory that is set aside for it (--host-kv-gib) is of no"
        in caplog.text
    )
    build(config, policy="fastserve", host_kv={"blocks": 9})
    assert (
        "additional_config.headway.host_kv starts no KV connector by itself; `headway serve --host-kv"
        in caplog.text
    )


WITHOUT_TARGETS = (
    "goes by targets, and there are none here: requests whose clients name none are served first come"
)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"policy": "edf"}, True),
        ({"policy": "edf", "slo_tbt_s": 0.1}, False),
        ({"policy": "edf", "order": "arrival"}, False),
        ({"policy": "ascendra-lp"}, True),
        ({"policy": "ascendra-hp"}, False),
        ({"policy": "headway"}, False),
        ({"policy": "vllm"}, False),
    ],
)
def test_a_policy_that_goes_by_targets_says_once_that_there_are_none(
    config: Any, settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    build(config, **settings)
    assert caplog.text.count(WITHOUT_TARGETS) == warned


WITHOUT_PREDICTIONS = "goes by predicted lengths, and predictor is none"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"policy": "predicted"}, False),
        ({"policy": "predicted", "predictor": "none"}, True),
        ({"policy": "predicted", "predictor": "learned"}, False),
        ({"policy": "hrrn", "predictor": "none"}, True),
        # its batching sets room aside by them
        ({"policy": "predicted", "order": "arrival", "predictor": "none"}, True),
        ({"policy": "predicted", "order": "arrival", "batching": "top-jobs", "predictor": "none"}, False),
        ({"policy": "fastserve", "predictor": "none"}, False),
        ({"policy": "vllm", "order": "governed", "predictor": "none"}, True),
    ],
)
def test_a_policy_that_wants_predictions_says_once_that_nobody_makes_any(
    config: Any, settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    build(config, **settings)
    assert caplog.text.count(WITHOUT_PREDICTIONS) == warned


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"policy": "nope"}, "unknown policy 'nope'"),
        ({"polcy": "sjf"}, "unknown polcy in additional_config.headway"),
        ({"order": "nope"}, "unknown order 'nope'"),
        ({"batch_width": "8"}, "batch_width"),
    ],
)
def test_bad_settings_stop_the_start(config: Any, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(config, **settings)


# ---- which combinations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            {
                "kv_transfer_config": {
                    "kv_connector": "MultiConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {
                        "connectors": [
                            {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
                            HostKv(gib=1.0).transfer_config(),
                        ]
                    },
                }
            },
            "--kv-transfer-config: MultiConnector with HeadwayConnector among its connectors. Give it the others",
        ),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096},
            "--no-enable-chunked-prefill: leave chunked prefill on; batching 'prefill-first'",
        ),
    ],
)
def test_an_unsupported_option_is_refused_with_what_is_supported(
    overrides: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=f"^Headway cannot schedule with {complaint}"):
        make_scheduler(HeadwayScheduler, make_config(**overrides), num_blocks=64)


def is_now(config: Any, **of_the_model: Any) -> Any:
    """The configuration with another kind of model."""
    for name in ("is_diffusion", "is_encoder_decoder"):  # read once and kept by vLLM
        config.model_config.__dict__.pop(name, None)
    config.model_config.hf_config.update(of_the_model)
    return config


def test_an_unsupported_model_is_refused_with_what_is_supported(config: Any) -> None:
    with pytest.raises(ConfigError, match="a diffusion model: only autoregressive generation is supported"):
        refuse_unsupported(is_now(config, canvas_length=32))


def test_everything_unsupported_is_named_at_once(config: Any) -> None:
    is_now(config, canvas_length=32)
    config.scheduler_config.enable_chunked_prefill = False
    config.ec_transfer_config = ECTransferConfig(ec_connector="ECExampleConnector", ec_role="ec_consumer")
    complaint = r"--ec-transfer-config: .*; --no-enable-chunked-prefill: .*; a diffusion model: "
    with pytest.raises(ConfigError, match=complaint):
        refuse_unsupported(config)


@pytest.mark.parametrize(("asynchronous", "stock"), [(False, Scheduler), (True, AsyncScheduler)])
def test_a_pooling_model_is_served_in_stock_order_which_is_said(
    asynchronous: bool, stock: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    pooling = {"runner": "pooling", "convert": "embed", "enable_chunked_prefill": False}
    config = make_config(asynchronous, **pooling, max_num_batched_tokens=4096)
    assert type(build(config, policy="headway")) is stock
    assert warnings_of(caplog) == [
        "a pooling model is served in stock order: vLLM's own scheduler decides, policy headway and hints "
        "have no effect"
    ]


def test_an_encoder_decoder_model_is_served_in_stock_order_which_is_said(
    config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # No such model is here, and vLLM's scheduler wants its encoder: what would be built stands for it.
    monkeypatch.setattr("headway.engine.start.stock_class", lambda _: lambda *args, **kwargs: "stock")
    config.additional_config = {"headway": {"policy": "sjf"}}
    assert HeadwayScheduler(is_now(config, is_encoder_decoder=True)) == "stock"
    assert warnings_of(caplog)[0].startswith("an encoder-decoder model is served in stock order: ")


def test_host_memory_for_kv_is_refused_where_nothing_swaps() -> None:
    config = make_config(runner="pooling", convert="embed", host_kv=HostKv(blocks=9))
    with pytest.raises(ConfigError, match="--host-kv-gib: a pooling model swaps no KV"):
        build(config)


def test_what_the_rust_front_end_lacks_is_said_once(
    config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build(copy.deepcopy(config), policy="sjf")
    assert RUST_FRONT_END not in caplog.text
    monkeypatch.setattr("headway.engine.start.has_rust_front_end", lambda: True)
    build(config, policy="sjf")
    assert caplog.text.count(RUST_FRONT_END) == 1


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"enable_prefix_caching": False},
        {"enable_lora": True, "max_loras": 1},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        {"watermark": 0.1, "scheduler_reserve_full_isl": False},
        {"max_num_active_seqs": 4},
        {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
        {"kv_offloading_size": 0.125},
        {"scheduling_policy": "priority"},
    ],
)
def test_what_is_supported_starts(overrides: dict[str, Any]) -> None:
    assert build(make_config(**overrides), policy="sjf").guard.policy.name == "sjf"


# ---- which vLLM ------------------------------------------------------------------------------------


def test_the_installed_vllm_has_every_name_as_tested() -> None:
    for feature in {patch.feature for patch in PATCHES}:
        assert (missing(feature), changed(feature)) == ([], []), feature.name


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    warned = [record for record in caplog.records if record.name == "headway.engine.start"]
    return [record.getMessage() for record in warned if record.levelno == logging.WARNING]


@pytest.mark.parametrize("version", ["0.31.2", "0.32.0rc1", "0.33.1", "1.0", "dev"])
def test_another_number_is_tried_and_served_with_a_warning(
    installed: pytest.MonkeyPatch, config: Any, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    installed.setattr(vllm, "__version__", version)
    build(config)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(
        f"vLLM {version} is not the tested 0.32.0, 0.33.0 (changed: nothing that Headway touches); a self-check of "
    )


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.0+cu129", "0.33.0"])
def test_the_tested_number_starts_without_a_word_whatever_it_was_built_for(
    installed: pytest.MonkeyPatch, config: Any, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    installed.setattr(vllm, "__version__", version)
    build(config)
    assert warnings_of(caplog) == []


def rewritten(self: Any, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
    """vLLM's own rule without a multi-token drafter, written differently."""
    return num_new_tokens if num_new_tokens > 0 else 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_changed_vllm_that_decides_alike_is_served_with_a_warning(
    installed: pytest.MonkeyPatch, config: Any, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config.scheduler_config.async_scheduling = asynchronous
    installed.setattr(Scheduler, "_reserve_prefill_lookahead", rewritten)
    build(config)
    (warning,) = warnings_of(caplog)
    assert "is not the tested 0.32.0, 0.33.0 (changed: " in warning
    assert "Scheduler._reserve_prefill_lookahead); a self-check of " in warning
    assert "passed, serving with it. Checked: plain requests" in warning


@pytest.mark.parametrize("name", ["_handle_blocked_waiting_request", "_enqueue_waiting_request"])
def test_a_seam_that_is_gone_is_refused_by_name(
    installed: pytest.MonkeyPatch, config: Any, name: str
) -> None:
    installed.delattr(Scheduler, name)
    with pytest.raises(SeamError, match=rf"has no vllm.*:Scheduler\.{name}; tested: 0\.32\.0, 0\.33\.0$"):
        build(config)


def test_a_module_that_is_gone_is_refused_by_name(installed: pytest.MonkeyPatch, config: Any) -> None:
    module = "vllm.v1.core.sched.request_queue"
    installed.setitem(sys.modules, module, None)
    assert missing(SCHEDULING) == [f"{module}:RequestQueue"]
    with pytest.raises(SeamError, match=f"has no {module}:RequestQueue; tested"):
        build(config)


def test_a_vllm_that_decides_otherwise_is_refused_with_the_step(
    installed: pytest.MonkeyPatch, config: Any
) -> None:
    # A vLLM that changed, and serves last come, first served.
    installed.setattr(Scheduler, "_reserve_prefill_lookahead", rewritten)
    installed.setattr(FCFSRequestQueue, "peek_request", lambda queue: queue[-1])
    installed.setattr(FCFSRequestQueue, "pop_request", lambda queue: queue.pop())
    with pytest.raises(
        SeamError,
        match=r"^preset 'vllm' differs from stock with plain requests in step \d+: stock granted \{.*\}, Headway \{",
    ):
        build(config)


def test_a_vllm_that_breaks_under_us_is_refused_with_what_broke(
    installed: pytest.MonkeyPatch, config: Any
) -> None:
    def broken(self: Any, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        raise RuntimeError("something is different here")

    installed.setattr(Scheduler, "_reserve_prefill_lookahead", broken)
    with pytest.raises(
        SeamError,
        match=r"^the self-check of preset 'vllm' with plain requests failed with RuntimeError: something is different",
    ):
        build(config)


# ---- the self-check --------------------------------------------------------------------------------

DRAFTS: dict[str, Any] = {
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
}
ADAPTERS: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 4}


ALL_AT_ONCE = {**DRAFTS, **ADAPTERS, "scheduling_policy": "priority", "prefill_schedule_interval": 3}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_model_len": 64, "max_num_batched_tokens": 64},
    {"max_num_seqs": 1},
    {"max_num_batched_tokens": 64},
    {"enable_prefix_caching": False},
    {"watermark": 0.2},
    {"max_num_active_seqs": 4},
    {"kv_offloading_size": 0.125},
    {"scheduling_policy": "priority"},
    DRAFTS,
    ADAPTERS,
    {"prefill_schedule_interval": 4},
    ALL_AT_ONCE,
]


@pytest.mark.parametrize(
    ("overrides", "asynchronous"),
    [*((each, number % 2 == 1) for number, each in enumerate(OPTIONS)), ({}, True), (ALL_AT_ONCE, True)],
)
def test_the_self_check_passes_whatever_the_engine_was_told(
    overrides: dict[str, Any], asynchronous: bool
) -> None:
    verdict = self_check(make_config(asynchronous, **overrides))
    assert verdict.fault is None
    assert verdict.steps > 60 * len(verdict.features)


@pytest.mark.parametrize(
    ("policy", "asynchronous"),
    [
        ("vllm", False),
        ("headway", True),
        ("fastserve", False),
        ("ascendra-lp", True),
        ("adaptivellm-plus", True),
    ],
)
def test_the_self_check_runs_the_policy_and_all_that_is_in_use(policy: str, asynchronous: bool) -> None:
    config = make_config(asynchronous, **DRAFTS, **ADAPTERS, host_kv=HostKv(blocks=64))
    config.additional_config = {"headway": {"policy": policy, "batch_width": 8, "predictor": "learned"}}
    verdict = self_check(config)
    assert verdict.fault is None
    assert verdict.features == (
        "plain requests",
        "LoRA adapters (--max-loras 2)",
        "draft tokens (--speculative-config)",
        "all of these together",
        "KV swapped to host memory (--host-kv-gib)",
    )


def test_media_are_tried_without_loading_what_reads_them(config: Any) -> None:
    config.model_config.multimodal_config = MultiModalConfig()
    assert [feature.name for feature in features_in_use(config)][1] == "images and other media in prompts"
    config.additional_config = {"headway": {"policy": "headway"}}
    assert self_check(config).fault is None


def test_blocks_run_out_in_every_run_of_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    preempted: list[int] = []

    def noting(stock: Any, ours: Any) -> Any:
        preempted.append(compare_logs(stock, ours).preemptions)
        return compare_logs(stock, ours)

    monkeypatch.setattr("headway.engine.self_check.compare_logs", noting)
    self_check(make_config(**ADAPTERS, prefill_schedule_interval=4))
    assert len(preempted) == 4
    assert all(preempted)


def test_the_self_check_leaves_the_engines_configuration_alone(config: Any, tmp_path: Path) -> None:
    records = tmp_path / "served.jsonl"
    config.additional_config = {"headway": {"policy": "sjf", "records": str(records)}, "other": 1}
    before = copy.deepcopy(config.additional_config), config.cache_config.num_gpu_blocks
    self_check(config)
    assert (config.additional_config, config.cache_config.num_gpu_blocks) == before
    assert not records.exists()


@pytest.fixture
def lora_fault(installed: pytest.MonkeyPatch) -> Any:
    """A vLLM of which it is not known why it passes over requests with one LoRA adapter too many."""
    installed.setattr(vllm, "__version__", "0.99.0")
    installed.setattr("headway.engine.step.compare._Comparison._adapters_full", lambda *_: False)
    config = make_config(**ADAPTERS)
    config.additional_config = {
        "headway": {"policy": "sjf", "length_model": "lengths", "predictor": "learned"}
    }
    return config


def test_a_policy_that_fails_the_self_check_gives_way_to_stock_order_with_the_feature_named(
    lora_fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    built = make_scheduler(HeadwayScheduler, lora_fault, num_blocks=64)
    assert built.guard.policy.name == "vllm"
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    (error,) = (text for text in errors if "self-check" in text)
    assert re.fullmatch(
        r"vLLM 0\.99\.0 is not the tested 0\.32\.0, 0\.33\.0 \(changed: nothing that Headway touches\), and policy "
        r"'sjf' fails the self-check with LoRA adapters \(--max-loras 2\): requests got less than planned \d+ times in "
        r"\d+ steps, for no known reason\. Serving starts in stock order \(preset 'vllm'\), which passed; --strict "
        r"refuses instead",
        error,
    )


def test_a_strict_server_refuses_in_place_of_stock_order(lora_fault: Any) -> None:
    lora_fault.additional_config["headway"]["strict"] = True
    with pytest.raises(SeamError, match=r"'sjf' fails the self-check with LoRA adapters .*Without --strict"):
        make_scheduler(HeadwayScheduler, lora_fault, num_blocks=64)


def test_preset_vllm_that_differs_with_one_feature_is_refused_with_its_name(
    installed: pytest.MonkeyPatch,
) -> None:
    installed.setattr(vllm, "__version__", "0.99.0")
    config = make_config(prefill_schedule_interval=4)
    installed.setattr(Shaping, "defers_prefills", lambda self, throttle: False)
    stock = Scheduler.schedule
    installed.setattr(
        Scheduler,
        "schedule",
        lambda self, throttle: stock(self, throttle and not isinstance(self, PolicyScheduler)),
    )
    with pytest.raises(
        SeamError, match=r"differs from stock with prompts deferred \(--prefill-schedule-inter"
    ):
        build(config)


def test_logs_of_different_length_differ_where_one_ends() -> None:
    log = StepLog({"a": 1})
    parity = compare_logs([log, log], [log])
    assert (parity.steps, parity.same_steps) == (2, 1)
    assert parity.first_difference == "step 1: stock granted {'a': 1}, Headway None"
