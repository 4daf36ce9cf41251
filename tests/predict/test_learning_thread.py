from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.predict.forest_predictor import ForestPredictor
from headway.predict.learning_thread import LearningThread
from headway.predict.length_choice import length_predictor
from headway.predict.length_file import load_lengths
from tests.predict.answers import answers

TAUGHT = answers(60)
SPEC = "hash:trees=5,first_answers=20"


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def served() -> ForestPredictor:
    predictor = length_predictor(SPEC, inline=False)
    for facts, tokens in TAUGHT:
        predictor.predict(facts)
        predictor.observe(facts, tokens)
    return predictor


def test_a_predictor_is_fitted_beside_its_requests_and_kept(tmp_path: Path) -> None:
    predictor, path = served(), tmp_path / "lengths"
    assert not predictor.ready
    with LearningThread(predictor, save_to=path, poll_s=0.01):
        wait_for(lambda: predictor.ready)
    loaded = length_predictor(SPEC)
    load_lengths(path, loaded)
    assert loaded.predict(TAUGHT[0][0]) == predictor.predict(TAUGHT[0][0]) is not None


def test_what_was_learned_since_the_last_fit_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    predictor = served()
    with LearningThread(predictor, save_to=path, poll_s=0.01):
        wait_for(lambda: predictor.ready)
        predictor.observe(*TAUGHT[0])
    loaded = length_predictor(SPEC)
    load_lengths(path, loaded)
    assert loaded.num_answers == 61


def test_it_follows_the_clock_it_is_given() -> None:
    now_s = 0.0
    predictor = served()
    with LearningThread(predictor, clock=lambda: now_s, poll_s=0.01):
        wait_for(lambda: predictor.num_fits == 1)
        predictor.observe(*TAUGHT[0])
        time.sleep(0.1)
        assert predictor.num_fits == 1
        now_s = 181.0
        wait_for(lambda: predictor.num_fits == 2)


def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    predictor = served()
    with (
        caplog.at_level(logging.ERROR),
        LearningThread(predictor, save_to=tmp_path / "file" / "lengths", poll_s=0.01),
    ):
        wait_for(lambda: predictor.ready)
    assert [record.getMessage() for record in caplog.records] == [
        "the length predictor could not be saved; it goes on with what it has"
    ]
