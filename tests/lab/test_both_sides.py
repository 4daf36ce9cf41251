"""Clients' and engines' records of the same requests, joined."""

from __future__ import annotations

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.lab.both_sides import add_engine_side, client_lag_s, whole

MOVED = Record(
    id="cmpl-a-0-0123abcd",
    arrival_s=500.0,
    prompt_tokens=8,
    outcome=Outcome.HANDED_OFF,
    finished_s=503.0,
    slo=Slo(ttft_s=8.0),
)
ENDED = Record(
    id="cmpl-a-0-4567cdef",
    arrival_s=503.0,
    prompt_tokens=8,
    outcome=Outcome.FINISHED,
    output_tokens=2,
    first_scheduled_s=504.0,
    first_token_s=505.0,
    finished_s=506.0,
    predicted_output_tokens=3.0,
    slo=Slo(ttft_s=5.0),
    preemptions=1,
    swapped_blocks=2,
    recomputed_tokens=4,
)


def test_a_request_in_two_engines_came_to_the_first_and_ended_in_the_last() -> None:
    for parts in ((MOVED, ENDED), (ENDED, MOVED)):
        one = whole(parts)
        assert (one.id, one.arrival_s, one.slo) == (MOVED.id, 500.0, Slo(ttft_s=8.0))
        assert (one.first_scheduled_s, one.first_token_s, one.finished_s) == (504.0, 505.0, 506.0)
        assert (one.outcome, one.output_tokens, one.predicted_output_tokens) == (Outcome.FINISHED, 2, 3.0)
        assert (one.preemptions, one.swapped_blocks, one.recomputed_tokens) == (1, 2, 4)


def test_a_request_was_scheduled_so_long_after_it_came_to_its_first_engine() -> None:
    # It waited 3 s for the first engine and 1 s for the second; the client's clock is another.
    client = Record(
        id="a", arrival_s=10.0, prompt_tokens=8, outcome=Outcome.FINISHED, first_token_s=15.5, finished_s=16.5
    )
    unseen = Record(id="b", arrival_s=11.0, prompt_tokens=8, outcome=Outcome.CANCELLED)
    both = add_engine_side([client, unseen], [MOVED, ENDED])
    assert both[0].first_scheduled_s == 14.0
    assert (both[0].preemptions, both[0].first_token_s, both[1]) == (1, 15.5, unseen)


def test_the_client_had_its_first_token_later_than_the_engine() -> None:
    """5 s in the engines, 5.5 s for the client: each since the arrival that it saw."""
    client = Record(
        id="a", arrival_s=10.0, prompt_tokens=8, outcome=Outcome.FINISHED, first_token_s=15.5, finished_s=16.5
    )
    unseen = Record(id="b", arrival_s=11.0, prompt_tokens=8, outcome=Outcome.CANCELLED)
    assert client_lag_s([client, unseen], [MOVED, ENDED]) == 0.5
    assert client_lag_s([unseen], [MOVED, ENDED]) == 0.0
