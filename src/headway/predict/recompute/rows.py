"""Measured prefills and copies, and their split into training and test rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from headway.core.batch_shape import BatchShape
from headway.errors import ConfigError
from headway.json_file import write_json
from headway.predict.models.model_shape import ModelShape
from headway.statistics import mean, median

VERSION: Final = 1

Configuration = tuple[str, int, int]
"""Model, tokens of each prompt, prompts in the step."""


class PrefillStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured step of `batch` whole prompts of `tokens` tokens each, and nothing else.

    `seconds` is the step's whole time by the host's clock: schedule, model, sampling and update.
    """

    model: str
    tokens: int
    batch: int
    seconds: float

    @property
    def configuration(self) -> Configuration:
        """What repetitions of this step have in common."""
        return (self.model, self.tokens, self.batch)

    def shape(self) -> BatchShape:
        """The shape that determines the step's cost. O(batch)."""
        shape = BatchShape()
        for _ in range(self.batch):
            shape.add(self.tokens, 0)
        return shape


class BlockCopy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy of this many bytes of a model's KV blocks in one direction, the median of several."""

    model: str
    direction: Literal["to_host", "to_device"]
    num_bytes: int
    seconds: float


class RecomputeRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured, on what, when and by which plan; steps are in the order of measurement.

    `noise` is the `noise_of` repeated steps, measured first, for the noisiest model; None in older files.
    """

    format: Literal["headway-recompute-rows"] = "headway-recompute-rows"
    version: Literal[1] = VERSION
    machine: str
    engine: Literal["cpu-engine", "gpu-engine"]
    vllm_version: str
    day: str
    plan: str
    interrupted: bool = False
    models: tuple[ModelShape, ...]
    steps: tuple[PrefillStep, ...]
    copies: tuple[BlockCopy, ...]
    noise: float | None = None

    def model(self, name: str) -> ModelShape:
        """The sizes of one of the models."""
        return next(model for model in self.models if model.name == name)


def noise_of(seconds: Sequence[float]) -> float:
    """Mean relative deviation of repeated steps from their median."""
    middle = median(seconds)
    return mean(abs(each - middle) for each in seconds) / middle


def write_rows(path: Path, rows: RecomputeRows) -> None:
    """Write `rows` to `path` atomically."""
    write_json(path, rows, indent=1)


def load_rows(path: Path) -> RecomputeRows:
    """Load and check a rows file. Raises ConfigError for one that is missing, broken or of another version."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=RecomputeRows)
    except OSError as error:
        raise ConfigError(f"rows file {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not a rows file ({error}); accepted: one that `headway profile --recompute-grid` wrote"
        ) from error
    unknown = {step.model for step in rows.steps} - {model.name for model in rows.models}
    if unknown:
        raise ConfigError(f"rows file {path} has steps of {min(unknown)!r}, whose sizes it does not give")
    return rows


HELD_OUT_SHARE = 0.2
"""Share of the configurations that are held out. Source: AdaptiveLLM, recompute-cost analyser (there, of the rows)."""
MIN_DEPTHS = 3
"""Least number of different depths for holding out a whole shape; with fewer, predicting it would be a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Measured steps in three parts, each in the order of measurement.

    Rows of one configuration are always in one part: otherwise a model could memorise repetitions. `unseen_shape` is
    the model that is held out, None if too few were measured.
    """

    learned: tuple[PrefillStep, ...]
    held_out: tuple[PrefillStep, ...]
    unseen_shape: str | None
    of_unseen_shape: tuple[PrefillStep, ...]


def split(rows: RecomputeRows, seed: int = 0) -> Split:
    """Hold out one whole shape, then a fifth of the other configurations, drawn by `seed`."""
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
    """One step for each configuration, with the median of its repetitions, which resists disturbances."""
    seconds: dict[Configuration, list[float]] = {}
    for step in steps:
        seconds.setdefault(step.configuration, []).append(step.seconds)
    return tuple(
        PrefillStep(model=model, tokens=tokens, batch=batch, seconds=median(found))
        for (model, tokens, batch), found in seconds.items()
    )


def unseen_shape(models: Sequence[ModelShape]) -> str | None:
    """The widest model of middle depth, so that predicting it is an interpolation."""
    depths = sorted({model.num_layers for model in models})
    if len(depths) < MIN_DEPTHS:
        return None
    middle = depths[len(depths) // 2]
    return max((model for model in models if model.num_layers == middle), key=lambda m: m.hidden_size).name
