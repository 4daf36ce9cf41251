"""Turns that wait for answers, on the virtual clock."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.presets import build_policy, find_preset
from headway.results import summarize
from headway.sim.simulation import System
from headway.traces import TraceRequest
from tests.sim.test_shortcut import systems
from tests.sim.worlds import LIMIT, Linear, calibration, limits, request, run


def test_a_turn_comes_when_the_answer_has_ended_and_its_tool_has_run() -> None:
    turns = [
        request("a", 0.0, prompt=4, output=3, session="s"),
        request("b", 1.0, prompt=4, output=2, session="s", think_s=2.0),
        request("c", 50.0, prompt=4, output=1, session="s", think_s=0.0),
    ]
    records, _ = run(turns)  # a second a step, whatever is in it
    assert {id_: (each.arrival_s, each.finished_s) for id_, each in records.items()} == {
        "a": (0.0, 3.0),
        "b": (5.0, 7.0),
        "c": (7.0, 8.0),
    }
    summary = summarize([*records.values()])
    assert (summary.programs, summary.mean_program_s, summary.p99_program_s) == (1, 8.0, 8.0)


def test_a_turn_follows_one_that_fails_too() -> None:
    small = System(limits=limits(num_blocks=2), calibration=calibration())
    turns = [
        request("long", 1.0, prompt=40, output=1, session="s"),
        request("next", 2.0, prompt=4, output=1, session="s", think_s=3.0),
    ]
    records, _ = run(turns, system=small)
    assert records["next"].arrival_s == 4.0
    summary = summarize([*records.values()])
    assert (summary.programs, summary.mean_program_s) == (0, None)


@st.composite
def sessions(draw: st.DrawFn) -> list[TraceRequest]:
    turns = draw(st.lists(st.tuples(st.sampled_from("uvw"), st.integers(0, 40)), min_size=1, max_size=10))
    return [
        request(
            f"{number:02}",
            number * 1.5,
            draw(st.integers(1, 60)),
            draw(st.integers(1, LIMIT)),
            session=name,
            think_s=think / 4,
            prefix_blocks=(ord(name),),
        )
        for number, (name, think) in enumerate(turns)
    ]


@pytest.mark.slow
@given(trace=sessions(), system=systems(), policy=st.sampled_from(["vllm", "headway", "fastserve"]))
def test_stepping_over_stretches_changes_no_session(
    trace: list[TraceRequest], system: System, policy: str
) -> None:
    system = replace(system, limits=replace(system.limits, num_blocks=400))
    closely, _ = run(trace, policy, system, shortcut=False)
    records, _ = run(trace, policy, system)
    assert records == closely
    ends: dict[str | None, float | None] = {}
    for each in sorted(closely.values(), key=lambda record: record.id):
        if each.program in ends:
            follower = next(one for one in trace if one.id == each.id)
            before_s = ends[each.program]
            assert before_s is not None
            assert follower.think_s is not None
            assert each.arrival_s == before_s + follower.think_s
        ends[each.program] = each.finished_s


@pytest.mark.slow
def test_a_program_is_kept_where_its_tools_are_fast_and_memory_is_short() -> None:
    """Three programs of 40 tokens take turns in a memory of 100 tokens; without care each turn computes all again."""
    turns = [
        request(
            f"{program}{turn:02}",
            0.1 * program + turn,
            prompt=40,
            output=2,
            session=f"{program}",
            think_s=1.0,
            prefix_blocks=(program,),
        )
        for turn in range(20)
        for program in range(3)
    ]
    small = System(
        limits=limits(num_blocks=25, max_num_batched_tokens=16),
        calibration=replace(calibration(Linear(0.1, 0.2)), kv_capacity_tokens=100),
    )
    found = {}
    for keeps in (False, True):
        row = replace(find_preset("headway"), keeps_programs=keeps)
        _, result = run(turns, partial(build_policy, row), small)
        found[keeps] = result.total("cached_tokens"), result.end_s
    assert found[True][0] > 1.2 * found[False][0]
    assert found[True][1] < found[False][1]
