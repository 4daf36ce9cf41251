"""Every preset, and every combination of built-in parts, through the same checks."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.batching import BATCHINGS
from headway.policies.eviction import EVICTIONS
from headway.policies.leaving import LEAVINGS
from headway.policies.order import ORDERS
from headway.policies.presets import Preset, known_presets
from tests.policies.contract import (
    MakePolicy,
    Workload,
    check_blind_to_true_lengths,
    check_drains,
    check_repeats,
    from_preset,
    workloads,
)
from tests.strategies import FEW

SETTINGS = {
    "decode-first": ["", ":token_budget=5", ":head_room=1"],
    "prefill-first": ["", ":host_room=true"],
    "swapped-or-waiting": ["", ":skip_misfit=true"],
    "request-level": ["", ":batch_size=2,reserve=false"],
}
"""Other settings a batching is tried with."""
EVICTION_SETTINGS = {
    "swap": [":serial=true", ":fallback=false"],
    "cheapest": ["", ":serial=true,min_residency=2"],
}
"""The same for the evictions that plan ahead."""
assert {"recompute", *EVICTION_SETTINGS} == set(EVICTIONS)
NEEDS_SETTINGS = {"queue-bound": "queue-bound:max_waiting=3,max_waiting_tokens=30,max_age_s=9"}
"""Leaving rules that their name alone does not describe."""
MAY_IDLE = ("iteration-level", "request-level")
"""Batchings that reserve for, or wait for, a member that is not ready; the others then start someone else."""


def combinations() -> list[Preset]:
    """Every order with every batching, and every batching (with its settings) with every other eviction."""
    batchings = [name + setting for name in BATCHINGS for setting in SETTINGS.get(name, [""])]
    evictions = [name + setting for name in EVICTION_SETTINGS for setting in EVICTION_SETTINGS[name]]
    parts = [(order, batching, "recompute") for order, batching in product(ORDERS, BATCHINGS)]
    # The orders in turn: each eviction meets each of them, if not with each batching.
    parts += [(o, *b) for o, b in zip(cycle(ORDERS), product(batchings, evictions), strict=False)]
    return [
        Preset(name="+".join(row), order=row[0], batching=row[1], eviction=row[2], summary="", source="")
        for row in parts
    ]


ROWS = [*known_presets().values(), *combinations()]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
any_leaving = st.lists(st.sampled_from(sorted(LEAVINGS)), unique=True).map(
    lambda names: tuple(NEEDS_SETTINGS.get(name, name) for name in names)
)


def with_leaving(row: Preset, leaving: tuple[str, ...]) -> MakePolicy:
    """Fresh policies of a row with more leaving rules."""
    return from_preset(replace(row, leaving=(*row.leaving, *leaving)))


@every_row
@FEW
@given(workload=workloads(), leaving=any_leaving)
def test_plans_keep_the_rules_and_every_request_ends(
    row: Preset, workload: Workload, leaving: tuple[str, ...]
) -> None:
    may_idle = row.batching.startswith(MAY_IDLE)
    check_drains(with_leaving(row, leaving), workload, may_idle=may_idle)


@every_row
@FEW
@given(workload=workloads(), leaving=any_leaving)
def test_the_same_events_give_the_same_plans(
    row: Preset, workload: Workload, leaving: tuple[str, ...]
) -> None:
    keyed = row.order != "arrival"
    check_repeats(with_leaving(row, leaving), workload, any_order=keyed)


@every_row
@FEW
@given(workload=workloads(), leaving=any_leaving, seed=st.integers(0, 99))
def test_no_plan_depends_on_the_length_of_an_unfinished_output(
    row: Preset, workload: Workload, leaving: tuple[str, ...], seed: int
) -> None:
    check_blind_to_true_lengths(with_leaving(row, leaving), workload, seed)
