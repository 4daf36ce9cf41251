from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.models.model_shape import ModelShape
from headway.predict.recompute.rows import (
    Configuration,
    PrefillStep,
    load_rows,
    medians,
    noise_of,
    split,
    unseen_shape,
    write_rows,
)
from tests.predict.prefills import SIX, model, rows
from tests.predict.shapes import batch


def test_a_step_knows_its_shape_and_what_its_repetitions_share() -> None:
    step = PrefillStep(model="4x256", tokens=24, batch=3, seconds=0.01)
    assert step.shape() == batch((24, 0), (24, 0), (24, 0))
    assert step.configuration == ("4x256", 24, 3)


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = rows(SIX[:2])
    write_rows(tmp_path / "new" / "rows.json", written)
    read = load_rows(tmp_path / "new" / "rows.json")
    assert read == written
    assert read.model("4x512").hidden_size == 512


def broken(change: dict[str, Any]) -> str:
    return json.dumps({"format": "headway-recompute-rows", "version": 1, **change})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("no json", "is not a rows file"),
        ("[]", "is not a rows file"),
        (broken({"format": "headway-cost"}), "accepted: one that `headway profile --recompute-grid` wrote"),
        (broken({"version": 2}), "is not a rows file"),
        (broken({}), "missing required field"),
        (broken({"surprise": 1}), "surprise"),
        (broken({}).replace("{", '{"machine": "\xe9", ', 1), "is not a rows file"),
    ],
)
def test_what_is_not_such_a_file_is_refused(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=complaint):
        load_rows(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_rows(tmp_path / "rows.json")


def test_steps_of_a_model_without_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_rows(path, rows(SIX[:2]))
    content = json.loads(path.read_text())
    content["models"] = content["models"][:1]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="has steps of '4x512', whose sizes it does not give"):
        load_rows(path)


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


def test_noise_is_the_mean_distance_from_the_median_by_hand() -> None:
    # The median is 2: distances of 1, 0 and 3, in the mean 4/3, two thirds of it.
    assert noise_of([1.0, 2.0, 5.0]) == pytest.approx(2 / 3)
