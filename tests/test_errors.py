"""A name that is unknown is answered with those nearest to it, wherever names are looked up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.engine.settings import EngineSettings
from headway.errors import HeadwayError, meant
from headway.lab.policy_choice import OWN_PARTS, check_policies
from headway.lab.predictor_choice import check_predictor_name
from headway.policies.parts import build_part
from headway.policies.presets import find_preset
from headway.predict.lengths.choice import check_length_predictor
from headway.predict.models.known_models import model_shape
from headway.predict.steps.attention_kernels import attention_kernels
from headway.predict.steps.hardware import hardware
from headway.routing import build_router
from headway.routing.magnus import find_batch_preset

NAMES = ["vllm", "sjf", "Fast-Serve"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sjff", "did you mean sjf? accepted: vllm, sjf, Fast-Serve"),
        ("FASTSERVE", "did you mean Fast-Serve? accepted: vllm, sjf, Fast-Serve"),
        ("nope", "accepted: vllm, sjf, Fast-Serve"),
        ("", "accepted: vllm, sjf, Fast-Serve"),
        ("sjf", "accepted: vllm, sjf, Fast-Serve"),
    ],
)
def test_the_nearest_name_comes_before_those_accepted(name: str, says: str) -> None:
    assert meant(name, NAMES) == says


def test_what_is_accepted_may_be_said_in_other_words_or_stand_elsewhere() -> None:
    assert meant("sjff", NAMES, "a file, or a name") == "did you mean sjf? accepted: a file, or a name"
    assert meant("sjff", NAMES, listed="`list`") == "did you mean sjf? All: `list`"
    assert meant("nope", NAMES, listed="`list`") == "accepted: vllm, sjf, Fast-Serve"
    assert meant("sjff", []) == "accepted: none"


@pytest.mark.parametrize(
    ("look_up", "name", "says"),
    [
        (find_preset, "headwy", "unknown policy 'headwy'; did you mean headway? All: `headway policies`"),
        (
            lambda name: check_policies([name], OWN_PARTS),
            "srpt-oracel",
            "unknown policy 'srpt-oracel'; did you mean srpt-oracle? All: `headway policies`, and in the simulator "
            "mlfq-preempt, srpt-oracle, edf-oracle",
        ),
        (
            lambda name: build_part("order", name, None),
            "slak",
            "unknown order 'slak'; did you mean slack? All: `headway policies`",
        ),
        (
            build_router,
            "cache-awre",
            "unknown router 'cache-awre'; did you mean cache-aware? accepted: round-robin",
        ),
        (find_batch_preset, "magnuss", "unknown batches 'magnuss'; did you mean magnus? accepted: vs, vsq"),
        (
            check_length_predictor,
            "learn",
            "unknown length predictor 'learn'; did you mean learned? accepted: ",
        ),
        (
            check_predictor_name,
            "noisy-oracel:tau=1",
            "unknown predictor 'noisy-oracel:tau=1'; did you mean noisy-oracle? accepted: none, learned, ",
        ),
        (hardware, "a10-80g", "unknown hardware 'a10-80g'; did you mean a100-80g or "),
        (
            hardware,
            "custom:tflop=1",
            "in which 'tflop' is unknown; did you mean tflops? accepted: custom:tflops=X",
        ),
        (model_shape, "lama-3.1-8b", "unknown model 'lama-3.1-8b'; did you mean Llama-3.1-8B or "),
        (model_shape, "meta-lama/Llama-3.1-8B", "did you mean meta-llama/Llama-3.1-8B or "),
        (
            attention_kernels,
            "flash-atn",
            "attention is 'flash-atn'; did you mean flash-attn or flashinfer? accepted: flash-attn, ",
        ),
        (
            lambda name: EngineSettings.from_additional_config({"headway": {name: "vllm"}}),
            "polcy",
            "unknown polcy in additional_config.headway; did you mean policy? accepted: policy, ",
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    look_up: Callable[[str], object], name: str, says: str
) -> None:
    with pytest.raises(HeadwayError) as refused:
        look_up(name)
    assert says in str(refused.value)
