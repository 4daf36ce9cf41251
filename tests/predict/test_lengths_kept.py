from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.predict.lengths.kept import LengthKeeper, load_lengths, save_lengths
from headway.predict.lengths.predictor import LengthLearner
from tests.predict.answers import Answer, answers

TAUGHT, UNSEEN = answers(300), answers(30, seed=1)


def taught(rows: list[Answer] = TAUGHT) -> LengthLearner:
    learner = LengthLearner()
    for facts, tokens in rows:
        learner.observe(facts, tokens)
    return learner


def loaded(path: Path) -> LengthLearner:
    learner = LengthLearner()
    load_lengths(path, learner)
    return learner


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "lengths"
    save_lengths(path, taught())
    return path


def test_a_loaded_learner_answers_and_learns_as_the_saved_one(saved: Path) -> None:
    one, other = taught(), loaded(saved)
    assert other.num_answers == 300
    for facts, tokens in UNSEEN:
        assert other.predict(facts) == one.predict(facts) is not None
        one.observe(facts, tokens)
        other.observe(facts, tokens)
    assert list(other.applications.by_key) == list(one.applications.by_key)


def test_neither_tenants_nor_prompts_are_in_the_file(saved: Path) -> None:
    content = saved.read_bytes()
    for secret in (b"long", b"short", b"Say it", b"three times"):
        assert secret not in content


def test_a_file_of_few_answers_is_silent_until_there_are_enough(tmp_path: Path) -> None:
    for count, path in ((0, tmp_path / "none"), (9, tmp_path / "nine")):
        save_lengths(path, taught(TAUGHT[:count]))
        learner = loaded(path)
        assert learner.predict(TAUGHT[9][0]) is None
        learner.observe(*TAUGHT[9])
        assert learner.ready is (count == 9)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        loaded(tmp_path / "none")


def test_a_file_of_the_predictors_before_is_refused_with_what_to_do(tmp_path: Path) -> None:
    header = {"format": "headway-lengths", "version": 1, "kind": "history", "sha256": ""}
    (tmp_path / "old").write_bytes(json.dumps(header).encode() + b"\n")
    with pytest.raises(
        ConfigError, match=r"has version 1; accepted: 2 \(remove it, and lengths are learned anew\)"
    ):
        loaded(tmp_path / "old")


def rewritten(saved: Path, path: Path, **changed: Any) -> Path:
    """A copy with arrays or fields of the header replaced, or left out (None); the digest is right."""
    line, _, body = saved.read_bytes().partition(b"\n")
    with np.load(BytesIO(body)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays |= {name: value for name, value in changed.items() if name in arrays}
    archive_body = BytesIO()
    np.savez(archive_body, **{name: value for name, value in arrays.items() if value is not None})
    header = {**json.loads(line), "sha256": sha256(archive_body.getvalue()).hexdigest()}
    header |= {name: value for name, value in changed.items() if name not in arrays}
    path.write_bytes(json.dumps(header).encode() + b"\n" + archive_body.getvalue())
    return path


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"version": 3}, "has version 3; accepted: 2"),
        ({"format": "else"}, "is not a lengths file"),
        ({"more": 1}, "is damaged .*unknown field `more`"),
        ({"sha256": "0"}, "is damaged .*not what was written"),
        ({"text_weights": None}, "is damaged .*no text_weights"),
        ({"text_weights": np.zeros(3)}, r"is damaged .*text_weights is not \(263,\) finite numbers"),
        ({"answers": np.array(np.nan)}, r"is damaged .*answers is not \(\) finite numbers"),
        ({"keys": np.zeros((4, 16), np.uint8)}, "is damaged .*two keys are alike"),
        ({"counts": np.full(5, -1.0)}, "is damaged .*a variance or a count is below 0"),
        ({"errors": np.array(["x"] * 5)}, "is damaged .*errors is not"),
    ],
)
def test_a_file_with_something_wrong_in_it_says_so(
    saved: Path, tmp_path: Path, changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        loaded(rewritten(saved, tmp_path / "other", **changed))


@given(st.data())
def test_a_damaged_file_is_one_clear_error(saved: Path, data: st.DataObject) -> None:
    content = bytearray(saved.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 200))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    path = saved.with_name("damaged")
    path.write_bytes(content)
    learner = LengthLearner()
    with pytest.raises(ConfigError) as caught:
        load_lengths(path, learner)
    assert str(path) in str(caught.value)
    assert learner.num_answers == 0


def wait_for(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_what_is_learned_is_kept_beside_the_requests_and_at_the_end(tmp_path: Path) -> None:
    learner, path = taught(TAUGHT[:60]), tmp_path / "lengths"
    with LengthKeeper(learner, path, period_s=0.01):
        wait_for(path.exists)
        learner.observe(*UNSEEN[0])
    again = loaded(path)
    assert again.num_answers == 61
    assert again.predict(UNSEEN[1][0]) == learner.predict(UNSEEN[1][0]) is not None


def test_where_nothing_was_learned_nothing_is_written(tmp_path: Path) -> None:
    with LengthKeeper(LengthLearner(), tmp_path / "lengths", period_s=0.01):
        time.sleep(0.05)
    assert not (tmp_path / "lengths").exists()


def test_a_file_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    learner = taught(TAUGHT[:20])
    with caplog.at_level(logging.ERROR), LengthKeeper(learner, tmp_path / "file" / "lengths", period_s=0.01):
        wait_for(lambda: bool(caplog.records))
        time.sleep(0.05)
    assert [record.getMessage() for record in caplog.records] == [
        "what was learned could not be saved; predictions go on"
    ]
