"""Which turns pass the program scheduling of `bench/gain/program_ttl.py`."""

from __future__ import annotations

from dataclasses import replace

from bench.gain.program_ttl import FORCED_S, ProgramTtl
from headway.core.cost import UnknownCost
from headway.core.job import Job
from tests.strategies import make_job


class Costs(UnknownCost):
    """KV memory for a thousand tokens."""

    kv_tokens = 1000


def turn(name: str, arrival_s: float = 0.0) -> Job:
    return replace(make_job(name, prompt=401), arrival_s=arrival_s, program=name[0])


def test_programs_pass_that_fit_and_the_others_wait_for_an_end() -> None:
    order = ProgramTtl(Costs())
    first, second, third = turn("a1"), turn("b1"), turn("c1")
    for job in (first, second, third):
        order.add(job)
    assert order.top(9, 0.0) == [first]  # each counts with 100 tokens more: with another all would be full
    order.remove(first)
    order.end(first)
    again = turn("a2", 1.0)
    order.add(again)
    assert order.top(9, 1.0) == [again]  # the program that was served last


def test_no_turn_is_held_for_ever() -> None:
    order = ProgramTtl(Costs())
    order.add(first := turn("a1"))
    assert order.top(9, 0.0) == [first]
    order.add(second := turn("b1", 1.0))
    order.remove(first)
    assert order.top(9, FORCED_S) == []
    assert order.top(9, 1.0 + FORCED_S) == [second]
