"""Write the defaults of model families for keys that a config.json leaves out, from `transformers`' own classes.

    python bench/simulator/family_defaults.py            # writes the table that the package carries

The simulator reads the table and needs no `transformers`. `tests/predict/test_family_defaults.py` generates it again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import headway.predict.models
from headway.predict.models.families import FAMILIES

TABLE = Path(headway.predict.models.__file__).with_name("family_defaults.json")
_NOT_A_SIZE = re.compile(r".*token(_id)?s?$|use_cache|output_|.*bias$|pretraining_tp|return_dict|is_decoder")
_OF_EVERY_CLASS = {"tie_word_embeddings", "is_encoder_decoder"}
_TEXT_PARTS = ("text_config", "llm_config", "language_config")


def table() -> dict[str, Any]:
    """The version of `transformers`; by model type, defaults that are numbers or switches; text parts by whole model.

    Defaults that a class computes from other keys are left out: `families` has the rule.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    known = {name: CONFIG_MAPPING[name] for name in CONFIG_MAPPING if name in FAMILIES}
    return {
        "transformers": transformers.__version__,
        "defaults": {name: _defaults(known[name]) for name in sorted(known)},
        "text_parts": dict(sorted(_text_parts(CONFIG_MAPPING).items())),
    }


def _defaults(kind: Any) -> dict[str, int | bool]:
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)} - _OF_EVERY_CLASS
    return {
        field.name: field.default
        for field in sorted(dataclasses.fields(kind), key=lambda field: field.name)
        if isinstance(field.default, int) and field.name not in common and not _NOT_A_SIZE.match(field.name)
    }


def _text_parts(mapping: Any) -> dict[str, str]:
    """The model type of the language model in each multi-part model, where the family is known."""
    parts = {}
    for name in mapping:
        sub_configs = getattr(mapping[name], "sub_configs", {})
        for key in _TEXT_PARTS:
            if key not in sub_configs:
                continue
            try:
                part = getattr(mapping[name](), key).model_type
            except Exception:
                continue
            if part in FAMILIES:
                parts[name] = part
    return parts


if __name__ == "__main__":
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")
