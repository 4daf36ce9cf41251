"""Rows of a recompute grid whose steps take made-up time."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headway.predict.models.model_shape import ModelShape
from headway.predict.recompute.rows import BlockCopy, PrefillStep, RecomputeRows
from headway.predict.steps.copies import TransferModel

TOKENS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
BATCHES = (1, 2, 4)
OUT = TransferModel(start_s=1e-5, bytes_per_s=9e9)
IN = TransferModel(start_s=2e-5, bytes_per_s=6e9)


def model(layers: int, width: int) -> ModelShape:
    return ModelShape(
        name=f"{layers}x{width}",
        num_layers=layers,
        hidden_size=width,
        num_heads=width // 64,
        num_kv_heads=width // 128,
        head_dim=64,
        intermediate_size=width * 7 // 2,
        vocab_size=2048,
    )


SIX = tuple(model(layers, width) for layers in (4, 8, 16) for width in (256, 512))


def seconds(of: ModelShape, tokens: int, batch: int) -> float:
    """A start, products as wide as the model, and attention: a law none of the contenders has as it is."""
    products = of.num_layers * of.hidden_size * tokens * batch * 2e-9 * (of.hidden_size / 256)
    attention = of.num_layers * of.hidden_size * batch * tokens**2 * 2e-12
    return 0.002 + 0.0005 * of.num_layers + products + attention


def rows(
    models: Sequence[ModelShape] = SIX, repetitions: int = 2, noise: float = 0.02, seed: int = 0
) -> RecomputeRows:
    """Every configuration of every model, `repetitions` times in random order, with noise."""
    rng = random.Random(seed)
    kinds = [(tokens, batch) for tokens in TOKENS for batch in BATCHES]
    steps = []
    for of in models:
        for _ in range(repetitions):
            rng.shuffle(kinds)
            steps += [
                PrefillStep(
                    model=of.name,
                    tokens=tokens,
                    batch=batch,
                    seconds=seconds(of, tokens, batch) * rng.gauss(1, noise),
                )
                for tokens, batch in kinds
            ]
    return RecomputeRows(
        machine="2 x test",
        engine="cpu-engine",
        vllm_version="0",
        day="today",
        plan="made up",
        models=tuple(models),
        steps=tuple(steps),
        copies=tuple(copies(models)),
    )


def copies(models: Sequence[ModelShape]) -> list[BlockCopy]:
    """Copies of 1, 2, 4, ... blocks that follow OUT and IN."""
    sizes = [(of.name, of.kv_bytes_per_token * 16 * 2**power) for of in models for power in range(9)]
    out = [
        BlockCopy(model=name, direction="to_host", num_bytes=size, seconds=OUT.seconds(size))
        for name, size in sizes
    ]
    return out + [
        BlockCopy(model=name, direction="to_device", num_bytes=size, seconds=IN.seconds(size))
        for name, size in sizes
    ]
