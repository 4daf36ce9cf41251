"""Every preset, and every combination of built-in parts, through the same checks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.policies.batching import BATCHINGS
from headway.policies.eviction import EVICTIONS
from headway.policies.leaving import LEAVINGS
from headway.policies.order import ORDERS
from headway.policies.presets import Preset, build_policy, find_preset, known_presets
from tests.policies.contract import (
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
    "prefill-first": ["", ":host_room=true", ":max_padding_tokens=3"],
    "swapped-or-waiting": ["", ":skip_misfit=true,max_padding_tokens=0"],
    "request-level": ["", ":batch_size=2,reserve=false"],
    "top-jobs": ["", ":reserve=true", ":reserve_confidence=0.5"],
    "within-budgets": ["", ":token_budget=3,width=2,patience_s=4"],
    "elastic": ["", ":elastic=false,width=2", ":statistic=p90,window=2"],
    "paced": ["", ":share=0.5,short_steps=false"],
}
"""Other settings a batching is tried with."""
EVICTION_SETTINGS = {
    "recompute": ["", ":free_block_each=true"],
    "swap": [":serial=true", ":fallback=false,free_block_each=true"],
    "cheapest": ["", ":serial=true,min_residency=2,free_block_each=true", ":urgent=true"],
    "proactive": ["", ":min_residency=0,max_preemptions=2,idle_jobs=1"],
}
"""The same for the evictions."""
REFUSED = {(batching, "cheapest:urgent=true") for batching in ("prefill-first", "elastic")}
"""A batching that takes swapped jobs back before those they left for."""
NEEDS_SETTINGS = {"queue-bound": "queue-bound:max_waiting=3,max_waiting_tokens=30,max_age_s=9"}
"""Leaving rules that their name alone does not describe."""
TRUSTING = "governed:trusted_at_first=true,min_answers=2"
"""An order that goes by predictions until the second answer, and then as they deserve."""
FIFO = ("arrival", "skip-join-mlfq", "governed", "on-time")
"""Orders with queues in which simultaneous arrivals stand as they were added."""
MAY_IDLE = ("iteration-level", "request-level", "top-jobs:reserve=true")
"""Batchings that reserve for, or wait for, a member that is not ready; the others then start someone else."""


def specs(parts: Collection[str], settings: Mapping[str, Sequence[str]]) -> list[str]:
    """Each part by name, with each of its settings."""
    return [name + setting for name in parts for setting in settings.get(name, [""])]


def combinations() -> list[tuple[str, str, str]]:
    """Orders in turn, each batching with each eviction, in all their settings: pairs meet, not all threes."""
    evictions = specs(EVICTIONS, EVICTION_SETTINGS)
    rows = []
    for number, batching in enumerate(BATCHINGS):
        pairs = [
            (one, other)
            for one, other in product(specs([batching], SETTINGS), evictions)
            if (batching, other) not in REFUSED
        ]
        # One with few settings meets some evictions twice, so that it meets all orders.
        pairs += pairs[: max(0, len(ORDERS) - len(pairs))]
        orders = deque(ORDERS)
        orders.rotate(number)
        rows += [(order, *pair) for order, pair in zip(cycle(orders), pairs, strict=False)]
    return rows


def all_rows() -> list[Preset]:
    """Every preset and every combination, but none that a row before it has the parts of."""
    rows = list(known_presets().values())
    trusting = [
        (TRUSTING, *pair) for pair in product(("top-jobs:reserve_confidence=0.5", "decode-first"), EVICTIONS)
    ]
    for order, batching, eviction in (*combinations(), *trusting):
        name = f"{order}+{batching}+{eviction}"
        rows.append(
            Preset(name=name, order=order, batching=batching, eviction=eviction, summary="", source="")
        )
    by_parts = {(row.order, row.batching, row.eviction, row.leaving): row for row in reversed(rows)}
    return list(reversed(by_parts.values()))


ROWS = all_rows()
any_leaving = st.lists(st.sampled_from(sorted(LEAVINGS)), unique=True).map(
    lambda names: tuple(NEEDS_SETTINGS.get(name, name) for name in names)
)


@pytest.mark.parametrize(("batching", "eviction"), sorted(REFUSED))
def test_jobs_are_not_swapped_out_for_those_before_which_they_come_back(batching: str, eviction: str) -> None:
    with pytest.raises(ConfigError, match="swaps jobs out for those that wait, before which batching"):
        build_policy(find_preset("vllm", batching=batching, eviction=eviction))


def test_every_part_meets_every_part_of_another_kind() -> None:
    met = set[tuple[str, str]]()
    for row in ROWS:
        parts = [spec.partition(":")[0] for spec in (row.order, row.batching, row.eviction)]
        met |= set(permutations(parts, 2))
    kinds = (list(ORDERS), list(BATCHINGS), list(EVICTIONS))
    assert {pair for one, other in permutations(kinds, 2) for pair in product(one, other)} <= met


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@FEW
@given(workload=workloads(), leaving=any_leaving, seed=st.integers(0, 99))
def test_plans_keep_the_rules_and_repeat_and_know_no_length_of_an_unfinished_output(
    row: Preset, workload: Workload, leaving: tuple[str, ...], seed: int
) -> None:
    make = from_preset(row, leaving)
    run = check_drains(make, workload, may_idle=row.batching.startswith(MAY_IDLE))
    check_repeats(run, make, workload, any_order=not row.order.startswith(FIFO))
    check_blind_to_true_lengths(run, make, workload, seed)
