"""Jobs of 41 tokens in blocks of 10: at most four blocks of each can be found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.prefix_watch import LOOKS, PrefixWatch
from tests.strategies import UNTIMED, ids, make_job


class Cache:
    """A prefix cache with a settable number of found blocks for each job; counts questions and records changes."""

    def __init__(self, **blocks: int) -> None:
        self.blocks = blocks
        self.asked = 0
        self.changed: list[Job] = []
        self.watch = PrefixWatch(self.finds, 10, self.changed.append)

    def finds(self, job: Job, index: int) -> bool:
        assert job.state is JobState.WAITING
        self.asked += 1
        return index < self.blocks.get(job.id, 0)

    def come(self, *names: str) -> list[Job]:
        jobs = [make_job(name, prompt=41) for name in names]
        for job in jobs:
            self.watch.come(job)
        return jobs


def prompts(**fields: object) -> StepOutcome:
    """A step with a prompt of 8 tokens beside whatever else happened."""
    return StepOutcome(
        now_s=0.0,
        plan=StepPlan(),
        tokens={make_job("other"): 8},
        num_tokens=8,
        **fields,  # type: ignore[arg-type]
    )


def test_who_comes_is_looked_at_in_whole_blocks_and_all_but_one_token_at_most() -> None:
    cache = Cache(some=3, all=9)
    found = {job.id: job.num_cached_tokens for job in cache.come("none", "some", "all")}
    assert found == {"none": 0, "some": 30, "all": 40}
    (short,) = [make_job("all", prompt=40)]
    cache.watch.come(short)
    assert short.num_cached_tokens == 30  # the last of 40 tokens has to be computed, and so its block
    assert cache.changed == []  # nobody has ranked them


def test_a_step_with_prompts_is_followed_by_a_look_and_one_of_decodes_is_not() -> None:
    cache = Cache(a=1)
    (job,) = cache.come("a")
    cache.blocks["a"] = 3
    decodes = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={make_job("other"): 1}, num_tokens=1)
    cache.watch.follow(decodes)
    assert (job.num_cached_tokens, cache.changed) == (10, [])
    cache.watch.follow(prompts())
    assert (job.num_cached_tokens, cache.changed) == (30, [job])
    cache.blocks["a"] = 2  # evicted from its end
    cache.watch.follow(prompts())
    assert (job.num_cached_tokens, cache.changed) == (20, [job, job])


def test_a_look_that_changes_nothing_asks_twice_at_most() -> None:
    cache = Cache(some=2, all=4)
    cache.come("some", "all", "none")
    cache.asked = 0
    cache.watch.follow(prompts())
    assert (cache.asked, cache.changed) == (2 + 1 + 1, [])


def test_all_are_looked_at_in_turn() -> None:
    names = [f"{n:03}" for n in range(LOOKS + 5)]
    cache = Cache()
    cache.come(*names)
    cache.blocks = dict.fromkeys(names, 1)
    cache.watch.follow(prompts())
    assert ids(cache.changed) == names[:LOOKS]
    cache.watch.follow(prompts())
    assert ids(cache.changed) == names


def test_who_starts_or_ends_is_no_longer_looked_at_and_who_loses_its_kv_is() -> None:
    cache = Cache(a=1, b=1)
    a, b = cache.come("a", "b")
    a.state, b.state = JobState.RESIDENT, JobState.ENDED
    cache.watch.end(b)
    cache.watch.follow(prompts(admitted=[a]))
    assert a.num_cached_tokens == 0  # what was found of it is computed now
    cache.blocks["a"] = 4
    a.state = JobState.SWAPPED
    cache.watch.follow(prompts(preempted={a: Fate.SWAP}))
    assert a.num_cached_tokens == 0
    a.state = JobState.WAITING
    cache.watch.follow(prompts(preempted={a: Fate.RECOMPUTE}))
    assert (a.num_cached_tokens, cache.changed) == (40, [])


def test_what_a_store_holds_beyond_the_cache_is_looked_up_with_it() -> None:
    cached, stored, changed = {0}, {0, 1, 2}, list[Job]()
    watch = PrefixWatch(
        lambda job, index: index in cached, 10, changed.append, stored=lambda job, index: index in stored
    )
    job = make_job(prompt=41)
    watch.come(job)
    assert (job.num_cached_tokens, job.num_stored_tokens) == (10, 30)
    assert (job.num_found_tokens, job.num_loaded_tokens) == (30, 20)
    stored.remove(2)
    watch.follow(prompts())
    assert (job.num_stored_tokens, job.num_loaded_tokens, changed) == (20, 10, [job])
    # Once it starts, what it found or loads is computed.
    job.state, job.num_computed_tokens = JobState.RESIDENT, 20
    watch.follow(prompts(admitted=[job]))
    assert (job.num_cached_tokens, job.num_stored_tokens, job.num_found_tokens) == (0, 0, 20)


def test_without_a_store_to_ask_what_is_stored_stays_as_it_is() -> None:
    cache = Cache(a=1)
    (job,) = cache.come("a")
    job.num_stored_tokens = 30
    cache.watch.follow(prompts())
    job.state = JobState.RESIDENT
    cache.watch.follow(prompts(admitted=[job]))
    assert job.num_stored_tokens == 30


def test_nobody_is_kept_who_does_not_wait_even_if_no_step_ever_has_prompts() -> None:
    # Whoever sends prompts of which a single token is left to compute never has such a step.
    cache = Cache()
    starts, gives_up = cache.come("a", "b")
    starts.state, gives_up.state = JobState.RESIDENT, JobState.ENDED
    one = StepOutcome(now_s=0.0, plan=StepPlan(), tokens={starts: 1}, num_tokens=1, admitted=[starts])
    cache.watch.follow(one)
    cache.watch.end(gives_up)
    assert not cache.watch._line


@UNTIMED
@given(prompt=st.integers(1, 400), before=st.integers(0, 50), after=st.sets(st.integers(0, 40)))
def test_a_block_that_is_found_is_followed_by_one_that_is_not(
    prompt: int, before: int, after: set[int]
) -> None:
    """Whatever is there of what was: an estimate, exact where a cache lost its last blocks first."""
    there = set(range(before))
    watch = PrefixWatch(lambda job, index: index in there, 10, lambda job: None)
    job = make_job(prompt=prompt)
    watch.come(job)
    most = (prompt - 1) // 10
    assert job.num_cached_tokens == 10 * min(before, most)
    there = after
    watch.follow(prompts())
    blocks = job.num_cached_tokens // 10
    assert blocks <= most
    assert not blocks or blocks - 1 in after
    assert blocks == most or blocks not in after
