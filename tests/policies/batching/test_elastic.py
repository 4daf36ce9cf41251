"""Which jobs start beside residents whose answers are still to come; blocks of 4."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from headway.core.job import Job
from headway.errors import ConfigError
from headway.policies.batching.elastic import Elastic
from headway.policies.order.keyed import ShortestPrompt
from tests.policies.batching.scene import Scene
from tests.strategies import decoding, ids, make_job, prefilling


def expecting(tokens: int, **settings: Any) -> Elastic:
    """The batching after an answer of that length."""
    batching = Elastic(**settings)
    batching.finished(decoding("before", output=tokens))
    return batching


def scene(batching: Elastic, *waiting: Job, residents: list[Job] | None = None, **view: Any) -> Scene:
    """100 blocks of 4, and a budget of 64 tokens."""
    return Scene(batching, residents=residents, **{"free_blocks": 100, **view}).wait(*waiting)


def test_newcomers_start_while_there_is_room_for_all_that_is_to_come() -> None:
    # Answers are expected to be 20 long. x has brought 8 of them: 12 to come, 3 blocks of the 20 free. a and b take
    # 2 + 5 each, which leaves 3; c would take as much.
    waiting = [make_job(name, prompt=8, limit=99) for name in "abc"]
    x = decoding("x", output=8, limit=99)
    plan = scene(expecting(20), *waiting, residents=[x], free_blocks=20).plan()
    assert (ids(plan.run), ids(plan.admit), plan.whole_prompts) == ([], ["a", "b"], True)


def test_nothing_is_kept_for_what_is_past_the_expected_or_past_its_limit() -> None:
    # x has outgrown the 20, y may bring 4 at most: 1 block. So of 17 blocks a takes 2 + 5, b as much, and c has 2.
    residents = [decoding("x", output=30, limit=99), decoding("y", output=6, limit=10)]
    waiting = [make_job(name, prompt=8, limit=99) for name in "abc"]
    assert ids(scene(expecting(20), *waiting, residents=residents, free_blocks=17).plan().admit) == ["a", "b"]


def test_strictly_first_come_first_served() -> None:
    waiting = [make_job("a", prompt=60), make_job("b", prompt=1)]
    plan = scene(expecting(1), *waiting, residents=[decoding("x")], free_blocks=14).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["x"], [])


def test_a_tenth_of_the_memory_stays_free() -> None:
    def starts(free_blocks: int) -> list[str]:
        return ids(
            scene(Elastic(), make_job("a", prompt=4), residents=[decoding("x")], free_blocks=free_blocks)
            .plan()
            .admit
        )

    assert (starts(10), starts(11)) == ([], ["a"])


def test_before_the_first_answer_none_is_expected() -> None:
    # 12 free blocks, of which 10 must stay: a takes one, b another, c finds 10.
    waiting = [make_job(name, prompt=4, limit=1000) for name in "abc"]
    assert ids(scene(Elastic(), *waiting, residents=[decoding("x")], free_blocks=12).plan().admit) == [
        "a",
        "b",
    ]


def test_a_prompt_that_is_under_way_goes_first() -> None:
    p = prefilling("p", prompt=100, computed=64)
    plan = scene(Elastic(), make_job("a"), residents=[decoding("x"), p]).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["p"], [])


def test_fixed_starts_up_to_the_width_whatever_memory_there_is() -> None:
    waiting = [make_job(name, prompt=4) for name in "abc"]
    fixed = expecting(1000, elastic=False, width=3)
    assert ids(scene(fixed, *waiting, residents=[decoding("x")], free_blocks=5).plan().admit) == ["a", "b"]
    full = [decoding(name) for name in "xyz"]
    plan = scene(fixed, *waiting, residents=full).plan()
    assert (ids(plan.run), ids(plan.admit)) == (["x", "y", "z"], [])


def test_the_plan_may_change_while_memory_decides() -> None:
    elastic, fixed = Elastic(), Elastic(elastic=False)
    assert elastic.next_change_s(scene(elastic).view) == inf
    assert elastic.next_change_s(scene(elastic, make_job("a")).view) == -inf
    assert (
        elastic.next_change_s(scene(elastic, make_job("a"), residents=[decoding("x")], max_run=1).view) == inf
    )
    assert fixed.next_change_s(scene(fixed, make_job("a")).view) == inf


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="width is 0; accepted: 1 or more residents"):
        Elastic(width=0)
    with pytest.raises(ConfigError, match="statistic is 'best'; accepted: mean, p50, p90"):
        Elastic(statistic="best")
    for window in (0, 10**20):
        with pytest.raises(ConfigError, match=f"window is {window}; accepted: 1 to 1,000,000 answers"):
            Elastic(window=window)


def test_a_budget_bounds_prompts_and_leaves_no_decode_out() -> None:
    residents = [decoding(f"x{number}") for number in range(5)]
    at = scene(Elastic(token_budget=3), residents=residents, max_tokens=64)
    order = ShortestPrompt()  # its ranking is a list of its own
    for job in residents:
        order.add(job)
    plan = at.batching.plan(at.view, order, ())
    assert (len(plan.run), plan.token_budget) == (5, 64)
    at = scene(Elastic(token_budget=3), make_job("a", prompt=9), max_tokens=64)
    assert (ids(at.plan().admit), at.plan().token_budget) == (["a"], 3)
