"""The counts of the bench of a killed replica, and its verdicts; Ray itself is not needed for that."""

from __future__ import annotations

import os
from typing import Any

import pytest

from bench.right import ray_serve
from bench.right.ray_serve import is_wrong, told
from headway.core.record import Outcome
from tests.results.examples import make, unfinished

ENDED: dict[str, Any] = {"requests": 2, "finished": 2, "failed": 0, "back_s": 9.0, "steps": [[5, 5], [4, 4]]}


def test_requests_are_counted_by_their_ends_and_failures_by_their_reasons() -> None:
    records = [make("a"), *(unfinished(name, Outcome.FAILED, 0.0, 1.0, error="gone") for name in "bc")]
    found = told(records, ready_s=1.0, back_s=None, steps=[(3, 3), (2, 4)])
    assert (found["requests"], found["finished"], found["failed"]) == (3, 1, 2)
    assert found["errors"] == {"gone": 2}
    assert (found["steps"], found["back_s"]) == ([[3, 3], [2, 4]], None)


@pytest.mark.parametrize(
    ("changed", "wrong_on_ray", "wrong_at_the_gateway"),
    [
        ({}, False, False),
        ({"finished": 1, "failed": 1}, False, True),
        ({"finished": 1}, True, True),
        ({"requests": 1, "finished": 1}, True, True),
        ({"back_s": None}, True, True),
        ({"steps": [[5, 5], [3, 4]]}, True, True),
        ({"steps": [[5, 5], [0, 0]]}, True, True),
    ],
)
def test_a_request_without_an_end_an_unplanned_step_and_a_replica_that_stays_away_are_wrong(
    changed: dict[str, Any], wrong_on_ray: bool, wrong_at_the_gateway: bool
) -> None:
    assert is_wrong("ray", ENDED | changed, 2) is wrong_on_ray
    assert is_wrong("gateway", ENDED | changed, 2) is wrong_at_the_gateway


def test_a_process_tells_its_counters() -> None:
    pid, steps = ray_serve._process_and_steps(None)
    assert pid == os.getpid()
    assert ray_serve._counted(steps)[0] <= ray_serve._counted(steps)[1]
    assert ray_serve._counted({"headway_planned_steps_total": 3.0, "headway_steps_total": 4.0}) == (3, 4)


def test_the_engines_of_both_have_the_same_flags() -> None:
    assert dict(ray_serve._pairs(("--dtype", "float32", "--max-num-seqs", "64"))) == {
        "--dtype": "float32",
        "--max-num-seqs": 64,
    }
