from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.lab.predictor_choice import check_predictor, is_made, length_source, predictor_label
from headway.predict.lengths.choice import NONE
from headway.sim.lengths import AskedPredictor, Broken, NoisyOracle
from headway.traces import TraceRequest

TRACE = [
    TraceRequest(id=str(n), arrival_s=float(n), input_tokens=5, output_tokens=1 + 7 * n % 60)
    for n in range(80)
]


def test_nobody_predicts() -> None:
    check_predictor(NONE)
    assert length_source(NONE, TRACE) is None


def test_a_products_predictor_starts_untaught() -> None:
    source = length_source("learned", TRACE)
    assert isinstance(source, AskedPredictor)
    assert source.predict(TRACE[0], 99) is None
    assert not is_made("learned")
    assert predictor_label("learned") == "learned"


def test_what_is_made_from_true_lengths_says_so() -> None:
    oracle = length_source("noisy-oracle:tau=0.6", TRACE)
    assert isinstance(oracle, NoisyOracle)
    assert oracle.noise > 0
    broken = length_source("broken:way=turning", TRACE)
    assert isinstance(broken, Broken)
    for spec in ("noisy-oracle:tau=0.6", "broken:way=turning"):
        check_predictor(spec)
        assert is_made(spec)
        assert predictor_label(spec) == f"{spec} (made from the true lengths)"


def test_a_seed_is_the_runs_unless_the_predictor_names_one() -> None:
    def seventh(spec: str, seed: int) -> object:
        source = length_source(spec, TRACE, seed)
        assert source is not None
        return source.predict(TRACE[7], 99)

    assert seventh("noisy-oracle:tau=0.6", 0) != seventh("noisy-oracle:tau=0.6", 1)
    assert seventh("noisy-oracle:tau=0.6,seed=4", 0) == seventh("noisy-oracle:tau=0.6,seed=4", 1)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (
            "crystal-ball",
            "unknown predictor 'crystal-ball'; accepted: none, learned, .*noisy-oracle:tau=T, broken:way=",
        ),
        ("none:x=1", "unknown predictor 'none:x=1'"),
        ("st:./none", "'st:./none' is gone: 'learned' reads prompts too"),
        ("hash", "'hash' is gone: 'learned' reads prompts too"),
        ("noisy-oracle", "predictor 'noisy-oracle': ''; accepted: tau=..., seed=N"),
        ("noisy-oracle:tau=high", "'tau=high'; accepted: tau=..., seed=N"),
        ("noisy-oracle:tau=0.6,way=x", "'way=x'; accepted: tau=..., seed=N"),
        ("noisy-oracle:tau=0.6,tau=0.7", "'tau=0.7'; accepted"),
        ("noisy-oracle:seed=1", "predictor 'noisy-oracle:seed=1' has no tau; accepted: tau=..."),
        ("noisy-oracle:tau=2", "tau of a noisy oracle is 2.0"),
        ("broken:way=none", "way of a broken predictor is 'none'"),
        ("learned:trees=1", "'learned:trees=1' is gone: 'learned' reads prompts too, and has no settings"),
    ],
)
def test_what_is_not_accepted_is_said(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_predictor(spec)
