"""Compares AdaptiveLLM's regressors and swap laws with this project's own model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.errors import ConfigError
from headway.predict.recompute.regressors import (
    DEGREES,
    JudgedCell,
    Tell,
    best_of,
    cells,
    features,
    judge_cells,
)
from headway.predict.recompute.rows import BlockCopy, PrefillStep, RecomputeRows, Split, medians, split
from headway.predict.steps.copies import fit_transfer
from headway.predict.steps.fitting import mape
from headway.predict.steps.law import MIN_ROWS, fit_step_time
from headway.predict.steps.step_time import READY_STEPS, StepTimeModel

MIN_SIZES = 4
"""Different sizes of copy needed in one direction: two to fit a line, two to judge it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapErrors:
    """MAPE of the laws on sizes of copy they were not fitted to, and how many copies that were, both ways."""

    out: float
    into: float
    num_held_out: int


def swap_errors(copies: Sequence[BlockCopy]) -> SwapErrors:
    """Fit a law to every other size for each model and direction, with the smallest and largest; judge it on the rest.

    Raises ConfigError if no model was copied in at least four sizes each way.
    """
    out, into = _pairs(copies, "to_host"), _pairs(copies, "to_device")
    out_error, into_error = mape(out), mape(into)
    if out_error is None or into_error is None:
        raise ConfigError(
            f"{len(copies)} copies are too few to judge; at least {MIN_SIZES} sizes each way are needed"
        )
    return SwapErrors(out=out_error, into=into_error, num_held_out=len(out) + len(into))


def _pairs(copies: Iterable[BlockCopy], direction: str) -> list[tuple[float, float]]:
    """Measured and predicted seconds of the held-out copies in one direction."""
    by_model: dict[str, list[tuple[int, float]]] = {}
    for copy in copies:
        if copy.direction == direction:
            by_model.setdefault(copy.model, []).append((copy.num_bytes, copy.seconds))
    pairs = []
    for sizes in map(sorted, by_model.values()):
        if len(sizes) >= MIN_SIZES:
            law = fit_transfer(sizes[::2])
            pairs += [(seconds, law.seconds(num_bytes)) for num_bytes, seconds in sizes[1::2]]
    return pairs


ANALYSER = "analyser"
LAW = "step-time law"
ONLINE = "step-time model"
MACHINE = "machine itself"
MOST_NOISE = 0.1
"""If repeated steps differ by more, errors are the machine's and not the predictor's (ours: twice what an idle
machine of two cores shows).
"""
_ASKED = 200
"""Questions over which the time of one is averaged."""

