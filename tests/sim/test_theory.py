"""Queues whose mean sojourn is known in closed form.

One seat, a step of one second brings one token: a request of n tokens is a service of n seconds on a single
server that never idles while there is work. Newcomers can preempt only between steps, so that SRPT is right
to within a step.
"""

from __future__ import annotations

from math import log
from random import Random
from statistics import fmean

import pytest

from headway.sim.oracles import ORACLES
from headway.sim.simulation import System
from headway.traces import TraceRequest
from tests.sim.worlds import Linear, calibration, limits, request, run

pytestmark = pytest.mark.slow


def poisson(rate_rps: float, lengths: list[int]) -> list[TraceRequest]:
    random = Random(3)
    now_s, trace = 0.0, []
    for number, tokens in enumerate(lengths):
        now_s += random.expovariate(rate_rps)
        trace.append(request(f"{number:05}", now_s, 1, tokens))
    return trace


def mean_sojourn_s(trace: list[TraceRequest], policy: str) -> float:
    one_seat = limits(max_num_seqs=10_000, batch_width=1, num_blocks=100_000, prefix_caching=False)
    factory = (
        ORACLES[policy]({each.id: each.output_tokens for each in trace}) if policy in ORACLES else policy
    )
    records, _ = run(
        trace,
        factory,
        System(limits=one_seat, calibration=calibration(Linear(1.0))),
        max_output_tokens=10_000,
        check=False,
    )
    return fmean((record.finished_s or 0.0) - record.arrival_s for record in records.values())


def test_first_come_first_served_is_m_m_1() -> None:
    # Geometric lengths stand for exponential ones: with p = 1/8 a mean of 8 and E[S^2] = (2 - p) / p^2 = 120. At half
    # load lambda = 1/16, and Pollaczek-Khinchine gives 8 + 120 / 16 / 2 / (1 - 1/2) = 15.5 s (M/M/1: 16 s).
    random = Random(11)
    lengths = [int(log(1 - random.random()) / log(1 - 1 / 8)) + 1 for _ in range(5_000)]
    assert abs(mean_sojourn_s(poisson(1 / 16, lengths), "vllm") / 15.5 - 1) < 0.05


def test_shortest_remaining_first_is_m_g_1_srpt() -> None:
    # Two lengths, 10 (5 in 6) and 100 (1 in 6), mean 25; load 0.6, so lambda = 0.024. Schrage and Miller 1966, first
    # come first served among equals:
    # Short: the work ahead is short jobs, load 0.024 x 5/6 x 10 = 0.2, and the last 10 s of long ones:
    #   wait = 0.024 / 2 x (5/6 x 100 + 1/6 x 100) / (1 - 0.2) = 1.5, sojourn 11.5.
    # Long: wait = 0.024 / 2 x (5/6 x 100 + 1/6 x 10000) / (1 - 0.2) / (1 - 0.6) = 65.625; while more than 10 s are left
    #   short jobs interrupt it: residence 90 / 0.8 + 10 = 122.5. Sojourn 188.1.
    # Mean 5/6 x 11.5 + 1/6 x 188.1 = 40.9 s, and half a step for a newcomer that finds one under way, 0.6 of them.
    random = Random(13)
    lengths = [10 if random.random() < 5 / 6 else 100 for _ in range(1_000)]
    trace = poisson(0.024, lengths)
    srpt_s = mean_sojourn_s(trace, "srpt-oracle")
    assert abs(srpt_s / 41.2 - 1) < 0.08
    assert srpt_s < mean_sojourn_s(trace, "vllm")
