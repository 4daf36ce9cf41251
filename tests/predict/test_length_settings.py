from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.predict.length_settings import LengthSettings, parsed_settings


def test_the_papers_rule_by_hand() -> None:
    settings = LengthSettings()
    # Off by more than 10 tokens, and by more than 10 % of the answer.
    assert settings.worth_learning(100, 112)
    assert not settings.worth_learning(102, 112)
    assert not settings.worth_learning(1000, 1111)  # 111 of 1,111 is 9.99 %
    assert settings.worth_learning(1000, 1112)
    assert settings.worth_learning(112, 100)
    assert not settings.worth_learning(12, 3)


def test_settings_are_read_with_their_types() -> None:
    read = parsed_settings("p", "forest=rf,trees=7,period_s=2.5")
    assert read == LengthSettings(forest="rf", trees=7, period_s=2.5)
    assert parsed_settings("p", "") == LengthSettings()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("depth=3", "p has no setting 'depth=3'; accepted"),
        ("trees", "p has no setting 'trees'"),
        ("trees=1,trees=2", "given trees twice"),
        ("trees=many", "p, trees is 'many'; accepted: a value of type int"),
        ("trees=0", "trees is 0; accepted: 1 or more"),
        ("period_s=nan", "period_s is nan"),
        ("forest=tall", "forest is 'tall'; accepted: quantile, rf"),
        ("first_answers=30,max_rows=29", "max_rows is 29"),
    ],
)
def test_what_is_not_accepted_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parsed_settings("p", text)
