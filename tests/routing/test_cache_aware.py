from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.routing import Router, build_router, cache_aware
from headway.routing.cache_aware import BYTES_PER_TOKEN, LiveBlocks, SentPrefixes, prompt_blocks
from tests.strategies import make_job

TWO = ("x", "y")
BLOCK_BYTES = PREFIX_BLOCK_TOKENS * BYTES_PER_TOKEN


def turn(name: str, blocks: tuple[int, ...], more_tokens: int = 88) -> Job:
    job = make_job(name, prompt=len(blocks) * PREFIX_BLOCK_TOKENS + more_tokens)
    job.prefix_blocks = blocks
    return job


def answering_at_x(router: Router, jobs: list[Job]) -> None:
    """They are there, and their prompts are computed."""
    for job in jobs:
        router.route(job, ("x",))
        router.started(job)


def test_a_conversation_stays_until_waiting_costs_more_than_computing_it_again() -> None:
    # The first turn, of 4 blocks, goes to x, the first of two equals, and ends. The next has 5 blocks, which y would
    # have to compute, x one: 5 x 512 x 8 = 20,480 and 4,096 tokens. Each other request at x counts 5 x 200, so that 16
    # of them still leave x the cheaper one, and 17 do not.
    for others, expected in ((16, "x"), (17, "y")):
        router = build_router("cache-aware")
        first = turn("first", (1, 2, 3, 4))
        assert router.route(first, TWO) == "x"
        router.end(first)
        answering_at_x(router, [make_job(f"{number}", prompt=10) for number in range(others)])
        assert router.route(turn("second", (1, 2, 3, 4, 5)), TWO) == expected


def test_prompts_wait_where_they_are_until_their_first_token_is_out() -> None:
    router = build_router("cache-aware")
    long, short = make_job("long", prompt=5000), make_job("short", prompt=10)
    assert [router.route(job, TWO) for job in (long, short)] == ["x", "y"]
    assert router.route(make_job("third", prompt=10), TWO) == "y"  # y has two, and still less to do than x
    router.started(long)
    assert router.route(make_job("fourth", prompt=10), TWO) == "x"  # one answer there, two at y


def test_what_four_share_costs_each_half_as_much_to_have_twice() -> None:
    # Three with its first 4 blocks are under way at x, so that four share them: they cost y 4 x 512 x 8 / 2 = 8,192
    # tokens. The fifth is new to both. Each of those at x counts 1,000: 3 and 5 are 8,000, with one more 9,000.
    for others, expected in ((5, "x"), (6, "y")):
        router = build_router("cache-aware")
        answering_at_x(router, [turn(f"sharing {number}", (1, 2, 3, 4)) for number in range(3)])
        answering_at_x(router, [make_job(f"{number}", prompt=10) for number in range(others)])
        assert router.route(turn("next", (1, 2, 3, 4, 5)), TWO) == expected


def answered(router: Router, job: Job, tokens: int) -> None:
    router.started(job)
    job.num_output_tokens = tokens
    router.end(job)


@pytest.mark.parametrize("answer_tokens", [20, 200])
def test_what_all_prompts_begin_with_holds_nobody_back(answer_tokens: int) -> None:
    router, shared, chosen = build_router("cache-aware"), tuple(range(16)), Counter[str]()
    live: list[Job] = []
    for number in range(800):
        live.append(turn(f"{number}", shared))
        chosen[router.route(live[-1], "abcd")] += number >= 400
        if len(live) > 32:
            answered(router, live.pop(0), answer_tokens)
    assert min(chosen[name] for name in "abcd") > 50


def test_without_anything_in_common_it_spreads_evenly() -> None:
    router = build_router("cache-aware")
    chosen = Counter(router.route(make_job(f"{number}", prompt=100), "abcd") for number in range(400))
    assert set(chosen.values()) == {100}


def talk_home(router: Router, talk: int, length: int) -> str:
    """Where a turn of a conversation goes that nobody else is served beside."""
    job = turn(f"{talk}-{length}", tuple(100 * talk + block for block in range(length)))
    home = router.route(job, "abc")
    answered(router, job, 50)
    return home


def test_conversations_that_take_turns_each_keep_their_instance_and_use_all() -> None:
    router = build_router("cache-aware")
    homes = [[talk_home(router, talk, length) for talk in range(6)] for length in range(1, 6)]
    assert all(home == homes[0] for home in homes)
    assert Counter(homes[0]) == {"a": 2, "b": 2, "c": 2}


def test_who_was_lost_begins_with_nothing() -> None:
    router = build_router("cache-aware")
    home = talk_home(router, 1, 4)
    assert talk_home(router, 1, 5) == home
    router.lost(home)
    assert talk_home(router, 2, 4) == home  # nothing was sent there, as far as is known
    router.lost("never seen")


def test_jobs_that_are_gone_share_nothing() -> None:
    live, (one, other) = LiveBlocks(), (turn("one", (1, 2)), turn("other", (1, 3)))
    for job in (one, other, one):
        live.come(job)
    assert live.shared_by((1, 2, 3, 4)) == [2, 1, 1, 0]
    live.go(one)
    live.go(one)
    assert live.shared_by((1, 2, 3, 4)) == [1, 0, 1, 0]


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_a_block_that_is_remembered_stands_for_all_before_it(sent: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_aware, "MOST_SENT_BLOCKS", 4)
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
