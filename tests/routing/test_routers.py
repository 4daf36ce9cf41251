from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.routing import ROUTERS, build_router
from headway.routing.load import OutstandingWork
from tests.strategies import make_job

THREE = ("x", "y", "z")


@pytest.mark.parametrize("name", ROUTERS)
@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30), st.integers(1, 4))
def test_every_job_gets_one_of_the_instances_and_repeats_do_not_differ(
    name: str, steps: list[tuple[int, bool]], count: int
) -> None:
    instances = tuple("abcd"[:count])

    def chosen() -> list[str]:
        router, live, answers = build_router(name), [], []
        for number, (prompt, ends) in enumerate(steps):
            job = make_job(f"{number}", prompt=prompt)
            answers.append(router.route(job, instances))
            live.append(job)
            if ends:
                router.end(live.pop(0))
        return answers

    answers = chosen()
    assert set(answers) <= set(instances)
    assert answers == chosen()


def test_round_robin_takes_turns() -> None:
    router = build_router("round-robin")
    assert [router.route(make_job(f"{n}"), THREE) for n in range(5)] == ["x", "y", "z", "x", "y"]


def test_least_work_by_hand() -> None:
    # 30 tokens to x, 10 each to y and z, then the first of the two equals; when it ends, x has 30, y 10, z 10 + 10.
    router = build_router("least-work")
    jobs = [make_job(f"{n}", prompt=prompt) for n, prompt in enumerate([30, 10, 10, 10, 5])]
    assert [router.route(job, THREE) for job in jobs[:4]] == ["x", "y", "z", "y"]
    router.end(jobs[1])
    assert router.route(jobs[4], THREE) == "y"


def test_an_answer_counts_as_long_as_those_that_have_ended_were() -> None:
    work = OutstandingWork()
    first, second = make_job("a", prompt=10), make_job("b", prompt=10)
    work.place(first, "x")
    assert work.tokens("x") == 10
    first.num_output_tokens = 6
    work.end(first)
    work.place(second, "x")
    assert work.tokens("x") == 16
    assert work.tokens("y") == 0


def test_who_got_no_answer_says_nothing_of_how_long_answers_are() -> None:
    work = OutstandingWork()
    answered, refused, live = (make_job(name, prompt=10) for name in "abc")
    answered.num_output_tokens = 6
    for job in (answered, refused):
        work.place(job, "x")
        work.end(job)
    work.place(live, "x")
    assert work.tokens("x") == 16


def test_a_job_placed_again_is_outstanding_where_it_is_now() -> None:
    work = OutstandingWork()
    job = make_job("a", prompt=10)
    work.place(job, "x")
    work.place(job, "y")
    assert (work.tokens("x"), work.tokens("y")) == (0, 10)
    work.end(job)
    assert work.tokens("y") == 0


def test_of_a_prompt_counts_what_is_to_be_computed_until_it_is() -> None:
    work = OutstandingWork(answer_weight=5.0, guesses=1, guessed_tokens=20)
    job = make_job("a", prompt=10)
    work.place(job, "x", 4)
    assert work.tokens("x") == 4 + 5 * 20
    work.prompt_done(job)
    assert work.tokens("x") == 5 * 20
    job.num_output_tokens = 6
    work.end(job)
    assert work.tokens("x") == 0
    work.place(make_job("b", prompt=10), "x")
    assert work.tokens("x") == 10 + 5 * (20 + 6) / 2


@pytest.mark.parametrize("name", ["round-robin", "least-work", "power-of-two"])
def test_routers_without_pools_take_no_hand_off_and_need_no_news_of_starts(name: str) -> None:
    told, untold = build_router(name), build_router(name)
    chosen = []
    for number in range(12):
        job = make_job(f"{number}", prompt=number + 1)
        chosen.append((told.route(job, THREE), untold.route(job, THREE)))
        told.started(job)
        assert told.hand_off(job, THREE) is None
        if number % 3:
            told.end(job)
            untold.end(job)
    assert all(one == other for one, other in chosen)


def test_power_of_two_spreads_and_is_nearly_as_even_as_looking_at_all() -> None:
    counts = {}
    for name in ROUTERS:
        router = build_router(name)
        counts[name] = Counter(router.route(make_job(f"request-{n}"), "abcdefgh") for n in range(800))
    assert set(counts["least-work"].values()) == {100}
    assert max(counts["power-of-two"].values()) - min(counts["power-of-two"].values()) <= 6


def test_an_unknown_router_is_named() -> None:
    with pytest.raises(
        ConfigError, match="unknown router 'best'; accepted: round-robin, least-work, power-of-two"
    ):
        build_router("best")


@pytest.mark.parametrize("name", ROUTERS)
def test_who_hands_nothing_off_never_names_another(name: str) -> None:
    router, job, instances = build_router(name), make_job(), ("lp-0", "hp-0")
    router.route(job, instances)
    assert (router.hand_off(job, instances) is not None) == router.hands_off
