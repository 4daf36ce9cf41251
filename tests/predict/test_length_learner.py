from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.errors import ConfigError
from headway.predict.lengths.applications import MOST_APPLICATIONS, Applications
from headway.predict.lengths.choice import length_predictor
from headway.predict.lengths.facts import LengthPredictor, RequestFacts
from headway.predict.lengths.predictor import FIRST_ANSWERS, LengthLearner
from tests.predict.answers import NOISE, Answer, answers

TAUGHT, UNSEEN = answers(1000), answers(500, seed=1)


def lived(rows: Iterable[Answer], learner: LengthLearner | None = None) -> LengthLearner:
    """After one request at a time: predicted, then answered."""
    learner = learner or LengthLearner()
    for facts, tokens in rows:
        learner.predict(facts)
        learner.observe(facts, tokens)
    return learner


def said(learner: LengthLearner, requests: Iterable[RequestFacts]) -> list[LengthEstimate]:
    found = [learner.predict(facts) for facts in requests]
    assert None not in found
    return [estimate for estimate in found if estimate is not None]


def coverage(estimates: Sequence[LengthEstimate], tokens: Sequence[int]) -> float:
    held = [
        each.low_tokens <= actual <= each.high_tokens for each, actual in zip(estimates, tokens, strict=True)
    ]
    return sum(held) / len(held)


@pytest.mark.parametrize("tenants", [True, False])
def test_lengths_are_predicted_nearly_as_well_as_the_law_allows(tenants: bool) -> None:
    def seen(rows: Iterable[Answer]) -> list[Answer]:
        return [(facts if tenants else replace(facts, tenant=""), tokens) for facts, tokens in rows]

    learner, found = lived(seen(TAUGHT)), []
    for facts, tokens in seen(UNSEEN):
        found += said(learner, [facts])
        learner.observe(facts, tokens)
    true = np.array([tokens for _, tokens in UNSEEN])
    error = np.abs(np.array([estimate.tokens for estimate in found]) / true - 1)
    # By the law itself half of the answers would still be off by NOISE x 0.674: 14 %.
    assert np.median(error) < 1.2 * NOISE * 0.674
    assert (
        kendall_tau((each.tokens, tokens) for each, tokens in zip(found, true.tolist(), strict=True)) > 0.75
    )
    assert 0.77 < coverage(found, true.tolist()) < 0.83


def test_what_words_say_of_length_is_learned() -> None:
    chance = np.random.default_rng(1)

    def answer(detailed: bool) -> Answer:
        rest = " ".join(f"w{chance.integers(1000)}" for _ in range(10))
        text = f"explain {'in detail' if detailed else 'in brief'} {rest}"
        facts = RequestFacts(num_prompt_tokens=13, max_output_tokens=2000, user_input=text)
        return facts, round((400 if detailed else 40) * float(np.exp(0.2 * chance.normal())))

    learner = lived(answer(bool(chance.integers(2))) for _ in range(300))
    short, long = said(learner, (answer(detailed)[0] for detailed in (False, True)))
    assert 30 < short.tokens < 60
    assert 300 < long.tokens < 600


def test_an_application_that_answers_at_random_keeps_its_median() -> None:
    chance = np.random.default_rng(2)
    rows = [
        (replace(UNSEEN[number % 500][0], tenant="t", instruction=""), round(100 * exp(chance.normal())))
        for number in range(1000)
    ]
    found = said(lived(rows), (facts for facts, _ in rows[:200]))
    # The median of 200 such answers is itself off by 9 %.
    assert 75 < np.median([each.tokens for each in found]) < 133
    assert 0.76 < coverage(found, [tokens for _, tokens in rows[:200]]) < 0.9


def test_it_is_silent_until_it_has_seen_enough() -> None:
    learner: LengthPredictor = length_predictor()
    for facts, tokens in TAUGHT[:FIRST_ANSWERS]:
        assert learner.predict(facts) is None
        learner.observe(facts, tokens)
    assert learner.predict(TAUGHT[0][0]) is not None


def test_a_new_tenant_is_taken_for_all_others_at_first() -> None:
    learner = lived(TAUGHT[:200])
    known = replace(UNSEEN[0][0], instruction="", tenant="")
    assert learner.predict(replace(known, tenant="new")) == learner.predict(known)


def test_answers_of_late_are_followed_when_a_tenant_changes() -> None:
    chance = np.random.default_rng(3)

    def rows(count: int, tokens: float) -> list[Answer]:
        facts = RequestFacts(num_prompt_tokens=50, max_output_tokens=5000, tenant="t")
        return [(facts, round(tokens * exp(0.3 * chance.normal()))) for _ in range(count)]

    learner = lived([*rows(2000, 50), *rows(100, 1000)])
    (found,) = said(learner, [rows(1, 1)[0][0]])
    assert 700 < found.tokens < 1400


