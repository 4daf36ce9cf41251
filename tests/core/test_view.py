from __future__ import annotations

import pytest

from headway.core.view import StepView
from tests.strategies import decoding, make_job


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_blocks_are_rounded_up(tokens: int, blocks: int) -> None:
    assert StepView(block_size=16).blocks(tokens) == blocks


@pytest.mark.parametrize(
    ("max_run", "max_resident", "residents", "seats"),
    [(4, 8, 0, 4), (4, 8, 3, 1), (8, 4, 3, 1), (4, 8, 4, 0), (4, 8, 6, 0)],
)
def test_seats_are_what_batch_width_and_worker_slots_leave(
    max_run: int, max_resident: int, residents: int, seats: int
) -> None:
    view = StepView(max_run=max_run, max_resident=max_resident)
    view.residents = [decoding(str(number)) for number in range(residents)]
    assert view.seats == seats


@pytest.mark.parametrize(("num_run", "seats"), [(4, 0), (3, 1), (1, 2), (0, 2)])
def test_those_that_pause_leave_a_place_in_the_step_and_keep_their_slot(num_run: int, seats: int) -> None:
    residents = [decoding(str(number)) for number in range(4)]
    view = StepView(max_run=4, max_resident=6, residents=residents)
    assert view.seats_beside(residents[:num_run]) == seats


def test_the_watermark_holds_only_beside_somebody_who_has_run() -> None:
    ran, back = decoding("a"), decoding("b")
    assert StepView(watermark_blocks=2, residents=[ran, back], returned=[back]).spare_blocks == 2
    assert StepView(watermark_blocks=2, residents=[back], returned=[back]).spare_blocks == 0


def test_nobody_is_admissible_until_an_engine_says_so() -> None:
    assert not StepView().admissible(make_job())
