"""AdaptiveLLM's recompute analyser: finds which of 80 regressors predicts a prefill's time best."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.errors import ConfigError
from headway.predict.recompute.rows import PrefillStep, RecomputeRows, Split, medians
from headway.predict.steps.fitting import Array, mape

REGRESSORS = (
    "LinearRegression",
    "DecisionTree",
    "RandomForest",
    "Ridge",
    "Lasso",
    "ElasticNet",
    "GradientBoosting",
    "KNN",
)
DEGREES = tuple(range(1, 11))
QUICK_DEGREES = (1, 2, 3)
_PENALTY = 1e-4
"""Penalty of Lasso and ElasticNet. The target is in seconds, so scikit-learn's 1.0 would always predict the mean."""

Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, order=True)
class RegressorCell:
    """One of the 80: a regressor on a polynomial of the four features."""

    regressor: str
    degree: int

    def __str__(self) -> str:
        return f"{self.regressor}, degree {self.degree}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A fitted cell and its MAPE on held-out steps, their medians, single prompts, and the unseen shape.

    None where there is nothing to judge by.
    """

    cell: RegressorCell
    regressor: Any
    held_out: float
    on_medians: float | None
    alone: float | None
    on_unseen_shape: float | None


def require_scikit_learn() -> None:
    """Raise ConfigError, naming the extra, if scikit-learn is missing; called before anything is measured."""
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("scikit-learn is not installed; accepted: pip install scikit-learn") from error


def cells(degrees: Sequence[int] = DEGREES) -> list[RegressorCell]:
    """The grid, regressor by regressor; the paper's is 8 x 10."""
    return [RegressorCell(regressor, degree) for regressor in REGRESSORS for degree in degrees]


def judge_cells(
    rows: RecomputeRows, parts: Split, grid: Sequence[RegressorCell], tell: Tell
) -> list[JudgedCell]:
    """Fit every cell to the same training rows, and judge it on the same others, in the grid's order.

    A few minutes for all 80 and 2,000 rows on two cores.

    Source: AdaptiveLLM, recompute-cost analyser: scikit-learn's polynomial features without bias, standardised, then
    the regressor; squared errors in seconds.
    """
    require_scikit_learn()
    judged = []
    for done, cell in enumerate(grid):
        tell(done / len(grid), f"fitting {cell}")
        judged.append(_judge(rows, parts, cell))
    return judged


def best_of(judged: Sequence[JudgedCell]) -> JudgedCell:
    """The cell with the least error on held-out configurations; among equals the one of lower degree.

    The unseen shape plays no part in the choice, so it judges the chosen cell fairly.
    """
    return min(judged, key=lambda found: (found.held_out, found.cell.degree, found.cell.regressor))


def features(rows: RecomputeRows, steps: Sequence[PrefillStep]) -> Array:
    """Layers, hidden size, tokens of a prompt, batch size; (steps, 4). Source: AdaptiveLLM, recompute-cost analyser."""
    sizes = {model.name: (model.num_layers, model.hidden_size) for model in rows.models}
    return np.array([(*sizes[step.model], step.tokens, step.batch) for step in steps], dtype=float)


def _judge(rows: RecomputeRows, parts: Split, cell: RegressorCell) -> JudgedCell:
    regressor = _pipeline(cell)
    with warnings.catch_warnings():
        # Columns of a high degree are nearly parallel; the table shows what that does.
        warnings.simplefilter("ignore")
        regressor.fit(features(rows, parts.learned), np.array([step.seconds for step in parts.learned]))

    def error_on(steps: Sequence[PrefillStep]) -> float | None:
        if not steps:
            return None
        predicted = regressor.predict(features(rows, steps))
        return mape(zip((step.seconds for step in steps), map(float, predicted), strict=True))

    held_out = error_on(parts.held_out)
    assert held_out is not None
    return JudgedCell(
        cell=cell,
        regressor=regressor,
        held_out=held_out,
        on_medians=error_on(medians(parts.held_out)),
        alone=error_on([step for step in parts.held_out if step.batch == 1]),
        on_unseen_shape=error_on(parts.of_unseen_shape),
    )


def _pipeline(cell: RegressorCell) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    polynomial = PolynomialFeatures(cell.degree, include_bias=False)
    return make_pipeline(polynomial, StandardScaler(), _regressor(cell.regressor))


def _regressor(name: str) -> Any:
    """scikit-learn's regressor with its default settings."""
    from sklearn import ensemble, linear_model, neighbors, tree

    made: dict[str, Callable[[], Any]] = {
        "LinearRegression": linear_model.LinearRegression,
        "DecisionTree": lambda: tree.DecisionTreeRegressor(random_state=0),
        "RandomForest": lambda: ensemble.RandomForestRegressor(random_state=0),
        "Ridge": linear_model.Ridge,
        "Lasso": lambda: linear_model.Lasso(_PENALTY),
        "ElasticNet": lambda: linear_model.ElasticNet(_PENALTY),
        "GradientBoosting": lambda: ensemble.GradientBoostingRegressor(random_state=0),
        "KNN": neighbors.KNeighborsRegressor,
    }
    return made[name]()
