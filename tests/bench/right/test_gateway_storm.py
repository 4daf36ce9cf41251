"""Requests through a gateway whose instances are killed, frozen and made to answer garbage: all are accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.right import gateway_storm
from bench.right.gateway_storm import HOSTILE, REAL, SMALL, questions
from bench.right.storm_clients import Asked, Ending, Heard, is_wrong, unaccounted, undisturbed

ASKED = Asked("a", "hello", 3)
ENDS = {"hung": 0, "broken": 0, "refused": 0, "interrupted": 0}


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_every_request_ends_once(tmp_path: Path) -> None:
    plan = replace(
        SMALL, pools="lp=2,hp=1", requests=120, rate_rps=40.0, texts=5, harm_every_s=0.8, freeze_s=3.0
    )
    # A third of the time no instance is there.
    plan = replace(plan, most_refused=0.3, most_interrupted=0.3)
    result = gateway_storm.run(plan, tmp_path)
    log = (tmp_path / "log").read_text(errors="replace")
    assert gateway_storm.passed(result), f"{result}\n{log[-3000:]}"
    assert sum(result["ends"].values()) == result["requests"] == 120
    assert min(result["harm"].values()) >= 1
    assert result["restarts"] >= 1
    assert result["handed_off"] > 0


def heard(ending: Ending, text: str = "") -> Heard:
    return Heard(ASKED, ending, text=text)


@pytest.mark.parametrize(
    ("ending", "logged", "is_bad"),
    [
        (Ending.FINISHED, ["finished"], False),
        (Ending.FINISHED, ["finished", "finished"], True),
        (Ending.FINISHED, [], True),
        (Ending.FINISHED, ["failed"], True),
        (Ending.REFUSED, ["shed"], False),
        (Ending.REFUSED, ["finished"], True),
        (Ending.INTERRUPTED, ["failed"], False),
        (Ending.LEFT, ["cancelled"], False),
        (Ending.LEFT, [], False),
        (Ending.LEFT, ["cancelled", "finished"], True),
        (Ending.BROKEN, ["failed"], True),
        (Ending.HUNG, ["failed"], True),
    ],
)
def test_an_end_is_told_once_and_alike(ending: Ending, logged: list[str], is_bad: bool) -> None:
    lines = [{"id": "a", "outcome": outcome} for outcome in logged]
    assert unaccounted([heard(ending)], lines) == (["a"] if is_bad else [])


def test_a_line_that_nobody_asked_for_counts() -> None:
    assert unaccounted([], [{"id": "b", "outcome": "finished"}]) == ["b"]


def test_answers_are_held_against_the_undisturbed_ones() -> None:
    right = {("hello", False): "one two"}
    assert not is_wrong(heard(Ending.FINISHED, "one two"), right)
    assert is_wrong(heard(Ending.FINISHED, "one"), right)
    assert not is_wrong(heard(Ending.INTERRUPTED, "one"), right)
    assert is_wrong(heard(Ending.LEFT, "two"), right)


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        ({}, True),
        ({"unaccounted": 1}, False),
        ({"wrong": 1}, False),
        ({"exit_code": 1}, False),
        ({"recovered": False}, False),
        ({"ends": {**ENDS, "hung": 1}}, False),
        ({"ends": {**ENDS, "broken": 1}}, False),
        ({"ends": {**ENDS, "refused": 10, "interrupted": 5}}, True),
        ({"ends": {**ENDS, "refused": 11}}, False),
        ({"ends": {**ENDS, "interrupted": 6}}, False),
        ({"gateway_memory_mib": {"start": 60.0, "peak": 120.0, "end": 60.0}}, False),
    ],
)
def test_what_must_not_be(change: dict[str, Any], passed: bool) -> None:
    good = {
        "unaccounted": 0,
        "wrong": 0,
        "exit_code": 0,
        "recovered": True,
        "ends": ENDS,
        "at_most": {"refused": 10.0, "interrupted": 5.0},
        "gateway_memory_mib": {"start": 60.0, "peak": 70.0, "end": 60.0},
    }
    assert gateway_storm.passed({**good, **change}) is passed


@pytest.mark.parametrize(
    ("change", "withstood"),
    [
        ({}, True),
        ({"good_alone": 0.9, "good_beside": 0.86}, True),
        ({"good_beside": 0.9}, False),
        ({"good_alone": 0.0, "good_beside": 0.0}, False),
        ({"health_ms": {"p50": 1.0, "p99": 251.0}}, False),
        ({"gateway_memory_mib": {"start": 60.0, "peak": 161.0, "end": 60.0}}, False),
        ({"leaks": 1}, False),
        ({"attacks": 4999}, False),
        ({"wrong": 1}, False),
        ({"exit_code": 1}, False),
    ],
)
def test_what_attackers_must_not_do(change: dict[str, Any], withstood: bool) -> None:
    good = {
        "good_alone": 1.0,
        "good_beside": 1.0,
        "health_ms": {"p50": 1.0, "p99": 200.0},
        "gateway_memory_mib": {"start": 60.0, "peak": 160.0, "end": 60.0},
        "allowed_mib": 100.0,
        "attacks": 5000,
        "wrong": 0,
        "leaks": 0,
        "exit_code": 0,
    }
    assert gateway_storm.withstood({**good, **change}) is withstood


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_honest_tenants_are_served_beside_attackers(tmp_path: Path) -> None:
    plan = replace(HOSTILE, requests=75, texts=4)
    result = gateway_storm.run(plan, tmp_path, hostile=True)
    log = (tmp_path / "log").read_text()[-3000:]
    # How soon they are served is the bench's to judge, on a machine that has time for both.
    assert not any(result[key] for key in ("wrong", "leaks", "exit_code")), f"{result}\n{log}"
    assert result["ends"]["finished"] == result["requests"] == 75
    assert len(result["answers"]) > 20
    assert "200" in result["answers"]["its share, over and over"]


def test_the_same_seed_asks_the_same() -> None:
    plan = replace(SMALL, requests=100, texts=5)
    assert questions(plan) == questions(plan)
    calm, requests = questions(plan)
    assert len(calm) == 10
    assert len({asked.id for _, asked in requests}) == 100
    assert [at_s for at_s, _ in requests] == sorted(at_s for at_s, _ in requests)
    assert any(asked.leaves_after_s for _, asked in requests)


async def test_a_client_notices_that_nobody_is_there(unused_tcp_port: int) -> None:
    (one,) = await undisturbed(f"http://127.0.0.1:{unused_tcp_port}", [ASKED], "small", 10.0)
    assert one.ending is Ending.BROKEN
    assert "ClientConnectorError" in one.said


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_request_ends_once_whatever_happens_to_the_instances(tmp_path: Path) -> None:
    # This seed freezes hp-0 after 5.6 s and kills lp-0, with its streams, after 12.1 s of 16.
    plan = replace(REAL, requests=130, rate_rps=8.0, harm_every_s=5.0, freeze_s=3.0, seed=5)
    result = gateway_storm.run(plan, tmp_path)
    log = (tmp_path / "log").read_text(errors="replace")
    assert gateway_storm.passed(result), f"{result}\n{log[-3000:]}"
    assert sum(result["ends"].values()) == result["requests"] == 130
    assert result["ends"]["left"] > 0
    assert result["harm"]["kills"] >= 1
    assert result["harm"]["freezes"] >= 1
    assert 1 <= result["restarts"] <= result["harm"]["kills"]
    assert result["resumed"] > 0
