from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.routing.batch import Batch
from headway.routing.batch_queue import BatchQueue, Planned
from headway.routing.magnus import BATCH_PRESETS, BatchSettings, build_batch_queue
from tests.routing.batches import job
from tests.routing.test_choosing import TokenTime
from tests.strategies import ids, make_job


class Noted(TokenTime):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, float]] = []

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        self.seen.append((size, prompt_tokens, output_tokens, seconds))


def queue(name: str = "magnus", capacity: int = 10_000, **settings: object) -> BatchQueue:
    return build_batch_queue(name, BatchSettings(capacity_tokens=capacity, **settings), TokenTime())  # type: ignore[arg-type]


def contents(batches: list[Batch]) -> list[list[str]]:
    return [ids(batch.jobs) for batch in batches]


def test_like_lengths_share_a_batch_by_hand() -> None:
    # (1000, 1000) with (10, 10) would waste 1 499 355: a batch of its own.
    waiting = queue()
    for name, prompt, output in [("a", 10, 10), ("L", 1000, 1000), ("b", 12, 14)]:
        waiting.add(job(name, prompt, output))
    assert contents(waiting.waiting) == [["a", "b"], ["L"]]


def test_without_a_limit_of_its_own_a_queue_has_the_one_that_was_found_best() -> None:
    # (150, 150) with (50, 50) would waste 29 950: below 50 000, which was the default, and above 10 000.
    waiting = queue()
    for name, tokens in [("a", 150), ("b", 50)]:
        waiting.add(job(name, tokens, tokens))
    assert contents(waiting.waiting) == [["a"], ["b"]]


def test_a_batch_being_served_takes_nobody_in() -> None:
    waiting = queue()
    waiting.add(job("a", 10, 10))
    served = waiting.next_batch(0.0)
    waiting.add(job("b", 10, 10))
    assert (contents(waiting.serving), contents(waiting.waiting)) == ([["a"]], [["b"]])
    assert served is waiting.serving[0]


def test_a_batch_that_failed_waits_again_as_two_sealed_halves_by_planned_length() -> None:
    waiting = queue(wma_limit=10**9)
    for name, output, arrival_s in [("a", 50, 1.0), ("b", 10, 2.0), ("c", 30, 3.0)]:
        waiting.add(job(name, 10, output, arrival_s))
    batch = waiting.next_batch(4.0)
    assert batch is not None
    assert waiting.split(batch) == []
    assert contents(waiting.waiting) == [["b", "c"], ["a"]]
    assert [half.oldest_arrival_s for half in waiting.waiting] == [2.0, 1.0]
    assert (waiting.splits, waiting.serving) == (1, [])
    # Sealed: the newcomer opens a batch, though it is like both halves.
    waiting.add(job("d", 10, 30))
    assert contents(waiting.waiting) == [["b", "c"], ["a"], ["d"]]


def test_one_that_cannot_be_split_is_handed_back() -> None:
    waiting = queue()
    alone = job("a", 10, 10)
    waiting.add(alone)
    batch = waiting.next_batch(0.0)
    assert batch is not None
    assert waiting.split(batch) == [alone]
    assert (waiting.splits, waiting.waiting, waiting.serving) == (0, [], [])


def test_members_that_ended_before_the_batch_failed_do_not_wait_again() -> None:
    waiting = queue()
    jobs = [job(name, 10, 10) for name in "abc"]
    for each in jobs:
        waiting.add(each)
    batch = waiting.next_batch(0.0)
    assert batch is not None
    assert waiting.split(batch, ended={jobs[0], jobs[2]}) == []
    # It was not alone when the batch failed, so it is tried again, sealed.
    assert contents(waiting.waiting) == [["b"]]
    assert waiting.waiting[0].sealed


def test_what_a_batch_took_is_learned_with_its_true_longest_answer() -> None:
    learning = Noted()
    waiting = build_batch_queue("magnus", BatchSettings(capacity_tokens=10_000), learning)
    waiting.add(job("a", 10, 10))
    waiting.add(job("b", 12, 14))
    batch = waiting.next_batch(0.0)
    assert batch is not None
    waiting.finished(batch, output_tokens=20, seconds=3.5)
    assert learning.seen == [(2, 12, 20, 3.5)]


@pytest.mark.parametrize(
    ("predicted", "planned", "tokens"),
    [
        (None, Planned(), 100),  # nobody knows: its limit
        (LengthEstimate(40.4, 20, 80), Planned(), 40),
        (LengthEstimate(40, 20, 80), Planned(confidence=0.9), 80),
        (LengthEstimate(40, 20, 80), Planned(safety_factor=1.5), 60),
        (LengthEstimate(40, 20, 80), Planned(safety_factor=9.0), 100),  # never beyond the limit
        (LengthEstimate(0.2, 0.1, 0.4), Planned(), 1),
    ],
)
def test_the_length_a_job_is_planned_with(
    predicted: LengthEstimate | None, planned: Planned, tokens: int
) -> None:
    assert planned.output_tokens(make_job(limit=100, predicted_length=predicted)) == tokens


