"""The paper's random forest over the features of requests, and its rule of learning."""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError

Rows: TypeAlias = npt.NDArray[np.float32]
Tokens: TypeAlias = npt.NDArray[np.float64]

TREES = 20
"""A hundred, the usual number, has no smaller error here, and would be fitted every three minutes of every run."""
_FOREST = {
    "num_threads": 1,
    "verbose": -1,
    "deterministic": True,
    "force_row_wise": True,
    "min_data_in_leaf": 5,
    "seed": 0,
    "boosting": "rf",
    "objective": "regression",
    "num_leaves": 1024,
    "bagging_freq": 1,
    "bagging_fraction": 0.632,  # distinct rows of a bootstrap sample: 1 - 1 / e
}
_LEAST_ERROR_TOKENS, _LEAST_ERROR_SHARE = 10.0, 0.1


def worth_learning(predicted_tokens: float, output_tokens: int) -> bool:
    """Whether an answer was predicted badly enough to be learned from. Source: Magnus, continuous learning."""
    error = abs(predicted_tokens - output_tokens)
    return error > _LEAST_ERROR_TOKENS and error > _LEAST_ERROR_SHARE * output_tokens


class LengthForest:
    """Mean tokens of answers, by a random forest. Source: Magnus, generation length predictor (spec 2.3)."""

    def __init__(self, rows: Rows, tokens: Tokens) -> None:
        """Fit to (rows, features) and (rows,), at least two rows. Seconds for 20,000 rows; one thread."""
        # Fitted to differences from the mean: trees of LightGBM's that find no split answer 0.
        self._mean = float(tokens.mean())
        library = lightgbm()
        self._booster: Any = library.train(_FOREST, library.Dataset(rows, tokens - self._mean), TREES)

    def ask(self, rows: Rows) -> Tokens:
        """Predicted tokens, (rows,), at least 1. 25 to 60 us for one row."""
        found: Tokens = np.maximum(self._booster.predict(rows, num_threads=1) + self._mean, 1.0)
        return found


def lightgbm() -> Any:
    """The library; a ConfigError that says what to install where it is missing. It takes a second to import."""
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"Magnus's predictor needs LightGBM ({error}); accepted: pip install lightgbm, and libgomp, which some "
            "systems have as libgomp1"
        ) from error
