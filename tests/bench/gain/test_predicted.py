"""The cells and sums of `bench/gain/predicted.py`, by hand."""

from __future__ import annotations

from statistics import median

import pytest

from bench.gain.predicted import (
    GOOD,
    LIMIT_TOKENS,
    MEDIANS_TOKENS,
    PREDICTORS,
    REQUESTS,
    SYSTEMS,
    PredictedCell,
    averaged,
    broken_promises,
    cells,
    gap_closed,
    requests,
)
from headway.lab.policy_choice import OWN_PARTS, check_policies
from headway.lab.predictor_choice import check_predictor


def runs(fastserve_s: float, oracle_s: float, **predicted_s: float) -> dict[str, dict[str, float]]:
    """One system at one load; `predicted` like `fastserve` unless told otherwise."""
    found = {
        name: {"mean_jct_s": mean_s}
        for name, mean_s in (("fastserve", fastserve_s), ("srpt-oracle", oracle_s))
    }
    for predictor in PREDICTORS:
        found[f"predicted ({predictor})"] = {"mean_jct_s": predicted_s.get(predictor, fastserve_s)}
    return found


def test_seeds_are_averaged() -> None:
    made = [PredictedCell("roomy", 1.0, seed, "predicted", "exact", 9.0) for seed in (0, 1)]
    table = averaged({cell: {"mean_jct_s": 2.0 + cell.seed} for cell in made})
    assert table == {"roomy": {"1": {"predicted (exact)": {"mean_jct_s": 2.5}}}}


@pytest.mark.parametrize(
    ("predicted_s", "complaints"),
    [
        ({}, []),
        # Good predictors may be 1 % worse, others 3 %; better than the oracle is no fault.
        ({"exact": 10.1, "reversed": 10.3}, []),
        ({"exact": 4.0}, []),
        ({"exact": 10.11}, ["roomy, load 1, exact: 10.110 s, fastserve 10.000 s"]),
        ({"turning": 10.31}, ["roomy, load 1, turning: 10.310 s, fastserve 10.000 s"]),
    ],
)
def test_what_is_promised(predicted_s: dict[str, float], complaints: list[str]) -> None:
    assert broken_promises({"roomy": {"1": runs(10.0, 5.0, **predicted_s)}}) == complaints


def test_how_far_it_has_come_to_the_oracle() -> None:
    # 10 down to 7.5 is half of the way to 5; 11 is a fifth of it back.
    closed = gap_closed(runs(10.0, 5.0, exact=7.5, turning=11.0))
    assert closed is not None
    assert (closed["exact"], closed["turning"], closed["none"]) == (0.5, -0.2, 0.0)
    assert gap_closed(runs(10.0, 9.95)) is None


def test_every_cell_can_be_run() -> None:
    made = list(cells(dict.fromkeys(SYSTEMS, 2.0), (0.5, 1.0), 2))
    assert len(set(made)) == len(made) == len(SYSTEMS) * 2 * 2 * (3 + len(PREDICTORS) + 2)
    assert {cell.rate_rps for cell in made} == {1.0, 2.0}
    check_policies(sorted({cell.policy for cell in made}), OWN_PARTS)
    for spec in PREDICTORS.values():
        check_predictor(spec)
    assert set(GOOD) < set(PREDICTORS)


def test_clients_have_lengths_of_their_own() -> None:
    made = requests(5.0, seed=1)
    assert made == requests(5.0, seed=1) != requests(5.0, seed=2)
    assert len(made) == REQUESTS
    assert {request.max_output_tokens for request in made} == {LIMIT_TOKENS}
    for number, expected in enumerate(MEDIANS_TOKENS):
        mine = [request.output_tokens for request in made if request.tenant == f"client {number}"]
        assert median(mine) == pytest.approx(expected, rel=0.25)
