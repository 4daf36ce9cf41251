from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.routing import build_router, sent_prefixes
from headway.routing.prompt_blocks import BYTES_PER_TOKEN, prompt_blocks
from headway.routing.sent_prefixes import SentPrefixes
from tests.strategies import make_job

TWO = ("x", "y")
BLOCK_BYTES = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN


def turn(name: str, blocks: tuple[int, ...], more_tokens: int = 88) -> Job:
    job = make_job(name, prompt=len(blocks) * PREFIX_BLOCK_TOKENS + more_tokens)
    job.prefix_blocks = blocks
    return job


def test_a_conversation_stays_until_waiting_costs_more_than_computing_it_again() -> None:
    # Prompts of 600 tokens, which all begin with the same 512. The first goes to x, the first of two equals. For the
    # others x has to compute 88 tokens, which count 4 x 88 = 352, and y 600, 2,400; each answer at x counts 5 x 200. So
    # x costs 1,352 and 2,352 and is chosen; the fourth would cost 3,352 there.
    router = build_router("cache-aware")
    for name, expected in (("first", "x"), ("second", "x"), ("third", "x"), ("fourth", "y")):
        job = turn(name, (1,))
        assert router.route(job, TWO) == expected
        router.started(job)


def test_prompts_wait_where_they_are_until_their_first_token_is_out() -> None:
    router = build_router("cache-aware")
    long, short = make_job("long", prompt=5000), make_job("short", prompt=10)
    assert [router.route(job, TWO) for job in (long, short)] == ["x", "y"]
    assert router.route(make_job("third", prompt=10), TWO) == "y"  # y has two, and still less to do than x
    router.started(long)
    assert router.route(make_job("fourth", prompt=10), TWO) == "x"  # one answer there, two at y


def test_what_all_prompts_begin_with_holds_nobody_back() -> None:
    router, shared = build_router("cache-aware"), tuple(range(8))
    chosen = Counter(router.route(turn(f"{number}", shared), "abcd") for number in range(400))
    assert max(chosen.values()) - min(chosen.values()) <= 6


def test_without_anything_in_common_it_spreads_evenly() -> None:
    router = build_router("cache-aware")
    chosen = Counter(router.route(make_job(f"{number}", prompt=100), "abcd") for number in range(400))
    assert set(chosen.values()) == {100}


def test_conversations_that_take_turns_each_keep_their_instance() -> None:
    router = build_router("cache-aware")
    homes: dict[int, set[str]] = {}
    for length in range(1, 6):
        for talk in range(6):
            job = turn(f"{talk}-{length}", tuple(100 * talk + block for block in range(length)))
            homes.setdefault(talk, set()).add(router.route(job, "abc"))
            router.started(job)
            job.num_output_tokens = 50
            router.end(job)
    assert all(len(homes_of_one) == 1 for homes_of_one in homes.values())


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12), st.lists(st.integers(0, 2), max_size=6)
)
def test_found_is_the_longest_beginning_of_any_that_was_sent(sent: list[list[int]], asked: list[int]) -> None:
    known = SentPrefixes()
    for path in sent:
        known.use(named(path))
    expected = max((common(path, asked) for path in sent), default=0)
    assert known.found(named(asked)) == expected


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_a_block_that_is_remembered_stands_for_all_before_it(sent: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sent_prefixes, "MOST_BLOCKS", 4)
        known = SentPrefixes()
        for path in sent:
            blocks = named(path)
            known.use(blocks)
            assert known.found(blocks) == min(4, len(blocks))
    for path in sent:
        blocks = named(path)
        found = known.found(blocks)
        assert all(
            (known.found(blocks[:length]) == length) == (length <= found) for length in range(len(blocks) + 1)
        )


def named(path: list[int]) -> tuple[int, ...]:
    """A name for each step of a path, for the way there too."""
    return tuple(hash(tuple(path[: length + 1])) for length in range(len(path)))


def common(one: list[int], other: list[int]) -> int:
    return sum(one[: length + 1] == other[: length + 1] for length in range(min(len(one), len(other))))


@given(st.binary(max_size=3), st.binary(max_size=3), st.integers(0, 4), st.integers(0, 2 * BLOCK_BYTES))
def test_prompts_have_as_many_names_in_common_as_whole_blocks(
    one_end: bytes, other_end: bytes, blocks: int, rest_bytes: int
) -> None:
    shared = b"x" * (blocks * BLOCK_BYTES + rest_bytes)
    one, other = (
        prompt_blocks(shared + end + end * BLOCK_BYTES) for end in (b"1" + one_end, b"2" + other_end)
    )
    whole = len(shared) // BLOCK_BYTES
    assert one[:whole] == other[:whole]
    assert not set(one[whole:]) & set(other[whole:])
    assert len(prompt_blocks(shared)) == whole


def test_equal_blocks_at_another_place_or_under_another_model_have_another_name() -> None:
    prompt = b"x" * (3 * BLOCK_BYTES)
    names = prompt_blocks(prompt, within=b"model")
    assert len(set(names)) == 3
    assert not set(names) & set(prompt_blocks(prompt, within=b"another"))
    assert len(prompt_blocks(prompt, bytes_per_token=2 * BYTES_PER_TOKEN)) == 1
