"""Gradient-boosted trees over request features, the rows they learn from, and the interval around them."""

from __future__ import annotations

import importlib
from collections import deque
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headway.core.length_estimate import TAIL, LengthEstimate
from headway.errors import ConfigError

FORESTS = ("quantile", "rf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSettings:
    """Which forest is fitted, from what, and when.

    `forest` is `quantile` (boosted trees for the median and both ends of the interval) or `rf` (the paper's random
    forest). A fit is due `period_s` after the last, if there is anything new, and earlier once half as many answers
    again were seen. The first `every_answer` answers are all learned from, like the paper's initial set (2,500
    requests a task); after that those alone that were off by more than `least_error_tokens` and `least_error_share` of
    the answer. Of `max_rows` rows (the paper's 20,000) a new one takes the place of any. Source: Magnus, continuous
    learning (spec 2.3); where the paper is silent the value is ours.
    """

    forest: str = "quantile"
    trees: int = 100
    min_leaf: int = 5
    period_s: float = 180.0
    least_error_tokens: float = 10.0
    least_error_share: float = 0.1
    first_answers: int = 50
    every_answer: int = 2500
    max_rows: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.forest not in FORESTS:
            raise ConfigError(f"forest is {self.forest!r}; accepted: {', '.join(FORESTS)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise ConfigError(f"{name} is {value}; accepted: {least} or more")
        if self.max_rows < self.first_answers:
            raise ConfigError(
                f"max_rows is {self.max_rows}; accepted: first_answers ({self.first_answers}) or more"
            )

    def worth_learning(self, predicted_tokens: float, output_tokens: int) -> bool:
        """Whether an answer was predicted badly enough to be learned from."""
        error = abs(predicted_tokens - output_tokens)
        return error > self.least_error_tokens and error > self.least_error_share * output_tokens


_LEAST: dict[str, float] = {
    "trees": 1,
    "min_leaf": 1,
    "period_s": 0.0,
    "least_error_tokens": 0.0,
    "least_error_share": 0.0,
    "first_answers": 20,
    "every_answer": 0,
    "seed": 0,
}


def parsed_settings(what: str, text: str) -> LengthSettings:
    """The settings of `key=value,...`; `what` names the predictor in the ConfigError for one that is not accepted."""
    defaults = LengthSettings()
    accepted = {field.name: type(getattr(defaults, field.name)) for field in fields(defaults)}
    values: dict[str, object] = {}
    for setting in filter(None, text.split(",")):
        key, given, value = setting.partition("=")
        if not given or key not in accepted:
            raise ConfigError(
                f"{what} has no setting {setting!r}; accepted (as key=value): {', '.join(sorted(accepted))}"
            )
        if key in values:
            raise ConfigError(f"{what} is given {key} twice: {text!r}")
        try:
            values[key] = accepted[key](value)
        except ValueError:
            raise ConfigError(
                f"{what}, {key} is {value!r}; accepted: a value of type {accepted[key].__name__}"
            ) from None
    return LengthSettings(**values)  # type: ignore[arg-type]


_FIRST_CAPACITY = 64


class LengthRows:
    """Up to `max_rows` rows of features and the tokens of their answers; when full, a new row replaces any.

    So an old row fades instead of falling off, and the unchosen ones of the start are not gone at once. Chance is
    seeded: the same answers leave the same rows. Memory: 4 bytes a feature and 8 an answer.
    """

    def __init__(self, num_features: int, max_rows: int, seed: int) -> None:
        capacity = min(_FIRST_CAPACITY, max_rows)
        self._features = np.empty((capacity, num_features), dtype=np.float32)
        self._tokens = np.empty(capacity, dtype=np.float64)
        self._max_rows = max_rows
        self._chance = np.random.default_rng(seed)
        self.num_rows = 0

    def add(self, row: Rows, tokens: float) -> None:
        """Keep a row, (features,). O(features), averaged."""
        if self.num_rows == self._max_rows:
            place = int(self._chance.integers(self._max_rows))
        else:
            place = self.num_rows
            self.num_rows += 1
            self._grow()
        self._features[place] = row
        self._tokens[place] = tokens

    def copy(self) -> tuple[Rows, Tokens]:
        """(rows, features) and (rows,), to be read while others are added."""
        return self._features[: self.num_rows].copy(), self._tokens[: self.num_rows].copy()

    def _grow(self) -> None:
        if self.num_rows > len(self._tokens):
            more = min(2 * len(self._tokens), self._max_rows) - len(self._tokens)
            self._features = np.pad(self._features, ((0, more), (0, 0)))
            self._tokens = np.pad(self._tokens, (0, more))


_ANSWERS = 500
_ENOUGH = 100
"""Answers predicted while serving that outweigh those held out of a fit."""
_REFRESH_ANSWERS = 50


class LengthInterval:
    """Moves each end of a forest's interval by the factor that leaves one answer in ten beyond it.

    Learned from answers that the forest had not seen: those held out of its fit at first, then the last 500 that
    were predicted while serving. Only these are what requests look like: the rows of continuous learning are
    chosen for their errors. It holds on average over all requests, not within each kind of them.
    Source: Romano et al. 2019, Conformalized quantile regression (arXiv 1905.03222), with ratios for differences.
    """

    def __init__(self) -> None:
        self._low = self._high = 0.0
        self._lived: deque[tuple[float, float]] = deque(maxlen=_ANSWERS)
        self._new = 0

    @property
    def settled(self) -> bool:
        """Whether enough answers were predicted while serving, so that held-out ones no longer count."""
        return len(self._lived) >= _ENOUGH

    def held_out(self, raw: Tokens, tokens: Tokens) -> None:
        """Answers left out of a fit, (rows, 3) and (rows,)."""
        if not self.settled:
            self._set(np.log(tokens / raw[:, 0]), np.log(tokens / raw[:, 2]))

    def ended(self, raw: Tokens, tokens: int) -> None:
        """An answer that was predicted as `raw`, (3,), has ended. 2 us, averaged."""
        self._lived.append((float(np.log(tokens / raw[0])), float(np.log(tokens / raw[2]))))
        self._new += 1
        if self.settled and self._new >= _REFRESH_ANSWERS:
            self._new = 0
            lows, highs = np.array(self._lived).T
            self._set(lows, highs)

    def estimate(self, raw: Tokens, limit: int) -> LengthEstimate:
        """The estimate of a request of this limit, from (3,): a whole number, within an interval that holds it.

        All within 1 and the limit.
        """
        low, middle, high = raw.tolist()
        most = float(max(1, limit))
        tokens = min(max(1.0, float(round(middle))), most)
        return LengthEstimate(
            tokens,
            low_tokens=min(max(1.0, low * float(np.exp(self._low))), tokens),
            high_tokens=max(min(high * float(np.exp(self._high)), most), tokens),
        )

    def state(self) -> Tokens:
        """What a file needs to keep, (1 + answers, 2): the factors' logarithms, then the ratios they come from."""
        return np.array([(self._low, self._high), *self._lived])

    def restore(self, state: Tokens) -> None:
        """Take over what `state` returned."""
        self._low, self._high = map(float, state[0])
        self._lived.clear()
        self._lived.extend((float(low), float(high)) for low, high in state[1:])

    def _set(self, lows: Tokens, highs: Tokens) -> None:
        self._low = float(np.quantile(lows, TAIL))
        self._high = float(np.quantile(highs, 1 - TAIL))


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
