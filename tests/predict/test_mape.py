from __future__ import annotations

import pytest

from headway.predict.mape import mape


def test_it_is_the_mean_of_what_predictions_are_off_by_over_what_was_measured() -> None:
    # |8/10 - 1| = 0.2 and |3/2 - 1| = 0.5.
    assert mape([(10.0, 8.0), (2.0, 3.0)]) == pytest.approx(0.35)


def test_of_nothing_there_is_none() -> None:
    assert mape([]) is None
