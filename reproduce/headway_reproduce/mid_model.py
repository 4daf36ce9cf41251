"""A model of 46 million random parameters, made on the spot: large enough that computing it dominates a step."""

from __future__ import annotations

from pathlib import Path

from headway.engine.demo_model import DemoRecipe, ensure_model

RECIPE = DemoRecipe(
    hidden_size=512,
    intermediate_size=1856,
    num_hidden_layers=12,
    num_attention_heads=8,
    num_key_value_heads=4,
)


def ensure_mid_model(cache_dir: Path | None = None) -> Path:
    """The model's directory, made first if it is not there (about three seconds, 92 MB, no network)."""
    return ensure_model("mid", RECIPE, cache_dir)
