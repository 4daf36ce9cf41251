from __future__ import annotations

import json
import logging
import struct
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.background import LearningThread, load_lengths, save_lengths
from headway.predict.lengths.choice import length_predictor
from headway.predict.lengths.predictor import ForestPredictor
from tests.predict.answers import answers

TAUGHT, UNSEEN = answers(300), answers(30, seed=1)
SPEC = "learned:trees=10"


def taught() -> ForestPredictor:
    predictor = length_predictor(SPEC)
    for facts, tokens in TAUGHT:
        predictor.predict(facts)
        predictor.observe(facts, tokens)
    predictor.refit()
    return predictor


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "learned.npz"
    save_lengths(path, taught())
    return path


@pytest.mark.parametrize("spec", ["hash:trees=10", "hash:trees=10,forest=rf"])
def test_a_loaded_predictor_answers_as_the_saved_one(spec: str, tmp_path: Path) -> None:
    predictor, loaded = length_predictor(spec), length_predictor(spec)
    for facts, tokens in TAUGHT:
        predictor.predict(facts)
        predictor.observe(facts, tokens)
    predictor.refit()
    save_lengths(tmp_path / "lengths", predictor)
    load_lengths(tmp_path / "lengths", loaded)
    assert loaded.num_answers == 300
    for facts, _ in UNSEEN:
        assert loaded.predict(facts) == predictor.predict(facts) is not None


def test_a_loaded_predictor_goes_on_learning(saved: Path) -> None:
    loaded = length_predictor(SPEC)
    load_lengths(saved, loaded)
    fits = loaded.num_fits
    for facts, tokens in answers(200, seed=2):
        loaded.predict(facts)
        loaded.observe(facts, tokens)
    assert loaded.num_fits > fits
    assert loaded.rows.num_rows == 500


def test_a_file_of_nothing_learned_is_a_start_from_nothing(tmp_path: Path) -> None:
    save_lengths(tmp_path / "empty", length_predictor(SPEC))
    loaded = length_predictor(SPEC)
    load_lengths(tmp_path / "empty", loaded)
    assert not loaded.ready


def test_a_file_of_a_few_answers_is_silent_until_there_are_enough(tmp_path: Path) -> None:
    spec = "learned:trees=5,first_answers=20"
    first, second = length_predictor(spec), length_predictor(spec)
    for facts, tokens in TAUGHT[:19]:
        first.observe(facts, tokens)
    save_lengths(tmp_path / "few", first)
    load_lengths(tmp_path / "few", second)
    assert second.predict(TAUGHT[19][0]) is None
    second.observe(*TAUGHT[19])
    assert (second.ready, second.rows.num_rows) == (True, 20)


def test_a_missing_file_and_one_of_other_features_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_lengths(tmp_path / "none", length_predictor(SPEC))
    with pytest.raises(ConfigError, match=r"learned from 'history'; this predictor uses 'hash/768/16\+4'"):
        load_lengths(saved, length_predictor("hash"))


def rewritten(saved: Path, path: Path, body: bytes | None = None, **changed: object) -> Path:
    """A copy with another body, or fields of the header replaced, or left out (None); the digest is right."""
    line, _, old = saved.read_bytes().partition(b"\n")
    body = old if body is None else body
    header = {**json.loads(line), "sha256": sha256(body).hexdigest(), **changed}
    header = {name: value for name, value in header.items() if value is not None}
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)
    return path


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"version": 2}, "has version 2; accepted: 1"),
        ({"format": "else"}, "is not a lengths file"),
        ({"num_answers": "many"}, r"is damaged \(Expected `int`, got `str`"),
        ({"num_rows": None}, "is damaged .*missing required field `num_rows`"),
        ({"more": 1}, "is damaged .*unknown field `more`"),
        ({"sha256": "0"}, "is damaged .*not what was written"),
        ({"num_rows": 299}, "is damaged .*bytes of numbers in place of"),
        ({"num_rows": -1}, "is damaged .*bytes of numbers in place of"),
        ({"num_ratios": 0}, "is damaged .*bytes of numbers in place of"),
        ({"num_features": 15}, "is damaged .*15 features in place of 14"),
        ({"body": b""}, "is damaged .*0 bytes of numbers in place of"),
    ],
)
def test_a_file_with_something_wrong_in_it_says_so(
    saved: Path, tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    path = rewritten(saved, tmp_path / "other", **changed)
    with pytest.raises(ConfigError, match=complaint):
        load_lengths(path, length_predictor(SPEC))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [(float("nan"), "without bound"), (float("inf"), "without bound"), (0.0, "less than")],
)
def test_numbers_that_cannot_be_are_refused(
    saved: Path, tmp_path: Path, answer: float, complaint: str
) -> None:
    body = bytearray(saved.read_bytes().partition(b"\n")[2])
    first_answer = 300 * 14 * 4
    body[first_answer : first_answer + 8] = struct.pack("<d", answer)
    path = rewritten(saved, tmp_path / "other", bytes(body))
    with pytest.raises(ConfigError, match=f"is damaged .*{complaint}"):
        load_lengths(path, length_predictor(SPEC))


@given(st.data())
def test_a_damaged_file_is_one_clear_error(saved: Path, data: st.DataObject) -> None:
    content = bytearray(saved.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 300))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path = saved.with_name("damaged")
    path.write_bytes(content)
    predictor, complaint = length_predictor(SPEC), None
    try:
        load_lengths(path, predictor)
    except ConfigError as error:
        complaint = str(error)
    if complaint is None:  # another digit of the number of answers seen: nothing else is left unchecked
        assert predictor.num_answers != 300
    else:
        assert str(path) in complaint
        assert predictor.rows.num_rows == 0


FEW = answers(60)
QUICK = "hash:trees=5,first_answers=20"


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def served() -> ForestPredictor:
    predictor = length_predictor(QUICK, inline=False)
    for facts, tokens in FEW:
        predictor.predict(facts)
        predictor.observe(facts, tokens)
    return predictor


def test_a_predictor_is_fitted_beside_its_requests_and_kept(tmp_path: Path) -> None:
    predictor, path = served(), tmp_path / "lengths"
    assert not predictor.ready
    with LearningThread(predictor, save_to=path, poll_s=0.01):
        wait_for(lambda: predictor.ready)
    loaded = length_predictor(QUICK)
    load_lengths(path, loaded)
    assert loaded.predict(FEW[0][0]) == predictor.predict(FEW[0][0]) is not None


def test_what_was_learned_since_the_last_fit_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    predictor = served()
    with LearningThread(predictor, save_to=path, poll_s=0.01):
        wait_for(lambda: predictor.ready)
        predictor.observe(*FEW[0])
    loaded = length_predictor(QUICK)
    load_lengths(path, loaded)
    assert loaded.num_answers == 61


def test_it_follows_the_clock_it_is_given() -> None:
    now_s = 0.0
    predictor = served()
    with LearningThread(predictor, clock=lambda: now_s, poll_s=0.01):
        wait_for(lambda: predictor.num_fits == 1)
        predictor.observe(*FEW[0])
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
