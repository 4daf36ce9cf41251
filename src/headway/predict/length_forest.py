"""Forests that answer with tokens: fitted and asked through LightGBM, never through scikit-learn."""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headway.core.length_estimate import TAIL
from headway.errors import ConfigError
from headway.predict.length_settings import LengthSettings

Rows: TypeAlias = npt.NDArray[np.float32]
Tokens: TypeAlias = npt.NDArray[np.float64]

_COMMON = {"num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True}
_QUANTILE = {"objective": "quantile", "num_leaves": 31, "learning_rate": 0.1}
_RANDOM = {
    "boosting": "rf",
    "objective": "regression",
    "num_leaves": 1024,
    "bagging_freq": 1,
    "bagging_fraction": 0.632,  # distinct rows of a bootstrap sample: 1 - 1 / e
}


class LengthForest:
    """Tokens at the low end, in the middle and at the high end, before the interval is calibrated.

    `quantile`: boosted trees for the 0.1, 0.5 and 0.9 quantiles of the logarithm, so that errors count in
    proportion. `rf`: one random forest's mean, three times: its interval comes from calibration alone.
    Source: Magnus (spec 2.3) for the forest; Koenker and Bassett 1978 for the quantile loss.
    """

    def __init__(self, rows: Rows, tokens: Tokens, settings: LengthSettings) -> None:
        """Fits: (rows, features) and (rows,), at least one row. Seconds for 20,000 rows; one thread."""
        own = {**_COMMON, "min_data_in_leaf": settings.min_leaf, "seed": settings.seed}
        self._logarithm = settings.forest == "quantile"
        # A random forest is fitted to differences from the mean: trees of LightGBM's that find no split answer 0.
        self._mean = float(tokens.mean())
        target = np.log(tokens) if self._logarithm else tokens - self._mean
        variants: list[dict[str, object]] = [dict(_RANDOM)]
        if self._logarithm:
            variants = [{**_QUANTILE, "alpha": alpha} for alpha in (TAIL, 0.5, 1 - TAIL)]
        library = lightgbm()
        self._boosters: list[Any] = [
            library.train({**own, **variant}, library.Dataset(rows, target), settings.trees)
            for variant in variants
        ]

    def ask(self, rows: Rows) -> Tokens:
        """(rows, 3): low, middle and high tokens, ascending, at least 1. 25 to 60 us a booster for one row."""
        answers = np.stack([booster.predict(rows, num_threads=1) for booster in self._boosters], axis=1)
        answers = np.exp(answers) if self._logarithm else answers + self._mean
        answers.sort(axis=1)  # quantiles fitted apart may cross
        found: Tokens = np.maximum(answers, 1.0)
        return found if self._logarithm else np.repeat(found, 3, axis=1)


def lightgbm() -> Any:
    """The library; a ConfigError that says what to install where it is missing. It takes a second to import."""
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"learning answer lengths needs LightGBM ({error}); accepted: pip install 'headway[predict]', and libgomp, "
            "which some systems have as libgomp1"
        ) from error
