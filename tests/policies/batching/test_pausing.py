"""Which jobs may pause, by hand: a longest step of 2 s, at 10 s."""

from __future__ import annotations

import pytest

from headway.core.slo import Slo
from headway.core.view import StepView
from headway.policies.batching.paced import pausing
from headway.policies.batching.step_shapes import shape_of_decodes
from headway.policies.order.arrival import Arrival
from headway.policies.order.on_time import OnTime
from tests.policies.instance import LinearCost
from tests.strategies import decoding, ids


@pytest.mark.parametrize(
    ("tbt_s", "first_token_s", "in_hurry"),
    [(2.0, 10.0, True), (3.9, 10.0, True), (4.0, 10.0, False), (4.0, 2.2, False), (4.0, 2.0, True)],
)
def test_who_has_a_pace_twice_as_long_and_is_ahead_of_it_may_pause(
    tbt_s: float, first_token_s: float, in_hurry: bool
) -> None:
    # Three tokens are there. The fourth, a tenth of a second of work, is due three paces after the first: if that was
    # at 2.2 s at 14.2, which leaves more than a pace; at 2.0 it leaves less.
    job = decoding("x", slo=Slo(tbt_s=tbt_s), first_token_s=first_token_s, output=3, limit=4)
    order = OnTime(LinearCost())
    order.add(job)
    order.remove(job)
    found = pausing(StepView(now_s=10.0), order, [job], 2.0)
    assert bool(found.hurried) is in_hurry
    assert bool(found.others) is not in_hurry


def test_an_order_that_knows_nobody_late_lets_those_without_a_target_pause_by_rank() -> None:
    others = [decoding(name, arrival_s=arrival_s) for name, arrival_s in (("b", 2.0), ("a", 1.0))]
    slow = decoding("x", slo=Slo(tbt_s=99.0), first_token_s=10.0)
    view = StepView(now_s=10.0, tokens_a_decode=3)
    found = pausing(view, Arrival(), [others[0], slow, others[1]], 2.0)
    assert (ids(found.hurried), ids(found.others)) == (["x"], ["b", "a"])
    for count in range(3):
        assert found.shape(count) == shape_of_decodes([slow, *found.others[:count]], 3)
