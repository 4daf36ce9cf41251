from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import CostModel
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.predict.models.known_models import model_shape
from headway.predict.steps.copies import CopyTimeModel, TransferModel, fit_transfer
from headway.predict.steps.learned import LearnedCost
from headway.predict.steps.step_time import StepTimeModel


def test_an_affine_law_is_found_again() -> None:
    law = TransferModel(start_s=2e-5, bytes_per_s=8e9)
    found = fit_transfer([(size, law.seconds(size)) for size in (2**power for power in range(16, 28))])
    assert found.start_s == pytest.approx(law.start_s)
    assert found.bytes_per_s == pytest.approx(law.bytes_per_s)


def test_a_start_is_never_negative() -> None:
    # Larger copies are slower by the byte here, which a straight line would start below 0 for.
    found = fit_transfer([(100, 1e-6), (200, 3e-6), (400, 8e-6)])
    assert found.start_s == 0
    assert found.bytes_per_s > 0


@pytest.mark.parametrize("rows", [[], [(100, 1.0)], [(100, 1.0), (100, 2.0)], [(100, 0.0), (200, 1.0)]])
def test_too_few_sizes_are_refused(rows: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="at least two sizes"):
        fit_transfer(rows)


def test_copies_that_do_not_grow_are_refused() -> None:
    with pytest.raises(ConfigError, match="did not take longer"):
        fit_transfer([(100, 2.0), (200, 1.0), (400, 0.5)])


def taught(*copies: tuple[int, float]) -> CopyTimeModel:
    """A model that has seen these copies: blocks and seconds."""
    model = CopyTimeModel()
    for num_blocks, seconds in copies:
        model.observe(num_blocks, seconds)
    return model


def test_before_the_first_copy_nothing_takes_time() -> None:
    assert [CopyTimeModel().seconds(blocks) for blocks in (0, 1, 99)] == [0.0, 0.0, 0.0]


def test_one_copy_tells_of_others_in_proportion() -> None:
    assert taught((4, 2.0)).seconds(8) == pytest.approx(4.0)
    assert taught((4, 2.0), (4, 2.0)).seconds(1) == pytest.approx(0.5)


@given(
    start_s=st.floats(0, 1),
    block_s=st.floats(1e-4, 1),
    sizes=st.lists(st.integers(1, 500), min_size=2, max_size=30, unique=True),
)
def test_a_law_is_found(start_s: float, block_s: float, sizes: list[int]) -> None:
    model = taught(*((size, start_s + block_s * size) for size in sizes))
    for size in (*sizes, 600):
        assert model.seconds(size) == pytest.approx(start_s + block_s * size, rel=1e-3)
    assert model.seconds(0) == 0.0


def test_no_part_of_it_is_negative() -> None:
    # Larger copies that take less than in proportion to a negative start, and less than smaller ones.
    assert taught((1, 0.1), (10, 10.0)).seconds(1) > 0
    falling = taught((1, 3.0), (10, 1.0))
    assert falling.seconds(100) == falling.seconds(1) > 0


def test_it_follows_a_link_that_has_become_slower() -> None:
    model = taught(*((size, 0.1 * size) for size in range(1, 60)))
    for size in range(1, 200):
        model.observe(1 + size % 60, 0.3 * (1 + size % 60))
    assert model.seconds(10) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("copy", [(0, 1.0), (3, 0.0), (3, -1.0)])
def test_what_cannot_be_a_copy_is_not_learned_from(copy: tuple[int, float]) -> None:
    assert taught(copy).seconds(5) == 0.0


def test_a_prior_is_what_it_says_until_it_has_faded() -> None:
    law = TransferModel(start_s=0.5, bytes_per_s=100.0)
    model = CopyTimeModel(law, block_bytes=50)
    assert model.seconds(10) == pytest.approx(0.5 + 10 * 0.5)
    for size in range(1, 400):
        model.observe(1 + size % 40, 2.0 * (1 + size % 40))
    assert model.seconds(10) == pytest.approx(20.0, rel=0.05)


@pytest.mark.parametrize(
    ("tokens", "mib", "round_trip_s"), [(20, 25, 4.37e-3), (340, 275, 48e-3)], ids=["2 blocks", "22 blocks"]
)
def test_a_swap_of_llama_13b_takes_whole_blocks_there_and_back(
    tokens: int, mib: int, round_trip_s: float
) -> None:
    # 2 x 40 layers x 5120 x 2 bytes = 800 KiB a token; 2 blocks of 16 = 25 MiB; 2 x 26.2 MB / 12 GB/s = 4.37 ms.
    block_bytes = 16 * model_shape("Llama-2-13b").kv_bytes_per_token
    num_blocks = StepView(block_size=16).blocks(tokens)
    assert num_blocks * block_bytes == mib * 2**20
    model = CopyTimeModel(TransferModel(start_s=0.0, bytes_per_s=12e9), block_bytes=block_bytes)
    assert 2 * model.seconds(num_blocks) == pytest.approx(round_trip_s, rel=1e-2)


def test_a_policys_cost_model_is_put_together() -> None:
    steps = StepTimeModel()
    cost: CostModel = LearnedCost(steps=steps, to_host=taught((2, 1.0)), to_device=taught((2, 3.0)))
    assert (cost.prefill_s(9), cost.swap_out_s(4), cost.swap_in_s(4)) == (0.0, 2.0, 6.0)
    assert LearnedCost(steps=steps).swap_out_s(4) == 0.0


def test_loads_from_a_store_are_learned_by_their_tokens_from_a_prior() -> None:
    link = TransferModel(start_s=1.0, bytes_per_s=10.0)
    cost = LearnedCost(steps=StepTimeModel(), from_store=CopyTimeModel(link, block_bytes=20))
    assert cost.load_s(0) == 0.0
    assert cost.load_s(3) == pytest.approx(1.0 + 3 * 2.0)
    # The store is half as fast as the link was thought to be.
    for tokens in (16, 64, 256) * 60:
        cost.from_store.observe(tokens, 1.0 + 4.0 * tokens)
    assert cost.load_s(100) == pytest.approx(401.0, rel=0.01)
    assert LearnedCost(steps=StepTimeModel()).load_s(9) == 0.0


def test_a_direction_not_seen_yet_costs_what_the_other_does() -> None:
    # At first victims only leave: half a round trip would make every swap look twice as good.
    cost = LearnedCost(steps=StepTimeModel(), to_host=taught((2, 1.0)))
    assert (cost.swap_out_s(4), cost.swap_in_s(4)) == (2.0, 2.0)
