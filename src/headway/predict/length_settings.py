"""How answer lengths are learned: the settings of every predictor that learns."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
