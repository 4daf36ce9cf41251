from __future__ import annotations

import pytest

from headway.routing.cache_aware import ANSWER_WEIGHT, CacheAware
from headway.routing.prefill_decode import PrefillDecode, for_answers, for_prompts
from tests.strategies import make_job

NAMES = ("prefill-0", "prefill-1", "decode-0", "decode-1")


def test_who_computes_what() -> None:
    assert for_prompts(NAMES) == ["prefill-0", "prefill-1"]
    assert for_answers(NAMES) == ["decode-0", "decode-1"]
    assert for_answers(NAMES[:2]) == NAMES[:2]
    assert PrefillDecode().route(make_job("a"), NAMES[:1]) == "prefill-0"


def test_each_stage_goes_where_least_of_it_is_to_do() -> None:
    """Prompts of 100, 10 and 20 tokens: the third follows the second. Answers are counted apart, prompts with them."""
    router = PrefillDecode()
    prompts = for_prompts(NAMES)
    jobs = [make_job(f"{number}", prompt=prompt) for number, prompt in enumerate((100, 10, 20))]
    assert [router.prefill(job, prompts) for job in jobs] == ["prefill-0", "prefill-1", "prefill-1"]
    router.prefilled(jobs[0])
    assert router.prefill(make_job("3", prompt=5), prompts) == "prefill-0"
    assert [router.route(job, NAMES) for job in jobs] == ["decode-0", "decode-1", "decode-1"]
    router.end(jobs[0])
    assert router.route(make_job("4", prompt=40), NAMES) == "decode-0"


def test_a_prompt_follows_its_prefix_until_the_instance_is_lost() -> None:
    router, blocks = PrefillDecode(), tuple(range(8))
    prompts = for_prompts(NAMES)
    chosen = []
    for number in range(3):
        job = make_job(f"{number}", prompt=4096, prefix_blocks=blocks)
        chosen.append(router.prefill(job, prompts))
        router.prefilled(job)
    assert len({*chosen}) == 1
    router.lost(chosen[0])
    other = next(name for name in prompts if name != chosen[0])
    router.prefill(make_job("x", prompt=10), [chosen[0]])
    assert router.prefill(make_job("y", prompt=4096, prefix_blocks=blocks), prompts) == other


@pytest.mark.parametrize("answers", [True, False])
def test_prompts_alone_are_not_weighed_as_answers(answers: bool) -> None:
    """Three short prompts at one instance against a longer one: with answers, of 200 tokens at first, jobs count."""
    router = CacheAware(answers=answers)
    for number in range(3):
        router.route(make_job(f"{number}", prompt=10), ["x"])
    router.route(make_job("long", prompt=500), ["y"])
    assert 3 * (10 + ANSWER_WEIGHT * 200) > 500 + ANSWER_WEIGHT * 200
    assert router.route(make_job("next", prompt=10), ["x", "y"]) == ("y" if answers else "x")
