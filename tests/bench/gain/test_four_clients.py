from __future__ import annotations

from statistics import median

import pytest

from bench.gain.four_clients import LIMIT_TOKENS, MEDIANS_TOKENS, REQUESTS, requests


def test_clients_have_lengths_of_their_own() -> None:
    made = requests(5.0, seed=1)
    assert made == requests(5.0, seed=1) != requests(5.0, seed=2)
    assert len(made) == REQUESTS
    assert {request.max_output_tokens for request in made} == {LIMIT_TOKENS}
    for number, expected in enumerate(MEDIANS_TOKENS):
        mine = [request.output_tokens for request in made if request.tenant == f"client {number}"]
        assert median(mine) == pytest.approx(expected, rel=0.25)
