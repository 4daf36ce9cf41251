"""Families' defaults for absent keys, compared with the classes of transformers themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from bench.simulator.family_defaults import TABLE, table
from headway.errors import ConfigError
from headway.predict.models.config_reader import defaults_of, text_part_of
from headway.predict.models.families import FAMILIES
from headway.predict.models.model_shape import model_shape_of

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # classes warn of their own defaults
]
LAYERS = 8
"""Enough for every family's pattern of layers, and few enough to build all classes in seconds."""
NOT_THE_LANGUAGE_MODEL = re.compile(
    r"(^|\.)(vision|visual|audio|multi_modal|embed_vision|embed_audio|vq)|projector|vision_"
)
CANNOT_BE_BUILT = {
    # Their classes fail with nothing but defaults, on the meta device, or without a library of pictures.
    *("cohere_compass_text", "dbrx", "dots1", "gemma3n", "gemma3n_text", "gemma4_assistant"),
    *("gemma4_unified_assistant", "hunyuan_v1_dense", "hunyuan_v1_moe", "lfm2_moe", "ministral", "musicgen"),
    *("musicgen_melody", "nemotron", "qwen4_exp", "qwen4_exp_text", "reformer", "zamba"),
}
TOLD_APART: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "granitemoehybrid": {"layer_types": ["full_attention"] * LAYERS, "num_local_experts": 0},
}
"""Keys of classes whose defaults make no model."""


def causal_classes() -> Iterator[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    yield from MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def config_of(family: str, **keys: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    keys = {"num_hidden_layers": LAYERS} | TOLD_APART.get(family, {}) | keys
    try:
        return CONFIG_MAPPING[family](**keys)
    except Exception:
        return CONFIG_MAPPING[family]()


def weights_of(config: Any) -> int:
    """Parameters of the language model that transformers makes of a config, with nothing behind them."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    return sum(size for name, size in sizes.items() if not NOT_THE_LANGUAGE_MODEL.search(name))


def difference(config: Any) -> dict[str, Any]:
    """A config as the hub often has it: what differs from the class, and the model type."""
    return {**config.to_diff_dict(), "model_type": config.model_type}


def test_the_table_is_what_the_classes_say() -> None:
    found = json.loads(TABLE.read_text())
    if found["transformers"] != transformers.__version__:
        pytest.skip(f"the table is of transformers {found['transformers']}")
    assert table() == found, "python bench/simulator/family_defaults.py"


def test_every_causal_class_is_known_within_a_hundredth_or_refused_by_a_key() -> None:
    """Of 178 classes those that can be built; a family that we know is never refused, whole or as a difference."""
    # In a process of its own: where tests before this one had vLLM build models, transformers builds vLLM's layers.
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        wrong, unnamed, num_known = alone.submit(held_against_weights).result()
    assert not wrong
    assert not unnamed
    assert num_known >= 2 * 68


def held_against_weights() -> tuple[dict[str, tuple[int, int]], dict[str, str], int]:
    """Families whose weights we count otherwise, those refused without a key's name, and how many are known."""
    wrong, unnamed, num_known = {}, {}, 0
    for family in causal_classes():
        if family in CANNOT_BE_BUILT:
            continue
        config = config_of(family)
        theirs: int | None = None
        for told in (config.to_dict(), difference(config)):
            try:
                ours = model_shape_of(told, "m").num_weights
            except ConfigError as refused:
                text = getattr(config, "text_config", None)
                keys = {*told, *(text.to_dict() if text is not None else {}), "model_type", "architectures"}
                if family in FAMILIES or not any(repr(key).strip("'") in str(refused) for key in keys):
                    unnamed[family] = str(refused)
                continue
            num_known += 1
            theirs = theirs or weights_of(config)
            if abs(ours / theirs - 1) > 0.01:
                wrong[family] = (ours, theirs)
    return wrong, unnamed, num_known


@pytest.mark.parametrize("num_layers", [3, 7, 12])
def test_windows_stand_where_the_class_has_them(num_layers: int) -> None:
    """Where a config tells of no layers, the family's rule is that of its class."""
    wrong = {}
    for family in FAMILIES:
        if not defaults_of(family) or family in CANNOT_BE_BUILT:
            continue
        config = config_of(family, num_hidden_layers=num_layers)
        told = config.to_dict()
        kinds = told.get("layer_types")
        if kinds is None or "linear_attention" in kinds:
            continue
        silent = {key: value for key, value in told.items() if key not in ("layer_types", "mlp_layer_types")}
        silent.pop("per_layer_config", None)
        expected = sum(kind != "full_attention" for kind in kinds)
        found = model_shape_of(silent | {"max_position_embeddings": 1 << 20}, "m").attention_layers
        if sum(kind.num_layers for kind in found if kind.window) != expected:
            wrong[family] = (expected, found)
    assert not wrong


def test_a_language_model_without_a_type_has_that_of_its_class() -> None:
    assert text_part_of("gemma3") == "gemma3_text"
    assert text_part_of("llama") is None
    assert defaults_of("gemma3_text")["num_key_value_heads"] == 4
    assert not defaults_of("baichuan")
