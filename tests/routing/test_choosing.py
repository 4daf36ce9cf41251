from __future__ import annotations

from headway.routing.batch import Batch
from headway.routing.choosing import FirstCome, HighestRatio
from tests.routing.batches import batch, member


class TokenTime:
    """A hundredth of a second an output token, whatever the rest."""

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return output_tokens / 100

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """Nothing to learn."""


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