Predict = Callable[[PrefillStep], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeContender:
    """One way to predict a prefill's time: its MAPE, and the seconds one question takes.

    `on_medians` is of the medians of the held-out configurations, `alone` of steps of one prompt, which is what an
    eviction asks about. None if it cannot answer.
    """

    name: str
    held_out: float | None
    on_medians: float | None = None
    alone: float | None = None
    on_unseen_shape: float | None = None
    asking_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        """The contender for scripts: fractions and seconds."""
        return {
            "name": self.name,
            "held_out": self.held_out,
            "on_medians": self.on_medians,
            "alone": self.alone,
            "held_out_shape": self.on_unseen_shape,
            "asking_s": self.asking_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeVerdict:
    """Every cell of the grid, the contenders on the same held-out rows, and the swap analyser's errors."""

    rows: RecomputeRows
    parts: Split
    grid: tuple[JudgedCell, ...]
    contenders: tuple[RecomputeContender, ...]
    swap: SwapErrors

    @property
    def chosen(self) -> JudgedCell:
        """The analyser: the cell of least held-out error."""
        return best_of(self.grid)

    @property
    def noise(self) -> float:
        """The error of the best possible prediction: the larger of the noise measured first and that known
        afterwards.
        """
        known = next(found.held_out for found in self.contenders if found.name == MACHINE)
        return max(known or 0.0, self.rows.noise or 0.0)

    @property
    def better(self) -> str:
        """ANALYSER or ONLINE: among those usable at decision time, the one with less error on held-out prefills.

        The law is no candidate of its own: it needs a profile of the served model, and the online model starts from it
        if there is one.
        """
        errors = {found.name: found.held_out for found in self.contenders}
        analyser, online = errors[ANALYSER], errors[ONLINE]
        assert analyser is not None
        return ONLINE if online is not None and online <= analyser else ANALYSER

    def to_dict(self) -> dict[str, object]:
        """The verdict for scripts: the two figures of the paper first, then their derivation."""
        rows, parts, chosen = self.rows, self.parts, self.chosen
        return {
            "recompute_error": {
                "value": chosen.held_out,
                "on_medians": chosen.on_medians,
                "measured_on": rows.engine,
                "held_out_rows": len(parts.held_out),
                "held_out_shape": chosen.on_unseen_shape,
                "regressor": chosen.cell.regressor,
                "degree": chosen.cell.degree,
                "cells": len(self.grid),
            },
            "swap_error": {"in": self.swap.into, "out": self.swap.out, "measured_on": rows.engine},
            "plan": rows.plan,
            "interrupted": rows.interrupted,
            "machine": rows.machine,
            "rows": len(rows.steps),
            "noise": self.noise,
            "models": [model.name for model in rows.models],
            "unseen_shape": parts.unseen_shape,
            "better": self.better,
            "contenders": [contender.to_dict() for contender in self.contenders],
            "grid": [
                {
                    "regressor": found.cell.regressor,
                    "degree": found.cell.degree,
                    "held_out": found.held_out,
                    "held_out_shape": found.on_unseen_shape,
                }
                for found in self.grid
            ],
        }


def judge(
    rows: RecomputeRows, tell: Tell, *, degrees: Sequence[int] = DEGREES, seed: int = 0
) -> RecomputeVerdict:
    """Fit and compare everything on the rows of a file; minutes for all ten degrees, seconds for the first three.

    Raises ConfigError, saying what is missing, if too little was measured.
    """
    missing = missing_in(rows, seed)
    if missing:
        raise ConfigError(f"too little was measured to judge by; missing: {', '.join(missing)}")
    parts = split(rows, seed)
    swap = swap_errors(rows.copies)  # before the grid, which takes minutes: copies may be refused
    grid = tuple(judge_cells(rows, parts, cells(degrees), tell))
    tell(1.0, "comparing with the step-time model")
    contenders = (_analyser(rows, best_of(grid)), _law(parts), _online(rows, parts), _machine(parts))
    return RecomputeVerdict(rows=rows, parts=parts, grid=grid, contenders=contenders, swap=swap)


def missing_in(rows: RecomputeRows, seed: int = 0) -> list[str]:
    """What the rows still lack to be judged; empty when there is enough."""
    parts = split(rows, seed)
    learned = _by_model(parts.learned)
    seen = [model.name for model in rows.models if model.name != parts.unseen_shape]
    lacking = [
        f"steps of {name} ({len(learned.get(name, ()))} of {MIN_ROWS} to learn from)"
        for name in seen or ["any model"]
        if len(learned.get(name, ())) < MIN_ROWS
    ]
    if parts.unseen_shape is not None and len(parts.of_unseen_shape) <= READY_STEPS:
        lacking.append(f"steps of {parts.unseen_shape} ({len(parts.of_unseen_shape)} of {READY_STEPS + 1})")
    return lacking


def _analyser(rows: RecomputeRows, chosen: JudgedCell) -> RecomputeContender:
    def predict(step: PrefillStep) -> float:
        return float(chosen.regressor.predict(features(rows, [step]))[0])

    return RecomputeContender(
        name=ANALYSER,
        held_out=chosen.held_out,
        on_medians=chosen.on_medians,
        alone=chosen.alone,
        on_unseen_shape=chosen.on_unseen_shape,
        asking_s=_asking_s(predict, rows.steps[0]),
    )


def _law(parts: Split) -> RecomputeContender:
    """One law for each model, fitted to the analyser's training rows; none for a model without rows."""
    laws = {
        model: fit_step_time([(s.shape(), s.seconds) for s in steps], held_out_every=len(steps) + 1).law
        for model, steps in _by_model(parts.learned).items()
    }

    def predict(step: PrefillStep) -> float:
        return laws[step.model].step_s(step.shape())

    return _judged(LAW, predict, parts.held_out)


def _online(rows: RecomputeRows, parts: Split) -> RecomputeContender:
    """One online model for each model, taught the training rows that serving would learn from, in order.

    Of the unseen shape it sees steps until it answers, as serving would too, and is judged on the rest.
    """
    taught = {
        model: _taught(rows, model, steps)
        for model, steps in _by_model((*parts.learned, *parts.of_unseen_shape[:READY_STEPS])).items()
    }

    def predict(step: PrefillStep) -> float:
        return taught[step.model].step_s(step.shape())

    return _judged(ONLINE, predict, parts.held_out, parts.of_unseen_shape[READY_STEPS:])


def _taught(rows: RecomputeRows, model: str, steps: Iterable[PrefillStep]) -> StepTimeModel:
    taught = StepTimeModel(rows.model(model))
    for index, step in enumerate(steps):
        if taught.wants(index):
            taught.observe(step.shape(), step.seconds)
    return taught


def _machine(parts: Split) -> RecomputeContender:
    """The best possible: each configuration's own median, known in hindsight."""
    known = {step.configuration: step.seconds for step in medians((*parts.held_out, *parts.of_unseen_shape))}
    found = _judged(MACHINE, lambda step: known[step.configuration], parts.held_out, parts.of_unseen_shape)
    return replace(found, on_medians=None, asking_s=None)


def _judged(
    name: str, predict: Predict, held_out: Sequence[PrefillStep], unseen: Sequence[PrefillStep] = ()
) -> RecomputeContender:
    def error_on(steps: Iterable[PrefillStep]) -> float | None:
        return mape((step.seconds, predict(step)) for step in steps)

    return RecomputeContender(
        name=name,
        held_out=error_on(held_out),
        on_medians=error_on(medians(held_out)),
        alone=error_on(step for step in held_out if step.batch == 1),
        on_unseen_shape=error_on(unseen),
        asking_s=_asking_s(predict, held_out[0]),
    )


def _asking_s(predict: Predict, step: PrefillStep) -> float:
    started = time.perf_counter()
    for _ in range(_ASKED):
        predict(step)
    return (time.perf_counter() - started) / _ASKED


def _by_model(steps: Iterable[PrefillStep]) -> Mapping[str, Sequence[PrefillStep]]:
    found: dict[str, list[PrefillStep]] = {}
    for step in steps:
        found.setdefault(step.model, []).append(step)
    return found
