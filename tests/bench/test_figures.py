"""One system against another: `bench/figures.py`, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import GOODPUT, MEAN_JCT, Runs, figures, gain, loss, versus
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.statistics import mean_of_known

SLO = Slo(ttft_s=1.0)
SHARES = st.floats(min_value=0.01, max_value=1.0)


def record(name: str, jct_s: float, *, shed: bool = False) -> Record:
    return Record(
        id=name,
        arrival_s=0.0,
        prompt_tokens=8,
        outcome=Outcome.SHED if shed else Outcome.FINISHED,
        output_tokens=1,
        first_token_s=None if shed else jct_s,
        finished_s=jct_s,
        slo=SLO,
    )


def test_more_goodput_and_less_time_are_gains() -> None:
    # A share of 0.9 in place of 0.6; 2 s in place of 3.
    assert (gain(GOODPUT, 0.9, 0.6), loss(GOODPUT, 0.9, 0.6)) == pytest.approx((1.5, -0.3))
    assert (gain(MEAN_JCT, 2.0, 3.0), loss(MEAN_JCT, 2.0, 3.0)) == pytest.approx((1.5, -1 / 3))
    assert loss(MEAN_JCT, 3.0, 2.0) == pytest.approx(0.5)


def test_what_was_not_measured_is_neither_gained_nor_lost() -> None:
    assert gain(GOODPUT, 0.5, 0.0) is None
    assert loss(GOODPUT, 0.0, 0.5) == 0.5
    assert gain(MEAN_JCT, None, 1.0) is loss(MEAN_JCT, None, 1.0) is loss(MEAN_JCT, 1.0, 0.0) is None
    assert mean_of_known([None, 1.0, 3.0]) == 2.0
    assert mean_of_known([None]) is None


@given(own=SHARES, other=SHARES)
def test_gain_and_loss_agree_on_who_is_ahead(own: float, other: float) -> None:
    for metric in (GOODPUT, MEAN_JCT):
        gained, lost = gain(metric, own, other), loss(metric, own, other)
        assert gained is not None
        assert lost is not None
        assert (gained > 1) == (lost < 0)
        assert gain(metric, other, own) == pytest.approx(1 / gained)


def test_seeds_are_compared_one_by_one_and_in_the_mean() -> None:
    own = Runs([[record("a", 1.0)], [record("a", 3.0)]]).summaries()
    other = Runs([[record("a", 4.0)], [record("a", 3.0)]]).summaries()
    # 4 over 1 and 3 over 3; 3.5 over 2.
    found = versus(MEAN_JCT, own, other)
    assert (found["by_seed"], found["spread"]) == ([4.0, 1.0], 3.0)
    assert (found["gain"], found["loss"]) == pytest.approx((1.75, 2 / 3.5 - 1))
    assert found["loss_by_seed"] == [-0.75, 0.0]


def test_figures_say_what_was_not_answered_and_how_each_class_did() -> None:
    runs = Runs([[record("a", 0.5), record("b", 9.0, shed=True)], [record("a", 0.5), record("b", 2.5)]])
    found = figures(runs, {SLO: "interactive", Slo(ttft_s=9.0): "patient"})
    # Half of the first seed's requests were given up; of four requests two were in time.
    assert (found["unanswered"], found["goodput"]) == (0.25, 0.5)
    assert found["goodput_by_class"] == {"interactive": 0.5}
    assert found["by_seed"][MEAN_JCT] == [0.5, 1.5]
    assert found["mean_jct_s"] == 1.0
