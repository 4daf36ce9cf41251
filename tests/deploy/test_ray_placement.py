"""Headway's routers on Ray, called as Ray's request router calls them."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.slo import NO_TARGETS, Slo
from headway.routing import build_router

REPLICAS = ["b", "a"]


def placement(router: str = "least-work", *, sees_ends: bool = True) -> Any:
    module = import_module("headway_ray.placement")
    return module.Placement(build_router(router), sees_ends=sees_ends, clock=lambda: 7.0)


def job_of(request: Any) -> Job:
    job: Job = import_module("headway_ray.placement").job_of("1", request, 7.0)
    return job


def request(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"prompt": "x" * 400, "max_tokens": 10, **fields})


def test_the_router_decides_and_knows_what_has_ended() -> None:
    placed = placement()
    assert placed.choose("1", request(), REPLICAS) == "a"  # both empty: the first by name
    assert placed.choose("2", request(), REPLICAS) == "b"
    placed.ended("1")
    assert placed.choose("3", request(), REPLICAS) == "a"


def test_asked_again_a_request_stays_where_it_was_put() -> None:
    placed = placement("round-robin")
    assert [placed.choose("1", request(), REPLICAS) for _ in range(3)] == ["a", "a", "a"]
    assert placed.choose("2", request(), REPLICAS) == "b"


def test_a_request_whose_replica_is_gone_is_placed_again() -> None:
    placed = placement()
    assert placed.choose("1", request(), REPLICAS) == "a"
    assert placed.choose("1", request(), ["b"]) == "b"
    assert placed.choose("2", request(), REPLICAS) == "a"


def test_the_end_of_what_is_not_known_changes_nothing() -> None:
    placed = placement()
    placed.ended("never")
    placed.choose("1", request(), REPLICAS)
    placed.ended("1")
    placed.ended("1")
    assert placed.choose("2", request(), REPLICAS) == "a"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60), st.booleans())
def test_nothing_is_kept_of_what_has_ended(calls: list[tuple[str, bool]], sees_ends: bool) -> None:
    """Whatever comes and ends, in whatever order: the live requests are kept, or nothing if no ends are seen."""
    placed, live = placement(sees_ends=sees_ends), set()
    for name, ends in calls:
        if ends:
            placed.ended(name)
            live.discard(name)
        else:
            assert placed.choose(name, request(), REPLICAS) in REPLICAS
            live.add(name)
    assert set(placed._placed) == (live if sees_ends else set())


def test_a_router_knows_of_a_request_what_it_says() -> None:
    xargs = {"headway_ttft_ms": 800, "headway_tbt_ms": "50", "headway_tenant": "a"}
    job = job_of(request(priority=2, vllm_xargs=xargs))
    assert job.slo == Slo(ttft_s=0.8, tbt_s=0.05)
    assert (job.tenant, job.priority, job.num_prompt_tokens, job.max_output_tokens) == ("a", 2, 100, 10)
    assert (job.id, job.arrival_s) == ("1", 7.0)


@pytest.mark.parametrize(
    "known",
    [
        None,
        request(prompt=None, messages=None),
        request(vllm_xargs={"headway_ttft_ms": "soon"}, priority=None, max_tokens=None),
        request(vllm_xargs={"headway_ttft_ms": -1, "headway_tenant": 7}),
    ],
)
def test_what_is_not_known_or_will_be_refused_counts_as_not_said(known: Any) -> None:
    job = job_of(known)
    assert job.slo == NO_TARGETS
    assert job.tenant == ""
    assert job.priority == 0


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": "x" * 8}, 2),
        ({"prompt": None, "messages": [{"role": "user", "content": "x" * 400}]}, 100),
    ],
)
def test_a_prompts_length_is_counted_or_guessed(fields: dict[str, Any], tokens: int) -> None:
    assert tokens <= job_of(request(**fields)).num_prompt_tokens <= tokens + 10
