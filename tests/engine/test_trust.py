from __future__ import annotations

import logging

import pytest

from headway.engine.step.counters import Counters, TrustWatch
from headway.policies.order.arrival import Arrival
from headway.policies.order.on_time import OnTime


def test_steps_without_trust_are_counted_and_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    order, counters = OnTime(), Counters()
    watch = TrustWatch(order, counters)
    watch.planned()
    assert (counters.distrusting_steps, counters.untimed_steps) == (
        1,
        0,
    )  # no answer has shown yet that they hold
    assert not caplog.messages  # what it starts with is no change
    order.quality.trusted = True
    order.steps.trusted = False
    watch.planned()
    watch.planned()
    assert (counters.distrusting_steps, counters.untimed_steps) == (1, 2)
    assert caplog.messages == [
        "predicted lengths hold again: scheduling goes by them",
        "predicted step times do not hold: scheduling goes without them until they do",
    ]
    order.steps.trusted = True
    watch.planned()
    assert caplog.messages[2:] == ["predicted step times hold again: scheduling goes by them"]


def test_nothing_is_counted_of_an_order_that_predicts_nothing() -> None:
    counters = Counters()
    TrustWatch(Arrival(), counters).planned()
    assert (counters.distrusting_steps, counters.untimed_steps) == (0, 0)
