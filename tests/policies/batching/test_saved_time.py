"""The time that streams save while tokens come faster than their target, and the prompts it pays for, by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policies.batching.mixed_step import MixedStep
from headway.policies.batching.saved_time import SavedTime
from headway.policies.batching.step_shapes import decode_shape
from headway.policies.presets import build_policy, find_preset
from tests.policies.batching.test_mixed_step import SharedKernel, prompts
from tests.policies.contract import Workload, check_drains, hurried, workloads
from tests.strategies import SOME


@SOME
@given(
    workload=workloads(),
    tbt_s=st.sampled_from([None, 3.0, 6.0, 12.0]),
    dearer_s=st.sampled_from([0.3, 1.0, 5.0]),
)
def test_where_decodes_are_dear_beside_prompts_steps_keep_what_every_policy_keeps(
    workload: Workload, tbt_s: float | None, dearer_s: float
) -> None:
    timely = workload if tbt_s is None else hurried(workload, tbt_s)
    check_drains(lambda _: build_policy(find_preset("headway"), SharedKernel(dearer_s)), timely)


def saved(*steps_s: float, longest_s: float = 4.0) -> SavedTime:
    """After steps of decodes that took so long."""
    found = SavedTime()
    for step_s in steps_s:
        found.expect(step_s, longest_s)
        found.observe(ran=True, prompts=True)
    return found


def planned(num_decodes: int = 2) -> MixedStep:
    """2.2 s for two decodes alone; with n tokens of a prompt 4.2 s and n tenths."""
    return MixedStep(SharedKernel(), decode_shape(num_decodes, 20), prompts(500))


def test_what_steps_leave_pays_for_more_prompts_less_often() -> None:
    # Three times 4 s are 78 tokens, to the grain 64: 10.6 s. That is 6.6 more than 4, of which decodes leave 1.8 each.
    assert saved(2.2, 2.2, 2.2).afford(planned(), 0, 500, 4.0) == 0
    assert saved(2.2, 2.2, 2.2, 2.2).afford(planned(), 0, 500, 4.0) == 64
    assert saved(2.2, 2.2, 2.2, 2.2, 10.6).afford(planned(), 0, 500, 4.0) == 0


def test_no_more_than_two_steps_are_saved() -> None:
    many = saved(*[1.0] * 99)
    many.expect(10.6, 4.0)
    many.observe(ran=True, prompts=True)
    # 8 s were, of which 6.6 went.
    assert many.afford(planned(), 0, 500, 4.0) == 0
    assert saved(*[1.0] * 99).afford(planned(), 0, 500, 4.0) == 64


def test_more_less_often_only_where_prompts_get_through_sooner() -> None:
    # 6 s allow 16 tokens in every step: 5.8 s, 2.8 tokens a second. In 18 s there are 138, to the grain 128: they
    # take 17, and 6.4 of decodes alone to save up for them: 5.5 a second.
    assert saved(*[1.0] * 99, longest_s=6.0).afford(planned(), 16, 500, 6.0) == 128
    # Where a decode costs no more beside prompts one way is as good as the other, but for the 2 s of each step.
    cheap = MixedStep(SharedKernel(0.0), decode_shape(2, 20), prompts(500))
    assert saved(*[1.0] * 99, longest_s=30.0).afford(cheap, 272, 500, 30.0) == 272


def test_all_that_is_wanted_comes_at_once_if_it_is_saved_and_cutting_it_is_dearer() -> None:
    # 30 s allow 256 tokens. All 500 take 54.2 s; cut 29.8 and 28.6, less the 2.2 that a second step of the decodes
    # takes: 56.2. Saving up for them anew each time would be no use: 500 in 56.1 s are 8.9 a second, 256 in 29.8 8.6.
    saved_up = saved(*[1.0] * 99, longest_s=30.0)
    assert saved_up.afford(planned(), 256, 500, 30.0) == 500
    assert saved(longest_s=30.0).afford(planned(), 256, 500, 30.0) == 256
    # Of 2,000 tokens 864 would be paid for, and somebody would still wait.
    long = MixedStep(SharedKernel(), decode_shape(2, 20), prompts(2000))
    assert saved_up.afford(long, 256, 2000, 30.0) == 256


def test_nobody_saves_up_for_long_while_prompts_could_come_in_grains() -> None:
    # 32 tokens take 7.4 s, 4.7 more than 2.7, of which decodes leave half a second: ten steps. Or they take 4.9 more
    # than 2.5, and there are 0.3 each: seventeen, and that would still be 0.7 tokens a second in place of 0.5.
    assert saved(*[1.0] * 99, longest_s=2.7).afford(planned(), 2, 500, 2.7) == 32
    assert saved(*[1.0] * 99, longest_s=2.5).afford(planned(), 2, 500, 2.5) == 2
    # Where not even a grain fits there is no other way.
    assert saved(*[1.0] * 99, longest_s=2.5).afford(planned(), 0, 500, 2.5) == 32


def test_no_more_than_is_needed() -> None:
    assert saved(*[1.0] * 99, longest_s=6.0).afford(planned(), 16, 48, 6.0) == 48


def test_where_decodes_leave_nothing_nothing_is_saved_for() -> None:
    # Forty decodes take 6 s.
    assert saved(*[6.0] * 99, longest_s=6.0).afford(planned(40), 16, 500, 6.0) == 16
    assert saved(*[6.0] * 99, longest_s=6.0).afford(planned(40), 0, 500, 6.0) == 0


@pytest.mark.parametrize("longest_s", [inf, 4.0])
def test_without_a_target_nothing_is_kept(longest_s: float) -> None:
    found = saved(*[1.0] * 99)
    found.expect(1.0, longest_s)
    found.observe(ran=True, prompts=True)
    assert (found.afford(planned(), 0, 500, 4.0) == 0) is (longest_s == inf)


def test_a_step_whose_prompts_did_not_get_through_costs_what_its_decodes_took() -> None:
    def after(*, prompts: bool) -> SavedTime:
        found = saved(2.2, 2.2, 2.2)
        found.expect(10.6, 4.0, alone_s=2.2)
        found.observe(ran=True, prompts=prompts)
        return found

    assert after(prompts=False).afford(planned(), 0, 500, 4.0) == 64
    assert after(prompts=True).afford(planned(), 0, 500, 4.0) == 0


def test_an_empty_step_is_no_step() -> None:
    found = saved(2.2, 2.2, 2.2, 2.2)
    found.expect(10.6, 4.0)
    found.observe(ran=False, prompts=False)
    assert found.afford(planned(), 0, 500, 4.0) == 64
