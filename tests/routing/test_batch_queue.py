from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.routing.batch import Batch, tokens_read
from headway.routing.batch_queue import (
    BatchQueue,
    FirstCome,
    FixedSize,
    HighestRatio,
    LeastWaste,
    PlannedLength,
)
from headway.routing.magnus import BATCH_PRESETS, BatchSettings, build_batch_queue
from tests.routing.batches import batch, job, member, wma
from tests.strategies import ids, make_job

Lengths = list[tuple[int, int]]
lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8)


def as_printed(members: Lengths, *, inclusive: bool) -> int:
    """The paper's equations, term by term."""
    longest_prompt = max(prompt for prompt, _ in members)
    longest = max(output for _, output in members)
    wastes = []
    for prompt, output in members:
        padding = output * (longest_prompt - prompt)
        steps = range(output, longest + 1 if inclusive else longest)
        wastes.append(padding + sum(step + longest_prompt for step in steps))
    return max(wastes)


@pytest.mark.parametrize(
    ("members", "half_open"),
    [
        ([(7, 9)], 0),
        # (10, 10): 10 x 2 of padding, then waiting from 10 to 14: 20 + (22 + 23 + 24 + 25). The other wastes nothing.
        ([(10, 10), (12, 14)], 114),
        # (90, 80): 80 x 10 of padding, and 20 steps over 100 + (80 + 99) / 2: 800 + 3790.
        ([(100, 100), (90, 80)], 4590),
        ([(1000, 1000), (10, 10)], 1_499_355),
        ([(500, 500), (450, 450)], 71_225),
        ([(1000, 1000), (970, 970)], 88_635),
        ([(150, 150), (50, 50)], 29_950),
    ],
)
def test_worked_numbers(members: Lengths, half_open: int) -> None:
    assert wma(members) == half_open


@pytest.mark.parametrize(
    ("members", "inclusive"),
    # One more step for every member, the longest included: 114 + 12 + 14, 4590 + 100 + 100, and 7 + 9 alone.
    [([(10, 10), (12, 14)], 140), ([(100, 100), (90, 80)], 4790), ([(7, 9)], 16)],
)
def test_the_inclusive_sum_charges_every_member_one_more_step(members: Lengths, inclusive: int) -> None:
    assert wma(members, inclusive=True) == inclusive


@given(lengths, st.booleans())
def test_it_is_what_the_paper_prints(members: Lengths, inclusive: bool) -> None:
    assert wma(members, inclusive=inclusive) == as_printed(members, inclusive=inclusive)


@given(lengths, st.tuples(st.integers(1, 60), st.integers(1, 60)), st.booleans())
def test_a_batch_knows_it_of_one_more_without_asking_all(
    members: Lengths, one_more: tuple[int, int], inclusive: bool
) -> None:
    grown = batch(0, *members).wma_with(member(*one_more), inclusive=inclusive)
    assert grown == as_printed([*members, one_more], inclusive=inclusive)


@given(st.integers(1, 50), st.integers(1, 50))
def test_a_seat_reads_its_prompt_and_what_it_has_written_at_every_step(prompt: int, output: int) -> None:
    assert tokens_read(prompt, output) == sum(prompt + step for step in range(output))


pairs = st.tuples(st.integers(1, 40), st.integers(1, 40))


def least_waste(**settings: Any) -> LeastWaste:
    return LeastWaste(**{"capacity_tokens": 10_000, "wma_limit": 50_000, **settings})


def test_it_joins_the_batch_that_wastes_least_by_hand() -> None:
    # With (12, 14) the batch of (10, 10) wastes 114; that of (100, 100) wastes 14 x 88 of padding and 86 steps
    # over 100 + (14 + 99) / 2: 1232 + 13459 = 14691.
    short, long = batch(0, (10, 10)), batch(1, (100, 100))
    assert least_waste().join(member(12, 14), [long, short]) is short
    assert least_waste().join(member(12, 14), [long]) is long