def test_fixed_batches_of_seven_by_hand() -> None:
    waiting = queue("vs")
    for number in range(9):
        waiting.add(job(f"{number}", 10, 1 + 100 * number))
    assert contents(waiting.waiting) == [list("0123456"), ["7", "8"]]


def test_the_rows_differ_as_the_paper_says() -> None:
    # Twenty equal requests: seven a batch, ten a batch, seven, all, all.
    sizes = {}
    for name in BATCH_PRESETS:
        waiting = queue(name)
        for number in range(20):
            waiting.add(job(f"{number:02}", 10, 10))
        sizes[name] = [len(batch) for batch in waiting.waiting]
    assert sizes == {"vs": [7, 7, 6], "vsq": [10, 10], "glp": [7, 7, 6], "abp": [20], "magnus": [20]}
    # An old long batch and a young short one: only magnus looks at how long they take.
    chosen = {}
    for name in ("abp", "magnus"):
        waiting = queue(name)
        waiting.add(job("long", 1000, 1000, 0.0))
        waiting.add(job("short", 10, 10, 1.0))
        batch = waiting.next_batch(3.0)
        assert batch is not None
        chosen[name] = ids(batch.jobs)
    assert chosen == {"abp": ["long"], "magnus": ["short"]}


def test_a_batch_size_replaces_the_rows_own() -> None:
    for name in ("vs", "magnus"):
        waiting = queue(name, batch_size=3)
        for number in range(4):
            waiting.add(job(f"{number}", 10, 10))
        assert [len(batch) for batch in waiting.waiting] == [3, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity_tokens": 0}, "capacity_tokens is 0; accepted: 1 or more"),
        ({"block_tokens": 0}, "block_tokens is 0; accepted: 1 or more"),
        ({"wma_limit": 0}, "wma_limit is 0; accepted: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0; accepted: 1 or more"),
        ({"confidence": 1.0}, "confidence is 1.0; accepted: more than 0, less than 1"),
        ({"safety_factor": 0.0}, "safety_factor is 0.0; accepted: a finite number, more than 0"),
        ({"safety_factor": inf}, "safety_factor is inf; accepted: a finite number, more than 0"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BatchSettings(**{"capacity_tokens": 100, **settings})  # type: ignore[arg-type]


def test_an_unknown_row_is_named_and_so_is_a_missing_estimate() -> None:
    with pytest.raises(ConfigError, match="unknown batches 'ccb'; accepted: vs, vsq, glp, abp, magnus"):
        queue("ccb")
    with pytest.raises(ConfigError, match="batches 'magnus' need an estimate of a batch's time"):
        build_batch_queue("magnus", BatchSettings(capacity_tokens=100))


class QueueMachine(RuleBasedStateMachine):
    """Any order of arrivals, dispatches, ends and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue("magnus", capacity=300, wma_limit=3000)
        self.given: list[Job] = []
        self.back: list[Job] = []
        self.sizes: dict[int, int] = {}

    @rule(prompt=st.integers(1, 60), output=st.integers(1, 60))
    def come(self, prompt: int, output: int) -> None:
        self.given.append(job(f"{len(self.given)}", prompt, output, float(len(self.given))))
        self.queue.add(self.given[-1])

    @rule()
    def hand_out(self) -> None:
        waited = bool(self.queue.waiting)
        batch = self.queue.next_batch(100.0)
        assert (batch is not None) == waited  # work conserving
        if batch is not None:
            self.sizes[batch.number] = len(batch)

    @precondition(lambda self: self.queue.serving)
    @rule(place=st.integers(0, 9))
    def finish(self, place: int) -> None:
        batch = self.queue.serving[place % len(self.queue.serving)]
        self.queue.finished(batch, output_tokens=1, seconds=1.0)
        self.back += batch.jobs

    @precondition(lambda self: self.queue.serving)
    @rule(place=st.integers(0, 9))
    def fail(self, place: int) -> None:
        batch = self.queue.serving[place % len(self.queue.serving)]
        self.back += self.queue.split(batch)

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        batches = [*self.queue.waiting, *self.queue.serving]
        places = [*self.back, *(job for batch in batches for job in batch.jobs)]
        assert sorted(ids(places), key=int) == ids(self.given)

    @invariant()
    def what_is_served_does_not_grow(self) -> None:
        assert all(len(batch) == self.sizes[batch.number] for batch in self.queue.serving)

    @invariant()
    def open_batches_fit_the_memory_and_the_limit(self) -> None:
        for batch in self.queue.waiting:
            if not batch.sealed and len(batch) > 1:
                assert len(batch) * (batch.prompt_tokens + batch.output_tokens) <= 300


TestQueueMachine = QueueMachine.TestCase


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=2, max_size=12))
def test_halves_are_even_and_ordered_by_length(lengths: list[tuple[int, int]]) -> None:
    waiting = queue("abp", capacity=10**9, wma_limit=10**9)
    for number, (prompt, output) in enumerate(lengths):
        waiting.add(job(f"{number}", prompt, output))
    batch = waiting.next_batch(0.0)
    assert batch is not None
    waiting.split(batch)
    short, long = waiting.waiting
    assert len(short) - len(long) in (0, 1)
    assert max(m.output_tokens for m in short.members) <= min(m.output_tokens for m in long.members)
