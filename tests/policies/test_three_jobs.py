"""Three jobs on one server, one at a time, under four orders; a second a token, so a prompt of 5 takes 5 s.

    job   arrives   prompt   answer      work: a prompt brings the first token, each other one takes 1 s
    a     0 s       5        2 tokens    5 + 1 = 6 s
    b     0 s       1        8 tokens    1 + 7 = 8 s
    c     4 s       2        1 token     2 s

Quanta are 1, 2, 4, 8 s at levels 1 to 4, and nobody starves. An iteration is never interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.policies.batching.top_jobs import TopJobs
from headway.policies.eviction.reactive import Recompute
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.sim.oracles import ClairvoyantOrder, Knowledge
from headway.sim.simulation import PolicyFactory, System
from tests.policies.eviction.stage import Prices
from tests.sim.worlds import Linear, calibration, limits, request, run

ANSWERS = {"a": 2, "b": 8, "c": 1}
JOBS = [
    request("a", 0.0, 5, ANSWERS["a"]),
    request("b", 0.0, 1, ANSWERS["b"]),
    request("c", 4.0, 2, ANSWERS["c"]),
]
ONE_AT_A_TIME = System(limits=limits(batch_width=1), calibration=calibration(Linear(0.0, 1.0)))


def first_come(cost: CostModel) -> Policy:
    """Stock vLLM."""
    return build_policy(find_preset("vllm"), Prices())


def naive_queues(cost: CostModel) -> Policy:
    """Everybody starts at level 1."""
    order = "skip-join-mlfq:skip_join=false,starve_s=inf"
    return build_policy(find_preset("fastserve", order=order), Prices())


def skip_join(cost: CostModel) -> Policy:
    """Everybody starts at the level of its prompt."""
    return build_policy(find_preset("fastserve", order="skip-join-mlfq:starve_s=inf"), Prices())


def shortest_remaining(cost: CostModel) -> Policy:
    """The least work left first, by who knows the answers."""

    def rank(known: Knowledge, jobs: Sequence[Job], now_s: float) -> list[Job]:
        return sorted(jobs, key=lambda job: (_left_s(job), job.id))

    return Policy("srpt", ClairvoyantOrder(Knowledge(ANSWERS, Prices()), rank), TopJobs(), Recompute())


def _left_s(job: Job) -> int:
    """A second for each prompt token not computed, and for each answer token but the prompt's own."""
    return (
        max(0, job.num_prompt_tokens - job.num_computed_tokens)
        + ANSWERS[job.id]
        - max(1, job.num_output_tokens)
    )


@pytest.mark.parametrize(
    ("policy", "finished_s", "mean_jct_s"),
    [
        # a 0-6, b 6-14, c 14-16: completion times 6, 14, 12.
        (first_come, {"a": 6.0, "b": 14.0, "c": 16.0}, 32 / 3),
        # Level 1: a, b. a's prompt 0-5, far over its second: level 2. c joined level 1 behind b. b 5-7, two tokens: at
        # 6 it has had its second and no more; level 2, behind a. c 7-9. a 9-10. b's other six 10-16: 10, 16, 5.
        (naive_queues, {"a": 10.0, "b": 16.0, "c": 9.0}, 31 / 3),
        # a joins level 4 (8 s cover 5), b level 1. b 0-2, level 2; there 2-5, three tokens, at 4 its 2 s are up but
        # not exceeded; level 3. c joined level 2: 5-7. b, level 3, its last three 7-10. a 10-16: 16, 10, 3.
        (skip_join, {"a": 16.0, "b": 10.0, "c": 7.0}, 29 / 3),
        # a has 6 s left and b 8: a 0-5; then a has 1 left, c 2, b 8: a 5-6, c 6-8, b 8-16: 6, 16, 4.
        (shortest_remaining, {"a": 6.0, "b": 16.0, "c": 8.0}, 26 / 3),
    ],
)
def test_mean_completion_times_by_hand(
    policy: PolicyFactory, finished_s: dict[str, float], mean_jct_s: float
) -> None:
    records, _ = run(JOBS, policy, ONE_AT_A_TIME)
    ended_s = {id_: record.finished_s or 0.0 for id_, record in sorted(records.items())}
    assert ended_s == finished_s
    assert fmean(ended_s[job.id] - job.arrival_s for job in JOBS) == pytest.approx(mean_jct_s)
