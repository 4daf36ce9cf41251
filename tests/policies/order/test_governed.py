from __future__ import annotations

from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.eviction.proactive import Foreseeing
from headway.policies.order.arrival import Arrival
from headway.policies.order.governed import Governed
from headway.policies.order.predicted_remaining import PredictedRemaining
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.protocols import Governing, Learning, Order, Predicting
from tests.policies.contract import jobs_held_by
from tests.policies.order.per_token import PerToken, exactly
from tests.policies.order.test_index_properties import Desk, moves
from tests.strategies import UNTIMED, decoding, ids, make_job


def governed(**settings: Any) -> Governed:
    return Governed(PerToken(), **{"tail": 0.6, **settings})


def teach(order: Governed, pairs: list[tuple[float, int]]) -> None:
    """Let answers end: what was predicted of each, and what it came to."""
    for number, (predicted, output) in enumerate(pairs):
        job = make_job(f"t{number}", predicted_length=exactly(predicted))
        order.add(job)
        order.remove(job)
        job.num_output_tokens = output
        order.finished(job)
        order.end(job)


RIGHT = [(float(tokens), tokens) for tokens in range(10, 240)]
REVERSED = [(float(tokens), 300 - tokens) for tokens in range(10, 240)]


def test_which_protocols_it_keeps() -> None:
    order = governed()
    assert isinstance(order, Foreseeing)
    assert isinstance(order, Governing)
    assert isinstance(order, Learning)
    assert isinstance(PredictedRemaining(), Predicting)
    assert not isinstance(PredictedRemaining(), Governing)
    assert not isinstance(Arrival(), Predicting | Learning)


def test_it_changes_over_when_predictions_prove_right_and_back_when_they_fail() -> None:
    # By the queues `long`, who came first at the same level, is first; by its prediction it is last.
    long, short = (
        make_job("long", limit=999, predicted_length=exactly(400)),
        make_job("short", limit=999, predicted_length=exactly(4)),
    )
    order = governed()
    order.add(long)
    order.add(short)
    assert not order.trusts_predictions
    assert ids(order.top(2, 0.0)) == ids(order.rank([short, long], 0.0)) == ["long", "short"]
    teach(order, RIGHT)
    assert order.trusts_predictions
    assert (order.quality.tau, order.quality.coverage) == (1.0, 1.0)
    assert ids(order.top(2, 0.0)) == ids(order.rank([long, short], 0.0)) == ["short", "long"]
    teach(order, REVERSED)
    assert not order.trusts_predictions
    assert ids(order.top(2, 0.0)) == ["long", "short"]
    teach(order, RIGHT)
    assert order.trusts_predictions


def test_one_bad_answer_does_not_make_it_change_to_and_fro() -> None:
    # About the limit of trust: tau of 0.4 of exact and random pairs, for a thousand answers.
    rng = Random(3)
    order = governed()
    teach(order, RIGHT)
    changes = 0
    for _ in range(1000):
        tokens = rng.randint(10, 300)
        before = order.trusts_predictions
        teach(order, [(tokens if rng.random() < 0.66 else rng.uniform(10, 300), tokens)])
        changes += order.trusts_predictions != before
    assert changes <= 4


def test_answers_nobody_predicted_say_nothing_about_predictions() -> None:
    order = governed()
    for number in range(60):
        job = make_job(str(number))
        order.add(job)
        order.remove(job)
        order.finished(job)
        order.end(job)
    assert order.quality.num_answers == 0


def test_what_ran_while_the_queues_ranked_is_caught_up_with() -> None:
    # Keys 10 x 1600/8 and 10 x 1200/8; by the time that predictions are trusted `runs` has 100 to come.
    order = governed()
    runs, waits = (
        make_job(name, prompt=1, limit=9999, predicted_length=exactly(tokens))
        for name, tokens in (("runs", 1600), ("waits", 1200))
    )
    order.add(runs)
    order.add(waits)
    order.remove(runs)
    runs.num_output_tokens = runs.num_computed_tokens = 1500
    order.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens={runs: 1}))
    teach(order, RIGHT)
    assert ids(order.rank([waits, runs], 0.0)) == ["runs", "waits"]


def test_foresight_is_that_of_the_order_in_use() -> None:
    # Work 2 and 4 s by prediction. By the queues both are at level 1, so both come at once.
    order = governed()
    jobs = [
        make_job("a", prompt=1, limit=999, predicted_length=exactly(32)),
        make_job("b", prompt=1, limit=999, predicted_length=exactly(16)),
    ]
    for job in jobs:
        order.add(job)
    assert order.next_service_s(jobs, 0.0, 1) == [0.0, 0.0]
    assert order.next_change_s(StepView()) == inf
    teach(order, RIGHT)
    assert order.next_service_s(jobs, 0.0, 1) == [2.0, 0.0]
    assert order.next_change_s(StepView()) == -inf
    assert order.num_at_first(1) == 2


@pytest.mark.parametrize("settings", [{"tail": -1.0}, {"min_answers": 1}, {"least_tau": 2.0}])
def test_settings_are_those_of_its_parts(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Governed(**settings)


@st.composite
def predicted_jobs(draw: st.DrawFn) -> list[Job]:
    names = draw(st.lists(st.integers(0, 99), max_size=12, unique=True))
    return [
        make_job(
            f"{name:02}",
            prompt=draw(st.integers(1, 40)),
            limit=999,
            arrival_s=float(draw(st.integers(0, 9))),
            predicted_length=draw(st.none() | st.integers(1, 300).map(exactly)),
        )
        for name in names
    ]


@pytest.mark.parametrize("trusts", [False, True])
@UNTIMED
@given(jobs=predicted_jobs(), steps=moves)
def test_it_is_the_order_in_use_and_nothing_else(
    trusts: bool, jobs: list[Job], steps: list[tuple[str, int]]
) -> None:
    """Side by side with the plain order, through any sequence of moves."""
    plain: Order = PredictedRemaining(PerToken(), tail=0.6) if trusts else SkipJoinMlfq(PerToken())
    both = _Beside(governed(trusted_at_first=trusts), plain)
    desk = Desk(both, jobs)
    for kind, pick in steps:
        desk.move(kind, pick)
        now_s = 10.0
        assert both.one.top(99, now_s) == both.other.top(99, now_s)
        everybody = desk.waiting + desk.running
        assert both.one.rank(everybody, now_s) == both.other.rank(everybody, now_s)
    assert jobs_held_by(both.one) <= {*desk.waiting, *desk.running}


class _Beside:
    """Two orders that are told the same."""

    def __init__(self, one: Order, other: Order) -> None:
        self.one, self.other = one, other

    def __getattr__(self, name: str) -> Any:
        def tell(*args: Any) -> Any:
            getattr(self.other, name)(*args)
            return getattr(self.one, name)(*args)

        return tell


def test_an_answer_that_was_cut_short_teaches_nothing() -> None:
    order = governed()
    job = decoding("a", predicted_length=exactly(9.0))
    order.add(job)
    order.remove(job)
    order.end(job)
    assert order.quality.num_answers == 0