def test_an_interval_is_as_wide_as_answers_to_such_inputs_vary() -> None:
    chance = np.random.default_rng(4)

    def row(long: bool) -> Answer:
        facts = RequestFacts(num_prompt_tokens=2000 if long else 20, max_output_tokens=10**5, tenant="t")
        return facts, max(1, round(100 * exp((0.1 if long else 1.0) * chance.normal())))

    learner = lived(row(bool(chance.integers(2))) for _ in range(400))
    wild, steady = said(learner, (row(long)[0] for long in (False, True)))
    assert wild.high_tokens / wild.low_tokens > 6  # e^(2 x 1.28) is 13
    assert steady.high_tokens / steady.low_tokens < 2.5  # e^(0.2 x 1.28) is 1.3


def test_what_is_known_when_a_request_comes_is_what_its_error_is_counted_from() -> None:
    learner = lived(TAUGHT[:50])
    facts = replace(UNSEEN[0][0], tenant="another")
    (at_arrival,) = said(learner, [facts])
    expected = learner._asked[hash(facts)].expected
    for _ in range(30):
        learner.observe(replace(facts, num_prompt_tokens=77), 900)
    learner.observe(facts, 10)
    errors = learner.applications.all.errors
    assert errors.errors[(errors.count - 1) % errors.SIZE] == pytest.approx(np.log(10) - expected)
    assert at_arrival.tokens > 0


def test_a_request_that_was_not_asked_for_teaches_as_well() -> None:
    asked, unasked = LengthLearner(), LengthLearner()
    for facts, tokens in TAUGHT[:100]:
        asked.predict(facts)
        asked.observe(facts, tokens)
        unasked.observe(facts, tokens)
    (one,), (other,) = (said(learner, [UNSEEN[0][0]]) for learner in (asked, unasked))
    assert one.tokens == other.tokens


def test_the_same_calls_give_the_same_answers() -> None:
    one, other = (lived(TAUGHT[:200]) for _ in range(2))
    requests = [facts for facts, _ in UNSEEN[:50]]
    assert said(one, requests) == said(other, requests)


def test_answers_of_nothing_teach_nothing() -> None:
    learner = LengthLearner()
    learner.observe(TAUGHT[0][0], 0)
    assert learner.num_answers == 0
    assert not learner.ready


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.text(max_size=20), st.integers(1, 10**7)),
        min_size=FIRST_ANSWERS,
        max_size=40,
    )
)
def test_whatever_was_answered_an_estimate_is_whole_and_within_its_limit(
    rows: list[tuple[int, int, str, int]],
) -> None:
    learner = LengthLearner()
    for prompt, limit, text, tokens in rows:
        facts = RequestFacts(
            num_prompt_tokens=prompt, max_output_tokens=limit, user_input=text, tenant=text[:1]
        )
        estimate = learner.predict(facts)
        learner.observe(facts, tokens)
        if estimate is not None:
            assert 1 <= estimate.low_tokens <= estimate.tokens <= estimate.high_tokens <= limit
            assert estimate.tokens == int(estimate.tokens)


def test_tenants_without_an_answer_for_long_are_forgotten() -> None:
    known = Applications()

    def of(tenant: int) -> RequestFacts:
        return RequestFacts(num_prompt_tokens=9, max_output_tokens=99, tenant=str(tenant))

    for number in range(MOST_APPLICATIONS):
        known.answered(of(number))
    known.answered(of(0))
    known.answered(of(-1))
    assert len(known.by_key) == MOST_APPLICATIONS
    assert [len(known.chain(of(number))) for number in (0, 1, 2, -1)] == [2, 1, 2, 2]


def test_a_tenant_and_an_instruction_are_no_other_tenant() -> None:
    known = Applications()
    known.answered(RequestFacts(num_prompt_tokens=9, max_output_tokens=99, tenant="a", instruction="bc"))
    assert len(known.by_key) == 2
    assert len(known.chain(RequestFacts(num_prompt_tokens=9, max_output_tokens=99, tenant="abc"))) == 1
    assert (
        len(
            known.chain(RequestFacts(num_prompt_tokens=9, max_output_tokens=99, tenant="ab", instruction="c"))
        )
        == 1
    )


@pytest.mark.parametrize("spec", ["", "word2vec", "none"])
def test_an_unknown_predictor_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown length predictor '{spec}'; accepted: learned$"):
        length_predictor(spec)


@pytest.mark.parametrize(
    "spec", ["hash", "minilm", "st:some/model", "learned:trees=5", "hash:forest=rf,trees=20"]
)
def test_a_predictor_that_is_gone_is_refused_with_the_name_of_what_has_its_place(spec: str) -> None:
    with pytest.raises(ConfigError, match="is gone: 'learned' reads prompts too, and has no settings"):
        length_predictor(spec)
