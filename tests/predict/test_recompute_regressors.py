from __future__ import annotations

import sys

import pytest

from headway.errors import ConfigError
from headway.predict.recompute.regressors import (
    DEGREES,
    REGRESSORS,
    JudgedCell,
    RegressorCell,
    best_of,
    cells,
    features,
    judge_cells,
    require_scikit_learn,
)
from headway.predict.recompute.rows import split
from tests.predict.prefills import SIX, rows


def judged(regressor: str, degree: int, held_out: float, unseen: float = 0.0) -> JudgedCell:
    return JudgedCell(
        cell=RegressorCell(regressor, degree),
        regressor=None,
        held_out=held_out,
        on_medians=None,
        alone=None,
        on_unseen_shape=unseen,
    )


def test_the_papers_grid_has_80_cells() -> None:
    grid = cells()
    assert len(set(grid)) == len(grid) == 80
    assert {cell.regressor for cell in grid} == set(REGRESSORS)
    assert {cell.degree for cell in grid} == set(range(1, 11))
    assert str(grid[0]) == "LinearRegression, degree 1"


def test_the_features_are_layers_width_tokens_and_batch() -> None:
    measured = rows(SIX[-1:])
    step = measured.steps[0]
    assert features(measured, [step]).tolist() == [[16, 512, step.tokens, step.batch]]


def test_every_regressor_learns_something_from_the_grid() -> None:
    measured = rows()
    told: list[str] = []
    found = judge_cells(measured, split(measured), cells((2,)), lambda share, what: told.append(what))
    assert [str(cell.cell) for cell in found] == [f"{name}, degree 2" for name in REGRESSORS]
    assert told[0] == "fitting LinearRegression, degree 2"
    assert len(told) == len(REGRESSORS)
    errors = {cell.cell.regressor: cell for cell in found}
    # The mean of all steps, answered to everything, is off by several times.
    assert all(cell.held_out < 0.6 for cell in found)
    assert all(cell.alone is not None and cell.on_unseen_shape is not None for cell in found)
    assert errors["RandomForest"].held_out < 0.2


def test_a_polynomial_of_degree_4_finds_a_law_of_degree_4() -> None:
    # Layers x width x width x tokens x batch is of degree 5, but the two widths make any power of width linear.
    measured = rows(noise=0.0)
    (found,) = judge_cells(
        measured, split(measured), [RegressorCell("LinearRegression", 4)], lambda share, what: None
    )
    assert found.held_out < 0.05
    assert found.on_unseen_shape is not None
    assert found.on_unseen_shape < 0.05


def test_without_an_unseen_shape_there_is_no_error_on_it() -> None:
    measured = rows(SIX[:1])
    (found,) = judge_cells(measured, split(measured), [RegressorCell("Ridge", 1)], lambda share, what: None)
    assert found.on_unseen_shape is None


def test_the_choice_is_by_held_out_error_alone() -> None:
    better = judged("KNN", 3, held_out=0.1, unseen=0.9)
    assert best_of([judged("Ridge", 1, held_out=0.2, unseen=0.0), better]) is better


def test_among_equals_the_lower_degree_is_chosen() -> None:
    simple = judged("Ridge", 2, held_out=0.1)
    assert best_of([judged("KNN", 3, held_out=0.1), simple, judged("Ridge", 4, held_out=0.1)]) is simple


def test_without_scikit_learn_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match="is not installed; accepted: pip install scikit-learn"):
        require_scikit_learn()


def test_degrees_are_those_of_the_paper() -> None:
    assert (DEGREES[0], DEGREES[-1]) == (1, 10)
