"""How long prompt and answer may be together, by a model's config.json."""

from __future__ import annotations

from collections.abc import Mapping

from headway.predict.config_reader import ConfigReader

_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_INSTEAD = "model_max_length"
"""Command R's own: where it is given, vLLM 0.32 goes by it and by none of these."""
_SCALED_AS_WRITTEN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ways to scale rotary positions whose factor is in the written number of positions already, as vLLM 0.32 has it."""


def context_tokens_of(read: ConfigReader) -> int:
    """What vLLM takes for `max_model_len` by itself: the least of what the config says of positions.

    0 where it says nothing, or a factor stretches them further, which vLLM treats model by model.
    """
    scaling = read.config.get("rope_parameters") or read.config.get("rope_scaling")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    kind = scaling.get("rope_type", scaling.get("type"))
    if "factor" in scaling and kind not in _SCALED_AS_WRITTEN:
        return 0
    original = read.known("original_max_position_embeddings") if kind == "longrope" else 0
    return original or read.known(_INSTEAD) or min(filter(None, map(read.known, _POSITIONS)), default=0)
