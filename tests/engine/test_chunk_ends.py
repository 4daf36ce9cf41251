"""The ends of chunks that a policy caps, in the real scheduler."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.protocols import Order
from tests.engine.scripts import HearingEngine, assert_empty, give_encoder, image_request, scheduler, steps

pytestmark = pytest.mark.vllm

PROMPT_TOKENS = 200


@dataclass
class Capped(DecodeFirst):
    """Decode first, no prompt more than `cap` tokens a step."""

    cap: int = 1

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = super().plan(view, order, leaving)
        plan.chunk_cap = dict.fromkeys([*plan.run, *plan.admit], self.cap)
        return plan


def chunk_ends(built: Any, cap: int, *images: tuple[int, int]) -> list[int]:
    """The ends of the chunks of a prompt with images at these (offset, length)."""
    give_encoder(built, 1000)
    built.guard.policy.batching = Capped(cap=cap)
    request = image_request("a", PROMPT_TOKENS, *images)
    built.add_request(request)
    engine, ends = HearingEngine(built), []
    for _ in steps(engine, limit=PROMPT_TOKENS):
        engine.step()
        ends.append(request.num_computed_tokens)
    assert str(engine.endings()["a"].finish_reason) == "length"
    assert_empty(built)
    return [end for end in ends if end <= PROMPT_TOKENS]


@pytest.mark.parametrize(
    ("cap", "images", "ends"),
    [
        (60, [], [60, 120, 180, 200]),
        (60, [(40, 50)], [40, 100, 160, 200]),  # before it, then all of it
        (30, [(40, 50)], [30, 40, 90, 120, 150, 180, 200]),  # longer than the cap
        (60, [(60, 60)], [60, 120, 180, 200]),
        (60, [(0, 70), (70, 20), (100, 90)], [70, 100, 190, 200]),
    ],
)
def test_a_cap_cuts_no_item_that_is_to_be_computed_in_one_piece(
    cap: int, images: list[tuple[int, int]], ends: list[int]
) -> None:
    built = scheduler()
    built.scheduler_config.disable_chunked_mm_input = True
    assert chunk_ends(built, cap, *images) == ends


def test_other_items_are_cut_where_the_cap_is() -> None:
    assert chunk_ends(scheduler(), 60, (40, 50)) == [60, 120, 180, 200]


@pytest.mark.parametrize(("cap", "ends"), [(66, [66, 132, 196, 200]), (2, [*range(2, 197, 2), 200])])
def test_a_cap_leaves_a_drafter_what_it_reads_ahead(cap: int, ends: list[int]) -> None:
    built = scheduler(check=False)  # without a drafter nothing explains the shorter chunk
    built.num_prefill_lookahead = 4
    assert chunk_ends(built, cap) == ends
