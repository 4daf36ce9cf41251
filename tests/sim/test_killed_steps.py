"""mlfq-preempt: steps that are killed, by hand and whatever comes. A token takes a second to compute."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.lab.policy_choice import Parts, policy_factory
from headway.sim.simulation import SimulatedRun, System
from headway.traces import TraceRequest
from tests.sim.worlds import Linear, calibration, limits, request, run
from tests.strategies import UNTIMED

PER_TOKEN = Linear(0.0, 1.0)


def serve(
    requests: Sequence[TraceRequest],
    policy: str = "mlfq-preempt",
    *,
    law: Linear = PER_TOKEN,
    quantum_s: float = 1.0,
    starve_s: float = 1000.0,
    **sizes: Any,
) -> tuple[dict[str, Record], SimulatedRun]:
    """One job a step unless told otherwise; quanta of `quantum_s`, 2 x, 4 x and so on."""
    order = f"skip-join-mlfq:skip_join=false,quantum_s={quantum_s},starve_s={starve_s}"
    engine = limits(**{"prefix_caching": False, "batch_width": 1, **sizes})
    system = System(limits=engine, calibration=calibration(law))
    return run(requests, policy_factory(policy, Parts(order=order), ()), system)


def times(record: Record) -> tuple[float, float]:
    assert record.first_token_s is not None
    assert record.finished_s is not None
    return round(record.first_token_s, 6), round(record.finished_s, 6)


A = request("a", 0.0, 5, 2)
B = request("b", 0.5, 1, 1)


def test_an_iteration_is_killed_at_each_level_whose_quantum_it_exceeds() -> None:
    # a's prompt takes 5 s: killed after 1, 2 and 4 s, at 1, 3 and 7; with 8 s at level 4 it ends at 12. Its second
    # token takes 1 s.
    records, result = serve([A])
    assert times(records["a"]) == (12, 13)
    totals = result.totals["0"]
    assert (totals.steps, totals.killed_steps, totals.tokens) == (3 + 2, 3, 5 + 1)


def test_who_comes_need_not_wait_for_a_long_prompt_but_pays_with_the_others_time() -> None:
    # a is killed at 1 and sinks; b runs 1-2 and ends. a: 2-4 and 4-8 in vain, 8-13, 13-14.
    records, _ = serve([A, B])
    assert (times(records["b"]), times(records["a"])) == ((2, 2), (13, 14))
    # Not killed, b has its token after a's prompt: 5-6. a's second follows.
    records, _ = serve([A, B], "fastserve")
    assert (times(records["a"])[0], times(records["b"])) == (5, (6, 6))


def test_a_step_is_killed_for_one_member_and_brings_nothing_to_the_others() -> None:
    # Two a step. 0-1: a's prompt, in time. Then a decodes beside b's 5 tokens, which take 6 s: killed at 2, 4 and 8,
    # after b's 1, 2 and 4 s. a has sunk with it and gets its second token when the 6 s are over, at 14.
    records, result = serve([request("a", 0.0, 1, 2), request("b", 0.5, 5, 1)], batch_width=2)
    assert (times(records["a"]), times(records["b"])) == ((1, 14), (14, 14))
    totals = result.totals["0"]
    assert (totals.steps, totals.killed_steps, totals.tokens) == (5, 3, 1 + 1 + 5)


def test_a_decode_longer_than_any_quantum_is_not_killed() -> None:
    # Each step takes 1 s, the first quantum is 0.1 s: the prefill is killed after 0.1, 0.2, 0.4 and 0.8 s, at 1.5; a
    # quantum of 1.6 s is enough. The 3 decodes run to their end.
    records, result = serve([request("a", 0.0, 4, 4)], law=Linear(1.0), quantum_s=0.1)
    assert times(records["a"]) == (2.5, 5.5)
    assert result.totals["0"].killed_steps == 4


def test_who_has_starved_runs_its_next_iteration_to_its_end() -> None:
    # a is killed at 1. Others come, a second each at level 1, and it starves at 4, behind the one that came at 3.5
    # and runs 4-5. Its quantum of a second ends at 6, and its step at 10 all the same.
    others = [request(f"b{number}", 0.5 + number, 1, 1) for number in range(8)]
    records, result = serve([A, *others], starve_s=3.0)
    assert times(records["a"])[0] == 10
    assert result.totals["0"].killed_steps == 1


@pytest.mark.parametrize("starve_s", [0.5, 3.0])
@pytest.mark.parametrize("quantum_s", [0.01, 0.3])
def test_it_cannot_live_lock(quantum_s: float, starve_s: float) -> None:
    # Prompts of 5 s, 3 of them a step, and 12 of them at once: each starves before it has sunk to a level that
    # would be long enough for a step of 15 s.
    backlog = [request(f"{number:02}", 0.0, 5, 3) for number in range(12)]
    records, result = serve(backlog, quantum_s=quantum_s, starve_s=starve_s, batch_width=3, max_num_seqs=12)
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    assert result.totals["0"].killed_steps > 0


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes short of everything."""
    seats = draw(st.integers(1, 6))
    return {
        "num_blocks": draw(st.sampled_from([8, 12, 40])),
        "max_num_seqs": seats,
        "batch_width": seats,
        "max_num_batched_tokens": draw(st.sampled_from([4, 16, 64])),
        "host_blocks": draw(st.sampled_from([0, 4, 40])),
    }


requests_of_a_burst = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 16), st.integers(1, 10)), min_size=1, max_size=8
).map(
    lambda rows: [
        request(f"{number}", arrival / 2, prompt, output)
        for number, (arrival, prompt, output) in enumerate(sorted(rows))
    ]
)


@UNTIMED
@given(
    burst=requests_of_a_burst,
    sizes=engines(),
    quantum_s=st.sampled_from([0.05, 1.0, 4.0]),
    starve_s=st.sampled_from([0.5, 3.0, 1000.0]),
)
def test_everything_ends_and_is_accounted_for(
    burst: list[TraceRequest], sizes: dict[str, Any], quantum_s: float, starve_s: float
) -> None:
    records, result = serve(burst, quantum_s=quantum_s, starve_s=starve_s, **sizes)
    assert {id_: record.output_tokens for id_, record in records.items()} == {
        each.id: each.output_tokens for each in burst
    }
    needed = sum(each.input_tokens + each.output_tokens - 1 for each in burst)
    recomputed = sum(record.recomputed_tokens for record in records.values())
    assert result.totals["0"].tokens == needed + recomputed


def test_killing_wastes_time_and_more_of_it_with_short_quanta() -> None:
    # The paper's point: what is killed is computed again, so answers come later than if nothing were.
    trace = [request(f"{number:02}", 2.0 * number, 1 + 7 * number % 16, 2) for number in range(30)]
    mean_s = {}
    for policy, quantum_s in (("fastserve", 1.0), ("mlfq-preempt", 4.0), ("mlfq-preempt", 1.0)):
        records, result = serve(trace, policy, quantum_s=quantum_s)
        mean_s[policy, quantum_s] = fmean(times(record)[1] - record.arrival_s for record in records.values())
        assert (result.totals["0"].killed_steps > 0) == (policy == "mlfq-preempt")
    assert mean_s["fastserve", 1.0] < mean_s["mlfq-preempt", 4.0] < mean_s["mlfq-preempt", 1.0]


@pytest.mark.parametrize("sizes", [{"prefix_caching": True}, {"asynchronous": True}, {"pipeline_stages": 2}])
def test_where_steps_cannot_be_killed_it_is_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match="'mlfq-preempt' kills steps; accepted for it: synchronous scheduling"
    ):
        serve([A], **sizes)
