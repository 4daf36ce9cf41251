"""Models that no shape describes, known by a key of their config.json."""

from __future__ import annotations

from headway.predict.config_reader import ConfigReader

_STATES = ("mamba_", "ssm_", "linear_attn", "linear_num_")
_OTHER_KINDS = (
    "layers_block_type",
    "hybrid_override_pattern",
    "block_configs",
    "block_types",
    "index_topk",
    "compress_ratios",
    "is_encoder_decoder",
)
"""How keys begin that tell of layers no size here describes: that keep a state, attend sparsely, or are uneven; of
encoders."""


def refuse_other_kinds(read: ConfigReader) -> None:
    """Raises ConfigError for layers that keep a state in place of KV, read chosen keys only, or differ in size."""
    kinds = list(map(str, read.listed("layer_types")))
    if not all("attention" in kind and "linear" not in kind for kind in kinds):
        raise read.refuse("layer_types")
    # Where each layer's kind is told, sizes of layers that are not there may stand beside it.
    others = _OTHER_KINDS if kinds else _OTHER_KINDS + _STATES
    for key in read.config:
        if key.startswith(others) and read.config[key]:
            raise read.refuse(key)
