"""Pools of engines: who is handed where, and what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.plan import Departure
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.presets import build_policy, find_preset
from headway.results import summarize
from headway.sim.simulation import PolicyFactory, System
from headway.traces import TraceRequest
from tests.sim.pools import GivesUp, Seen, giving_up, pooled_system, with_rule
from tests.sim.test_shortcut import LAW, NOISE, same_either_way, traces
from tests.sim.worlds import calibration, moved, preset, request, run
from tests.strategies import FEW

TARGETS = Slo(ttft_s=4.0, tbt_s=9.0, deadline_s=2.6)

# One seat each. a, of 5 tokens, keeps lp-0 busy from 0 to 5. b comes at 0.5; at 3, the first step at which it has
# waited for 2 s, lp-0 gives it up. At hp-0 it is prefilled from 3 to 4 and decodes from 4 to 5.
PAIR = [request("a", 0.0, 4, 5), request("b", 0.5, 4, 2, slo=TARGETS)]


def test_who_is_given_up_runs_at_another_instance() -> None:
    records, _ = run(PAIR, giving_up(), pooled_system(max_num_seqs=1))
    move, end = records[moved("b")], records["b"]
    assert (move.outcome, move.instance, move.finished_s) == (Outcome.HANDED_OFF, "lp-0", 3.0)
    assert (move.first_scheduled_s, move.first_token_s, move.output_tokens) == (None, None, 0)
    assert (end.outcome, end.instance, end.first_token_s, end.finished_s) == (
        Outcome.FINISHED,
        "hp-0",
        4.0,
        5.0,
    )
    assert (records["a"].instance, records["a"].finished_s) == ("lp-0", 5.0)


def test_its_records_keep_what_the_client_asked_for() -> None:
    records, _ = run(PAIR, giving_up(), pooled_system(max_num_seqs=1))
    for record in (records[moved("b")], records["b"]):
        assert (record.arrival_s, record.slo) == (0.5, TARGETS)


def test_at_the_next_instance_it_is_new_with_what_is_left_of_its_targets() -> None:
    # 2.5 s are gone: 1.5 of 4 are left, and of 2.6 a tenth; between tokens as before.
    seen = Seen()
    policies = giving_up(hp=with_rule(preset("vllm"), lambda: seen))
    run(PAIR, policies, pooled_system(max_num_seqs=1))
    [job] = seen.jobs
    assert (job.id, job.arrival_s, job.may_move) == ("b", 3.0, False)
    assert job.slo.ttft_s == 1.5
    assert job.slo.tbt_s == 9.0
    assert job.slo.deadline_s == pytest.approx(0.1)


def test_with_nobody_to_take_it_it_goes_back_to_stay() -> None:
    # Given up at 3 as before, it waits at lp-0 again until a has ended at 5.
    records, _ = run(PAIR, giving_up(), pooled_system("lp=1", max_num_seqs=1))
    assert records[moved("b")].finished_s == 3.0
    assert (records["b"].instance, records["b"].first_token_s) == ("lp-0", 6.0)


def test_an_lp_instance_is_told_before_each_step_what_waits_at_hp_instances() -> None:
    # Steps of one token. a keeps lp-0's one seat from 0 to 9; b and c, of 3 and 4 tokens, come at 0.5 and go to hp-0
    # at 3. b has its first token at 6, and is done at 7; c has its own at 11. The view is the same object at all times.
    told: dict[float, tuple[int, ...]] = {}

    class Listens(GivesUp):
        def leave(self, view: StepView) -> Mapping[Job, Departure]:
            assert view.told_elsewhere_s == view.now_s
            told[view.now_s] = tuple(view.waiting_elsewhere)
            return super().leave(view)

    policies = {"lp": with_rule(preset("vllm"), Listens), "hp": preset("vllm")}
    requests = [request("a", 0.0, 3, 9), request("b", 0.5, 3, 2), request("c", 0.5, 4, 2)]
    records, _ = run(requests, policies, pooled_system(max_num_seqs=1, max_num_batched_tokens=1))
    assert {id_: records[id_].instance for id_ in "abc"} == {"a": "lp-0", "b": "hp-0", "c": "hp-0"}
    assert [told[now_s] for now_s in (0.0, 3.0, 4.0, 7.0)] == [(0,), (0,), (7,), (4,)]


class TokenSeconds(UnknownCost):
    """A second a token, as in an engine of one token a step."""

    def step_s(self, shape: BatchShape) -> float:
        return 1.0

    def prefill_s(self, num_tokens: int) -> float:
        return float(num_tokens)


def knowing(name: str, **parts: Any) -> PolicyFactory:
    """Policies of a row that know what steps of one token take."""
    return lambda cost: build_policy(find_preset(name, **parts), TokenSeconds())


def test_no_job_is_handed_off_that_the_queue_there_makes_late() -> None:
    # Steps of one token. a keeps lp-0 busy; b, c and d, of 3 tokens, have to start by 7.5. All are at risk at 1, when
    # no job waits at hp-0. b goes there, and c, which starts by 1 + 1 + 3 at the latest; d might by 8, and stays.
    three = [request(id_, 0.5, 3, 2, slo=Slo(ttft_s=10.0)) for id_ in ("b", "c", "d")]
    low = knowing("ascendra-lp", leaving=("at-risk:threshold=0.5,hp_tokens=1",))
    system = pooled_system(max_num_seqs=1, max_num_batched_tokens=1)
    records, _ = run(
        [request("a", 0.0, 3, 30), *three], {"lp": low, "hp": knowing("ascendra-hp", leaving=())}, system
    )
    assert [moved(id_) in records for id_ in "bcd"] == [True, True, False]
    assert {id_: records[id_].instance for id_ in "bcd"} == {"b": "hp-0", "c": "hp-0", "d": "lp-0"}
    assert [records[id_].first_token_s for id_ in "bc"] == [4.0, 8.0]


def test_an_lp_instance_computes_2048_tokens_a_step() -> None:
    # With 512 a step the first token would come at 4.
    system = pooled_system(num_blocks=1024, max_num_batched_tokens=8192)
    records, _ = run(
        [request("a", 0.0, 2048, 2)], {"lp": preset("ascendra-lp"), "hp": preset("ascendra-hp")}, system
    )
    assert (records["a"].instance, records["a"].first_token_s) == ("lp-0", 1.0)


@pytest.mark.parametrize("router", ["round-robin", "least-work"])
def test_where_nobody_hands_off_nobody_is_given_up(router: str) -> None:
    for pools in ("lp=1", "lp=1,hp=1"):
        records, _ = run(PAIR, giving_up(), pooled_system(pools, router=router, max_num_seqs=1))
        assert sorted(records) == ["a", "b"]


def test_moves_are_counted_and_are_no_ends() -> None:
    records, _ = run(PAIR, giving_up(), pooled_system(max_num_seqs=1))
    summary = summarize(list(records.values()))
    assert (summary.requests, summary.finished, summary.handed_off) == (2, 2, 1)


def test_a_ticket_is_issued_again_when_the_first_token_is_out() -> None:
    # hp-0 gives its first ticket when the first request has gone by. a takes it at 0.2, and its first token is out at
    # 1.2; b finds none at 0.5, and c the next at 1.5.
    comes_s = {"0": 0.0, "a": 0.2, "b": 0.5, "c": 1.5, "d": 1.6}
    requests = [request(id_, at_s, 4, 3) for id_, at_s in comes_s.items()]
    records, _ = run(requests, {"lp": preset("vllm"), "hp": preset("vllm")}, pooled_system(router="ascendra"))
    assert {id_: record.instance for id_, record in records.items()} == {
        "0": "lp-0",
        "a": "hp-0",
        "b": "lp-0",
        "c": "hp-0",
        "d": "lp-0",
    }


def test_an_instance_that_steps_ahead_is_stopped_for_a_hand_off() -> None:
    # hp-0 has h alone, by ticket, until 9; a1 and a2 take the seats of lp-0, and b waits there. Nobody comes from
    # outside after 0.5, but at 3 b is handed over. It comes behind all else of that instant, hp-0's step from 3 to 4
    # too, and is prefilled beside h's decode from 4 to 5.
    at_0 = [request(id_, 0.0, 4, tokens) for id_, tokens in (("a1", 6), ("h", 9), ("a2", 6))]
    records, _ = run([*at_0, request("b", 0.5, 4, 2)], giving_up(), pooled_system(router="ascendra"))
    assert [records[id_].instance for id_ in ("h", "a1", "a2", "b")] == ["hp-0", "lp-0", "lp-0", "hp-0"]
    assert records[moved("b")].finished_s == 3.0
    assert (records["b"].first_token_s, records["h"].finished_s) == (5.0, 9.0)


def test_each_pool_needs_a_policy() -> None:
    with pytest.raises(ConfigError, match=r"pool 'hp' has no policy; accepted: lp"):
        run(PAIR, {"lp": preset("vllm")}, pooled_system())


@st.composite
def pooled_systems(draw: st.DrawFn) -> System:
    """One or two engines of each pool, short of blocks or seats, tickets or none."""
    return pooled_system(
        f"lp={draw(st.integers(1, 2))},hp={draw(st.integers(1, 2))}",
        draw(st.sampled_from(["ascendra", "ascendra-no-ticket", "ascendra-revoke"])),
        calibration(LAW, NOISE, host_s=draw(st.sampled_from([0.0, 0.05]))),
        num_blocks=draw(st.sampled_from([32, 60, 400])),
        max_num_seqs=draw(st.integers(1, 6)),
        asynchronous=draw(st.booleans()),
    )


@FEW
@given(trace=traces(), system=pooled_systems(), patience_s=st.sampled_from([0.0, 1.0, 7.0]))
def test_every_request_ends_once_wherever_it_goes(
    trace: list[TraceRequest], system: System, patience_s: float
) -> None:
    records, _ = run(trace, giving_up(patience_s), system)  # `run` refuses a second end, and a second move
    assert {request.id for request in trace} == {id_ for id_ in records if ", " not in id_}
    asked = {request.id: (request.arrival_s, request.slo) for request in trace}
    assert all((record.arrival_s, record.slo) == asked[record.id] for record in records.values())
    for record in records.values():
        if record.outcome is Outcome.HANDED_OFF:
            assert record.instance.startswith("lp-")
            end = records[record.id].instance
            assert end.startswith("hp-")


@FEW
@given(trace=traces(), system=pooled_systems(), patience_s=st.sampled_from([0.0, 1.0, 7.0]))
def test_stepping_over_stretches_changes_nothing(
    trace: list[TraceRequest], system: System, patience_s: float
) -> None:
    same_either_way(trace, giving_up(patience_s), system)


@FEW
@given(trace=traces(), system=pooled_systems())
def test_nor_does_it_under_ascendra(trace: list[TraceRequest], system: System) -> None:
    same_either_way(trace, {"lp": preset("ascendra-lp"), "hp": preset("ascendra-hp")}, system)
