from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.predict.model_shape import ModelShape
from headway.predict.recompute_rows import Configuration, PrefillStep
from headway.predict.recompute_split import medians, split, unseen_shape
from tests.predict.prefills import SIX, model, rows


def configurations(steps: Iterable[PrefillStep]) -> set[Configuration]:
    return {step.configuration for step in steps}


@given(
    seed=st.integers(0, 1000), repetitions=st.integers(1, 3), models=st.sampled_from([SIX, SIX[:2], SIX[:1]])
)
@settings(max_examples=25, deadline=None)
def test_every_step_is_in_one_part_and_no_configuration_in_two(
    seed: int, repetitions: int, models: tuple[ModelShape, ...]
) -> None:
    measured = rows(models, repetitions)
    parts = split(measured, seed)
    together = (*parts.learned, *parts.held_out, *parts.of_unseen_shape)
    assert sorted(together, key=repr) == sorted(measured.steps, key=repr)
    assert not configurations(parts.learned) & configurations(parts.held_out)
    assert all(step.model == parts.unseen_shape for step in parts.of_unseen_shape)


def test_a_fifth_of_the_configurations_is_held_out() -> None:
    parts = split(rows())
    # 5 models x 9 lengths x 3 batches = 135 configurations of the shapes that are seen.
    assert len(configurations(parts.held_out)) == 27
    assert len(configurations(parts.learned)) == 108


def test_steps_stay_in_the_order_they_were_taken() -> None:
    measured = rows()
    place = {id(step): index for index, step in enumerate(measured.steps)}
    for part in (split(measured).learned, split(measured).held_out):
        places = [place[id(step)] for step in part]
        assert places == sorted(places)


def test_a_median_stands_for_the_repetitions_of_a_configuration() -> None:
    def step(tokens: int, seconds: float) -> PrefillStep:
        return PrefillStep(model="4x256", tokens=tokens, batch=1, seconds=seconds)

    steps = [step(16, 3.0), step(32, 5.0), step(16, 1.0), step(16, 90.0), step(32, 6.0)]
    assert medians(steps) == (step(16, 3.0), step(32, 5.5))


def test_another_seed_holds_out_others() -> None:
    assert split(rows(), 0).held_out != split(rows(), 1).held_out
    assert split(rows(), 0) == split(rows(), 0)


@pytest.mark.parametrize(
    ("models", "unseen"),
    [
        (SIX, "8x512"),
        ([model(4, 256), model(8, 256), model(16, 256)], "8x256"),
        ([model(4, 256), model(8, 256)], None),
        ([model(4, 256), model(4, 512), model(4, 1024)], None),
    ],
)
def test_the_unseen_shape_lies_between_others_in_depth(models: list[ModelShape], unseen: str | None) -> None:
    assert unseen_shape(models) == unseen
