from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

from headway.core.prediction_quality import kendall_tau
from headway.errors import ConfigError
from headway.predict.lengths.choice import length_predictor
from headway.predict.lengths.facts import LengthPredictor
from headway.predict.lengths.predictor import ForestPredictor
from tests.predict.answers import NOISE, Answer, answers

TAUGHT, UNSEEN = answers(2000), answers(500, seed=1)


def taught(spec: str, rows: Sequence[Answer] = TAUGHT) -> ForestPredictor:
    predictor = length_predictor(spec)
    predictor.learn_from(rows)
    return predictor


def lived(spec: str, rows: Sequence[Answer], inline: bool = True) -> ForestPredictor:
    """After one request at a time: predicted, then answered."""
    predictor = length_predictor(spec, inline=inline)
    for facts, tokens in rows:
        predictor.predict(facts)
        predictor.observe(facts, tokens)
    return predictor


@pytest.mark.parametrize("spec", ["hash", "hash:forest=rf", "learned"])
@pytest.mark.slow
def test_lengths_are_predicted_nearly_as_well_as_the_law_allows(spec: str) -> None:
    estimates = taught(spec).predict_many([facts for facts, _ in UNSEEN])
    assert all(estimate is not None for estimate in estimates)
    found = [estimate for estimate in estimates if estimate is not None]
    true = np.array([tokens for _, tokens in UNSEEN])
    error = np.abs(np.array([estimate.tokens for estimate in found]) / true - 1)
    # Who knew the law would still be off by NOISE x 0.674 in half of the cases: 14 %.
    assert np.median(error) < 1.6 * NOISE * 0.674
    assert (
        kendall_tau([(estimate.tokens, tokens) for estimate, tokens in zip(found, true, strict=True)]) > 0.7
    )
    held = [e.low_tokens <= tokens <= e.high_tokens for e, tokens in zip(found, true, strict=True)]
    assert 0.72 < np.mean(held) < 0.88


def test_many_are_predicted_as_one_by_one() -> None:
    predictor = taught("hash:trees=5", TAUGHT[:100])
    requests = [facts for facts, _ in UNSEEN[:20]]
    assert predictor.predict_many(requests) == [predictor.predict(facts) for facts in requests]
    assert predictor.predict_many([]) == []


def test_it_is_silent_until_it_has_seen_enough() -> None:
    predictor: LengthPredictor = length_predictor("hash:first_answers=20,trees=5")
    for facts, tokens in TAUGHT[:20]:
        assert predictor.predict(facts) is None
        predictor.observe(facts, tokens)
    assert predictor.predict(TAUGHT[0][0]) is not None


def test_fits_become_rarer_as_answers_grow() -> None:
    # Due at 20, 30, 45, 68 (67.5), 102, 153, 230 (229.5) ... answers.
    predictor = lived("hash:first_answers=20,trees=2", TAUGHT[:152])
    assert predictor.num_fits == 5
    predictor.predict(TAUGHT[152][0])
    predictor.observe(*TAUGHT[152])
    assert predictor.num_fits == 6


def test_without_a_fit_inside_one_is_due_by_the_clock() -> None:
    predictor = lived("hash:first_answers=20,trees=2,period_s=180", TAUGHT[:20], inline=False)
    assert predictor.num_fits == 0
    assert predictor.due(0.0)
    predictor.refit(1000.0)
    assert not predictor.due(1e9)  # nothing new
    predictor.observe(*TAUGHT[20])
    assert [predictor.due(now_s) for now_s in (1179.0, 1180.0)] == [False, True]


def test_after_the_first_answers_only_bad_predictions_teach() -> None:
    predictor = lived("hash:first_answers=20,every_answer=300,trees=20", TAUGHT[:300])
    assert predictor.rows.num_rows == 300
    wanted = 0
    for facts, tokens in TAUGHT[300:500]:
        estimate = predictor.predict(facts)
        assert estimate is not None
        error = abs(estimate.tokens - tokens)
        wanted += error > 10 and error > 0.1 * tokens
        predictor.observe(facts, tokens)
        assert predictor.rows.num_rows == 300 + wanted
    assert 0 < wanted < 200


def test_rows_are_bounded() -> None:
    assert lived("hash:max_rows=50,trees=2", TAUGHT[:200]).rows.num_rows == 50


def test_the_interval_holds_though_only_errors_are_learned() -> None:
    predictor = length_predictor("hash:every_answer=200,trees=30")
    held = []
    for facts, tokens in TAUGHT:
        estimate = predictor.predict(facts)
        if estimate is not None:
            held.append(estimate.low_tokens <= tokens <= estimate.high_tokens)
        predictor.observe(facts, tokens)
    assert 0.74 < np.mean(held[-1000:]) < 0.86


def test_what_is_known_when_a_request_comes_is_what_is_learned() -> None:
    # The tenant's history moves on while its request runs; the row is the one of its arrival.
    predictor = length_predictor("learned")
    facts = TAUGHT[0][0]
    at_arrival = predictor.features.rows([facts])[0]
    predictor.predict(facts)
    for _ in range(5):
        other = replace(facts, num_prompt_tokens=77)
        predictor.observe(other, 900)
    predictor.observe(facts, 10)
    rows, tokens = predictor.rows.copy()
    assert tokens[-1] == 10.0
    assert np.array_equal(rows[-1], at_arrival, equal_nan=True)


def test_the_same_calls_give_the_same_answers() -> None:
    one, other = (lived("learned:trees=10", TAUGHT[:400]) for _ in range(2))
    for facts, _ in UNSEEN[:50]:
        assert one.predict(facts) == other.predict(facts)


def test_answers_of_nothing_teach_nothing() -> None:
    predictor = length_predictor("hash")
    predictor.observe(TAUGHT[0][0], 0)
    assert predictor.num_answers == predictor.rows.num_rows == 0
    predictor.refit()
    assert not predictor.ready
    with pytest.raises(ConfigError, match="no answers to learn lengths from"):
        predictor.learn_from([(TAUGHT[0][0], 0)])


def test_fits_run_beside_predictions() -> None:
    predictor = taught("hash:trees=5", TAUGHT[:300])

    def fit() -> None:
        for _ in range(3):
            predictor.refit()

    fitting = Thread(target=fit)
    fitting.start()
    for facts, tokens in TAUGHT[300:900]:
        assert predictor.predict(facts) is not None
        predictor.observe(facts, tokens)
    fitting.join()
    assert predictor.num_answers == predictor.rows.num_rows == 900


@pytest.mark.parametrize(
    "spec", ["", "word2vec", "st", "st:", "learned:x", "hash/trees=2", "hash:trees=2:leaf=3"]
)
def test_an_unknown_predictor_is_refused(spec: str) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown length predictor .*; accepted: learned, hash, minilm, st:"
    ):
        length_predictor(spec)


def test_a_wrong_setting_names_its_predictor() -> None:
    with pytest.raises(ConfigError, match="length predictor 'hash' has no setting 'leafs=2'"):
        length_predictor("hash:leafs=2")
