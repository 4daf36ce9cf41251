"""By hand: a second a token of a prompt (`PerToken`), an eighth of one for each to come, 64 tokens of KV memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.batch_shape import BatchShape
from headway.core.plan import StepOutcome, StepPlan
from headway.policies.order.least_work import LeastWork
from headway.policies.order.remaining_work import RemainingWork
from headway.policies.protocols import Governing, Learning
from tests.policies.order.per_token import PerToken, exactly
from tests.policies.order.test_governed import RIGHT, teach
from tests.strategies import decoding, ids, make_job


class SmallMemory(PerToken):
    """64 tokens of it."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV."""
        return 64


def test_which_protocols_it_keeps() -> None:
    order = LeastWork()
    for protocol in (Governing, Learning):
        assert isinstance(order, protocol)


def test_memory_held_is_work() -> None:
    # 8 tokens to come, a second each: an eighth of it is 1 s. Held on average: 17 + 4 of 64 tokens for 8 s, 2.625 s;
    # the prompt takes 16 s more than a step.
    job = make_job(prompt=17, limit=99, predicted_length=exactly(8))
    assert RemainingWork(SmallMemory()).estimate(job) == pytest.approx(17.0)
    assert RemainingWork(SmallMemory(), memory=True).estimate(job) == pytest.approx(19.625)
    assert RemainingWork(PerToken(), memory=True).estimate(job) == pytest.approx(
        17.0
    )  # its size is not known


def test_lengths_rank_once_they_have_proved_right() -> None:
    # `short` has the longer prompt by a token, and by its prediction far the shorter answer.
    short = make_job("short", prompt=11, limit=999, predicted_length=exactly(4))
    long = make_job("long", prompt=10, limit=999, predicted_length=exactly(400))
    order = LeastWork(PerToken())
    order.add(short)
    order.add(long)
    assert (ids(order.top(2, 0.0)), order.trusts_predictions) == (["long", "short"], False)
    teach(order, RIGHT)  # type: ignore[arg-type]
    order.observe(StepOutcome(now_s=0.0, plan=StepPlan()))
    assert (ids(order.top(2, 0.0)), order.trusts_predictions) == (["short", "long"], True)
    assert ids(order.rank([long, short], 0.0)) == ["short", "long"]


def test_what_a_tenant_brought_alone_is_not_held_against_it() -> None:
    # An eighth of a second a token: 80 s of work, all of it before the other came.
    order, alone = LeastWork(PerToken()), make_job("alone", limit=9999, tenant="first")
    order.add(alone)
    order.remove(alone)
    alone.num_output_tokens = 640
    order.add(make_job("other", tenant="second"))
    order.touch(alone)
    assert order.shares.leads_s(["first", "second"]) == {"first": 0.0, "second": 0.0}
    # From then on every token counts.
    alone.num_output_tokens = 1280
    order.touch(alone)
    assert order.shares.leads_s(["first", "second"])["first"] == pytest.approx(80.0, abs=1.0)


def test_drafts_are_no_prompts_of_the_tenant_whose_answer_they_extend() -> None:
    # 80 tokens of an eighth of a second each, since it came; a prompt of four would be 3 s.
    order, drafting = LeastWork(PerToken()), decoding("drafting", limit=999, tenant="first")
    order.add(drafting)
    order.remove(drafting)
    order.add(make_job("other", tenant="second"))
    drafting.num_output_tokens += 80
    drafting.num_computed_tokens += 80 + 4
    order.observe(StepOutcome(now_s=0.0, plan=StepPlan(), tokens={drafting: 4}))
    assert order.shares.leads_s(["first"]) == {"first": 10.0}


class Attending(PerToken):
    """A second a token of a prompt, and an eighth for each that it attends to beside its own."""

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        return shape.num_tokens + (shape.prefill_context_tokens - shape.num_tokens) / 8

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load."""
        return num_tokens / 2


def test_what_the_prefix_cache_holds_of_a_prompt_is_no_work() -> None:
    order = LeastWork(Attending())
    long, short = make_job("long", prompt=400), make_job("short", prompt=100)
    order.add(long)
    order.add(short)
    assert ids(order.top(2, 0.0)) == ["short", "long"]
    # 80 tokens are left, and 320 to attend to: 120 s.
    long.num_cached_tokens = 320
    order.touch(long)
    assert ids(order.top(2, 0.0)) == ["short", "long"]
    long.num_cached_tokens = 360  # 40 s and 45
    order.touch(long)
    assert ids(order.top(2, 0.0)) == ["long", "short"]
    assert order.work.prompt_s(long) == 85.0


def test_what_a_store_holds_of_a_prompt_is_loaded_and_is_no_work() -> None:
    order = LeastWork(Attending())
    long, short = make_job("long", prompt=400), make_job("short", prompt=100)
    long.num_cached_tokens, long.num_stored_tokens = 160, 360
    order.add(long)
    order.add(short)
    # 40 tokens are left, and 360 to attend to: 85 s, as if the prefix cache held them. The load of 200 takes 100 s, in
    # which others run.
    assert order.work.prompt_s(long) == 85.0
    assert order.work.load_s(long) == 100.0
    assert ids(order.top(2, 0.0)) == ["long", "short"]


def test_a_load_holds_memory_while_it_lasts() -> None:
    class Small(Attending):
        kv_tokens = 1000

    order = LeastWork(Small())
    loaded, cached = make_job("loaded", prompt=400), make_job("cached", prompt=400)
    cached.num_cached_tokens = loaded.num_stored_tokens = 360
    order.add(loaded)
    order.add(cached)
    # 180 s with 0.4 of the memory.
    assert order.work.of(loaded) - order.work.of(cached) == pytest.approx(180 * 0.4)


def test_the_program_under_way_for_longer_comes_first() -> None:
    for began_s, first in ((None, "new"), (10.0, "old")):
        order = LeastWork()
        order.add(replace(make_job("new", prompt=8), arrival_s=99.0))
        order.add(replace(make_job("old", prompt=8), arrival_s=100.0, program="p", program_began_s=began_s))
        assert order.top(1, 100.0)[0].id == first