def test_memory_is_kept_in_whole_blocks_by_hand() -> None:
    # 12 + 14 = 26 tokens are four blocks of 8: three seats take 96 tokens of room.
    two = batch(0, (10, 10), (10, 10))
    assert least_waste(capacity_tokens=96, block_tokens=8).join(member(12, 14), [two]) is two
    assert least_waste(capacity_tokens=95, block_tokens=8).join(member(12, 14), [two]) is None


def test_a_batch_that_is_full_is_passed_over() -> None:
    full, other = batch(0, (10, 10), (10, 10)), batch(1, (30, 30))
    assert least_waste(max_size=2).join(member(10, 10), [full, other]) is other


def test_the_inclusive_sum_can_be_asked_for() -> None:
    short = batch(0, (10, 10))
    assert least_waste(wma_limit=140, inclusive=True).join(member(12, 14), [short]) is None
    assert least_waste(wma_limit=141, inclusive=True).join(member(12, 14), [short]) is short


@given(
    st.lists(st.lists(pairs, min_size=1, max_size=4), max_size=5),
    pairs,
    st.integers(1, 400),
    st.integers(1, 2000),
)
def test_it_is_algorithm_1(
    queued: list[list[tuple[int, int]]], new: tuple[int, int], capacity: int, limit: int
) -> None:
    best, least = None, float("inf")
    for number, members in enumerate(queued):
        grown = [*members, new]
        needed = len(grown) * (max(prompt for prompt, _ in grown) + max(output for _, output in grown))
        waste = wma(grown) if needed <= capacity else float("inf")
        if waste < least:
            best, least = number, waste
    expected = best if least < limit else None
    batches = [batch(number, *members) for number, members in enumerate(queued)]
    joined = least_waste(capacity_tokens=capacity, wma_limit=limit).join(member(*new), batches)
    assert (joined.number if joined else None) == expected


def test_batches_of_fixed_size_fill_in_the_order_of_arrival() -> None:
    full, newest = batch(0, (9, 9), (1, 1)), batch(1, (500, 1))
    rule = FixedSize(2)
    assert rule.join(member(9, 9), [full, newest]) is newest
    newest.add(member(9, 9))
    assert rule.join(member(9, 9), [full, newest]) is None
    nobody: list[Batch] = []
    assert rule.join(member(9, 9), nobody) is None


class TokenTime:
    """A hundredth of a second an output token, whatever the rest."""

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return output_tokens / 100

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """Do nothing."""


class NoTime(TokenTime):
    """Believes that every batch is over at once."""

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return 0.0


def test_first_come_goes_by_the_oldest_member_and_not_by_the_number() -> None:
    # As after a split: the halves are opened last, and their members came first.
    later, split = batch(0, (9, 9), arrival_s=4.0), batch(1, (9, 9), arrival_s=3.0)
    assert FirstCome().choose([later, split], 10.0) is split
    assert FirstCome().choose([batch(3, (1, 1)), older := batch(2, (9, 9))], 10.0) is older


def test_the_highest_ratio_by_hand() -> None:
    # At 10 s: 8 s waited for 10 s of work is 0.8; 3 s for 1 s is 3.0. At 100 s: 98 / 10 against 93 / 1.
    long, short = batch(0, (9, 1000), arrival_s=2.0), batch(1, (9, 100), arrival_s=7.0)
    assert HighestRatio(TokenTime()).choose([long, short], 10.0) is short
    # Whoever waits long enough goes first: at 7.25 s 5.25 / 10 against 0.25 / 1.
    assert HighestRatio(TokenTime()).choose([long, short], 7.25) is long


def test_a_batch_waits_since_its_oldest_member_came_or_by_the_mean() -> None:
    # Oldest: 10 / 1 against 6 / 1. Mean: (10 + 0) / 2 = 5 against 6.
    mixed = Batch(0, [member(9, 100, "a", 0.0), member(9, 100, "b", 10.0)])
    plain = batch(1, (9, 100), arrival_s=4.0)
    assert HighestRatio(TokenTime()).choose([mixed, plain], 10.0) is mixed
    assert HighestRatio(TokenTime(), mean_wait=True).choose([mixed, plain], 10.0) is plain


