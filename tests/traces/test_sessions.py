"""Sessions in a closed loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import TraceError
from headway.traces import TraceRequest, at_once, closed_loop, read_trace, scale_rate, write_trace
from headway.traces.sessions import after, parted


def turn(id_: str, arrival_s: float, session: str | None = "s", **fields: object) -> TraceRequest:
    return TraceRequest(id_, arrival_s, 8, 100, session=session, **fields)  # type: ignore[arg-type]


def test_a_recorded_gap_less_the_answers_assumed_time_is_a_think_time() -> None:
    found = closed_loop([turn("a", 0.0), turn("lone", 1.0, None), turn("b", 5.0), turn("c", 6.0)])
    assert [request.think_s for request in found] == [None, None, 3.0, 0.0]


def test_a_told_think_time_stays() -> None:
    assert closed_loop([turn("a", 0.0), turn("b", 5.0, think_s=0.5)])[1].think_s == 0.5


def test_a_closed_loop_without_second_turns_is_refused() -> None:
    with pytest.raises(TraceError, match="no session of the trace has two turns"):
        closed_loop([turn("a", 0.0), turn("b", 1.0, "t"), turn("c", 2.0, None)])


def test_later_turns_wait_each_for_the_one_before() -> None:
    first, second, third = (
        turn("a", 0.0, think_s=9.0),
        turn("b", 1.0, think_s=2.0),
        turn("c", 4.0, think_s=0.0),
    )
    other = turn("d", 3.0, "t", think_s=1.0)
    free, waiting = parted([first, second, other, third])
    assert [*free] == [first, other]
    assert waiting == {"a": second, "b": third}
    assert after(second, 10.0) == replace(second, arrival_s=12.0)


def test_sessions_of_one_name_under_two_tenants_are_two() -> None:
    free, waiting = parted([turn("a", 0.0), turn("b", 1.0, think_s=1.0, tenant="other")])
    assert [request.id for request in free] == ["a", "b"]
    assert not waiting


def test_a_turn_that_waits_is_refused_of_what_comes_one_by_one() -> None:
    free, _ = parted(iter([turn("a", 0.0), turn("b", 1.0, think_s=1.0)]))
    assert next(free).id == "a"
    with pytest.raises(TraceError, match="'b' waits for an answer"):
        next(free)


def test_think_times_survive_a_round_trip(tmp_path: Path) -> None:
    requests = [turn("a", 0.0), turn("b", 1.0, think_s=2.5)]
    write_trace(requests, tmp_path / "t.csv")
    assert read_trace(tmp_path / "t.csv") == requests


def test_a_denser_trace_has_the_same_think_times() -> None:
    [_, second] = scale_rate([turn("a", 0.0), turn("b", 4.0, think_s=2.0)], 2.0)
    assert (second.arrival_s, second.think_s) == (2.0, 2.0)


def test_all_at_once_waits_for_none() -> None:
    assert at_once([turn("a", 0.0), turn("b", 4.0, think_s=2.0)])[1].think_s is None


@pytest.mark.parametrize("think_s", [-1.0, float("nan"), True])
def test_a_think_time_is_seconds(think_s: float) -> None:
    with pytest.raises(TraceError, match="think_s"):
        turn("a", 0.0, think_s=think_s)


def test_turns_of_one_id_are_refused_rather_than_lost() -> None:
    with pytest.raises(TraceError, match="id 'a' occurs twice; accepted: distinct ids"):
        parted([turn("a", 0.0), turn("a", 1.0, think_s=1.0), turn("c", 2.0, think_s=1.0)])
