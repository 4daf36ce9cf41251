"""The checks of `contract` fail on policies that are wrong on purpose."""

from __future__ import annotations

from copy import deepcopy

import pytest

from headway.errors import PlanError
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.reactive import Recompute
from headway.policies.order.arrival import Arrival as ArrivalOrder
from headway.policies.policy import Policy
from headway.policies.protocols import Batching, Leaving, Order
from tests.policies import bad
from tests.policies.contract import (
    Arrival,
    MakePolicy,
    Workload,
    check_blind_to_true_lengths,
    check_drains,
    check_repeats,
    drive,
)
from tests.policies.instance import small_engine

OUTPUTS = (6, 1, 4, 2, 5, 3)
WORKLOAD = Workload(
    tuple(
        Arrival(id=str(n), at_step=n // 3, prompt=4, output=output, limit=6, ready_after_steps=n % 2)
        for n, output in enumerate(OUTPUTS)
    ),
    small_engine(batch_width=2),
)
"""Six jobs in two bursts on two seats; every other one is ready a step late."""


def policy(order: Order | None = None, batching: Batching | None = None, *leaving: Leaving) -> MakePolicy:
    """Fresh policies of the given parts, stock vLLM's otherwise."""
    parts = (order or ArrivalOrder(), batching or DecodeFirst(), leaving)
    return lambda workload: Policy("bad", *(deepcopy(parts[:2])), Recompute(), deepcopy(parts[2]))


def check_some_seeds(make: MakePolicy) -> None:
    """Several permutations: not each of them tells true lengths apart."""
    run = drive(make(WORKLOAD), WORKLOAD)
    for seed in range(20):
        check_blind_to_true_lengths(run, make, WORKLOAD, seed)


def test_the_same_policy_without_the_fault_passes() -> None:
    run = check_drains(policy(), WORKLOAD, may_idle=False)
    check_repeats(run, policy(), WORKLOAD, any_order=False)
    check_some_seeds(policy())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (policy(batching=bad.Spoiled(bad.names_twice)), PlanError, "named more than once: \\['0'\\]"),
        (policy(None, None, bad.ShedsWhoStarted()), PlanError, "leave names .* resident"),
        (policy(batching=bad.Spoiled(bad.halves_tokens)), PlanError, "token_budget is .*; accepted: an int"),
        (policy(batching=bad.Spoiled(bad.pauses_all)), AssertionError, "still live after"),
        (policy(batching=bad.Spoiled(bad.turns)), AssertionError, "the same view gave two plans"),
        (policy(order=bad.NeverForgets()), AssertionError, "still holds"),
    ],
    ids=["names twice", "sheds who started", "halves tokens", "pauses all", "turns", "never forgets"],
)
def test_check_drains_notices(make: MakePolicy, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_drains(make, WORKLOAD)


def test_check_drains_notices_idling() -> None:
    late_first = Workload(
        (
            Arrival(id="0", at_step=0, prompt=1, output=1, limit=1, ready_after_steps=3),
            Arrival(id="1", at_step=0, prompt=1, output=1, limit=1),
        )
    )
    make = policy(batching=bad.Spoiled(bad.waits_for_first))
    check_drains(make, late_first)
    with pytest.raises(AssertionError, match=r"nothing ran although Job\('1'"):
        check_drains(make, late_first, may_idle=False)


def test_check_repeats_notices_ties_that_depend_on_the_order_of_adding() -> None:
    make = policy(order=bad.IgnoresTies())
    run = drive(make(WORKLOAD), WORKLOAD)
    check_repeats(run, make, WORKLOAD, any_order=False)
    with pytest.raises(AssertionError):
        check_repeats(run, make, WORKLOAD, any_order=True)


def test_check_blind_notices_a_true_length() -> None:
    def make(workload: Workload) -> Policy:
        lengths = {arrival.id: arrival.output for arrival in workload.arrivals}
        return policy(order=bad.ShortestOutput(lengths))(workload)

    with pytest.raises(AssertionError, match="depends on an output that has not ended"):
        check_some_seeds(make)
