"""Which measured prefills a model of their time learns from, and which only judge it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from headway.predict.model_shape import ModelShape
from headway.predict.recompute_rows import Configuration, PrefillStep, RecomputeRows

HELD_OUT_SHARE = 0.2
"""Of the configurations. Source: AdaptiveLLM, recompute-cost analyser (of the rows, there)."""
MIN_DEPTHS = 3
"""Different depths without which holding out a whole shape would only ask for a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Measured steps in three parts, each in the order they were taken.

    Rows of one configuration are never in two parts: repetitions would let a model recite what it has seen.
    `unseen_shape` is the model of which nothing was learned, None where too few were measured.
    """

    learned: tuple[PrefillStep, ...]
    held_out: tuple[PrefillStep, ...]
    unseen_shape: str | None
    of_unseen_shape: tuple[PrefillStep, ...]


def split(rows: RecomputeRows, seed: int = 0) -> Split:
    """One whole shape apart, then a fifth of the other configurations drawn by `seed`."""
    unseen = unseen_shape(rows.models)
    seen = [step for step in rows.steps if step.model != unseen]
    configurations = sorted({step.configuration for step in seen})
    random.Random(seed).shuffle(configurations)
    judging = set(configurations[: round(HELD_OUT_SHARE * len(configurations))])
    return Split(
        learned=tuple(step for step in seen if step.configuration not in judging),
        held_out=tuple(step for step in seen if step.configuration in judging),
        unseen_shape=unseen,
        of_unseen_shape=tuple(step for step in rows.steps if step.model == unseen),
    )


def medians(steps: Iterable[PrefillStep]) -> tuple[PrefillStep, ...]:
    """One step for each configuration, with the median of its repetitions, which other work moves least."""
    seconds: dict[Configuration, list[float]] = {}
    for step in steps:
        seconds.setdefault(step.configuration, []).append(step.seconds)
    return tuple(
        PrefillStep(model=model, tokens=tokens, batch=batch, seconds=median(found))
        for (model, tokens, batch), found in seconds.items()
    )


def unseen_shape(models: Sequence[ModelShape]) -> str | None:
    """The widest model of middle depth, so that what is asked about it lies between what is known."""
    depths = sorted({model.num_layers for model in models})
    if len(depths) < MIN_DEPTHS:
        return None
    middle = depths[len(depths) // 2]
    return max((model for model in models if model.num_layers == middle), key=lambda m: m.hidden_size).name