def test_of_equal_ratios_the_batch_opened_first() -> None:
    first, second = batch(0, (9, 100)), batch(1, (9, 100))
    assert HighestRatio(TokenTime()).choose([second, first], 5.0) is first


def test_an_estimate_of_nothing_is_no_division_by_zero() -> None:
    older, newer = batch(0, (9, 9), arrival_s=1.0), batch(1, (9, 9), arrival_s=2.0)
    assert HighestRatio(NoTime()).choose([newer, older], 5.0) is older


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
    ("predicted", "planned", "tokens", "memory_tokens"),
    [
        (None, PlannedLength(), 100, 100),  # nothing is known: its limit
        (LengthEstimate(40.4, 20, 80), PlannedLength(), 40, 80),
        (LengthEstimate(40, 20, 80), PlannedLength(confidence=0.9), 80, 80),
        (LengthEstimate(40, 20, 80), PlannedLength(memory_confidence=0.5), 40, 40),
        (LengthEstimate(40, 20, 80), PlannedLength(safety_factor=1.1), 44, 88),
        (LengthEstimate(40, 20, 80), PlannedLength(safety_factor=9.0), 100, 100),  # never beyond the limit
        (LengthEstimate(0.2, 0.1, 0.4), PlannedLength(), 1, 1),
    ],
)
def test_the_lengths_a_job_is_planned_with(
    predicted: LengthEstimate | None, planned: PlannedLength, tokens: int, memory_tokens: int
) -> None:
    member = planned.member(make_job(limit=100, predicted_length=predicted))
    assert (member.output_tokens, member.memory_tokens) == (tokens, memory_tokens)


def test_memory_is_planned_for_the_upper_ends_by_hand() -> None:
    # Prompts of 10, answers of 10 that may come to 40: three seats take 3 x 50, four would take 200 of 190 tokens.
    sizes = {}
    for confidence in (0.9, 0.5):
        settings = BatchSettings(capacity_tokens=190, memory_confidence=confidence)
        waiting = build_batch_queue("abp", settings)
        for number in range(4):
            waiting.add(job(f"{number}", 10, 10, predicted_length=LengthEstimate(10, 5, 40)))
        sizes[confidence] = [len(batch) for batch in waiting.waiting]
        assert waiting.waiting[0].output_tokens == 10  # waste and times go by the median
    assert sizes == {0.9: [3, 1], 0.5: [4]}


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
        ({"memory_confidence": 0.0}, "memory_confidence is 0.0; accepted: more than 0, less than 1"),
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
    """Applies arrivals, dispatches, ends and failures in any order."""

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
        for gathered in self.queue.waiting:
            if not gathered.sealed and len(gathered) > 1:
                assert len(gathered) * (gathered.prompt_tokens + gathered.output_tokens) <= 300


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


def test_the_threshold_grows_with_what_a_batch_reads_by_hand() -> None:
    # Padded to (100, 100) a seat reads 100 x 100 + 4 950 = 14 950 tokens; (100, 60) alone reads 6 000 + 1 770. The
    # difference, 7 180, is wasted: more than 2 000 and than 0.4 of 14 950, which is 5 980, less than 0.5, 7 475.
    joiner, waiting = member(100, 60), batch(0, (100, 100))
    for share, joins in ((0.0, False), (0.4, False), (0.5, True)):
        joining = LeastWaste(capacity_tokens=10_000, wma_limit=2_000, wma_share=share)
        assert (joining.join(joiner, [waiting]) is waiting) is joins
    assert LeastWaste(capacity_tokens=10_000, wma_limit=7_181).join(joiner, [waiting]) is waiting


def test_a_batch_has_room_for_all_seats_of_a_member_or_for_none_by_hand() -> None:
    # Two members of 10 + 10 tokens hold 40 tokens; one more of three seats 60 more.
    waiting, joiner = batch(0, (10, 10), (10, 10)), replace(member(10, 10), seats=3)
    for capacity, joins in ((99, False), (100, True)):
        joining = LeastWaste(capacity_tokens=capacity, wma_limit=1_000)
        assert (joining.join(joiner, [waiting]) is waiting) is joins
