"""How long steps are for first tokens to come in time, by hand: 2 s each and a hundredth of a second a token."""

from __future__ import annotations

import pytest

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.slo import NO_TARGETS, Slo
from headway.core.view import StepView
from headway.policies.batching.paced import Paced
from headway.policies.batching.rounds import Rounds
from headway.policies.batching.step_length import tokens_for_first_tokens
from headway.policies.order.on_time import OnTime
from tests.policies.batching.scene import Scene, round_of
from tests.policies.batching.test_short_steps import WithOverhead
from tests.strategies import decoding, make_job, prefilling


def tokens(*prompts: Job, run: tuple[Job, ...] = (), least: int = 500, budget: int = 8192) -> int:
    """Of a step that starts these beside those that run, with at least so many tokens."""
    order = OnTime()
    for job in prompts:
        order.add(job)
    view = StepView(
        now_s=0.0, max_run=256, max_resident=256, total_blocks=8000, free_blocks=4000, waiting=list(prompts)
    )
    plan = StepPlan(run=list(run), admit=list(prompts), token_budget=budget)
    return tokens_for_first_tokens(
        round_of(view, plan, Rounds(WithOverhead())), order, view.now_s, budget, least
    )


def prompt(id_: str, due_s: float) -> Job:
    """Of 4,000 tokens, the first token due in so many seconds."""
    return make_job(id_, prompt=4000, slo=Slo(ttft_s=due_s))


def test_prompts_in_time_get_through_in_a_third_of_their_time() -> None:
    # 8,000 tokens in 300 s are 0.0375 s each, a third of which is 0.0125 s. A token of 500 takes 0.014, of 667 0.013
    # and of 890 0.01225 s.
    assert tokens(prompt("a", 300.0), prompt("b", 300.0)) == 890
    assert tokens(prompt("a", 300.0), prompt("b", 300.0), least=900) == 900
    # The first alone in 120 s: a third of 0.03 s is what the longest step, of 8,000, does not reach.
    assert tokens(prompt("a", 120.0), prompt("b", 300.0)) == 8000


def test_decodes_take_their_part_of_each_step() -> None:
    # A hundred decodes are a second more: of 667 (3 + 6.67) / 667 is 0.0145 s, of 890 0.0134, of 1,187 0.01253 s and of
    # 1,583 0.0119 s.
    run = tuple(decoding(f"{n}") for n in range(100))
    assert tokens(prompt("a", 300.0), prompt("b", 300.0), run=run, least=600) == 100 + 1583


def test_one_that_the_longest_steps_could_not_save_asks_for_nothing() -> None:
    # 4,000 tokens take 41 s in steps of 8,000. Without it 4,000 in 300 s are 0.025 s each, a third of them.
    assert tokens(prompt("a", 300.0), prompt("lost", 30.0)) == 500


@pytest.mark.parametrize("slo", [NO_TARGETS, Slo(deadline_s=300.0), Slo(ttft_s=0.5)])
def test_one_without_a_first_token_to_come_in_time_asks_for_nothing(slo: Slo) -> None:
    assert tokens(make_job("a", prompt=4000, slo=slo, arrival_s=-1.0)) == 500


def test_paced_has_such_steps() -> None:
    # Beside a decode 8,000 tokens of two prompts are worth a step of 4,500: 16 / s + 40 s is least at 0.5625.
    def budget(slo: Slo) -> int:
        begun, order = prefilling("begun", prompt=4000), OnTime()
        order.add(begun)
        order.remove(begun)
        scene = Scene(
            Paced(WithOverhead()),
            residents=[decoding("x", limit=500), begun],
            max_tokens=8192,
            free_blocks=4000,
            total_blocks=8000,
            block_size=16,
        )
        scene.order = order  # type: ignore[assignment]
        return scene.wait(make_job("a", prompt=4000, slo=slo)).plan().token_budget

    assert budget(NO_TARGETS) == budget(Slo(ttft_s=900.0)) == 1 + 4500
    assert budget(Slo(ttft_s=100.0)) == 8001


@pytest.mark.parametrize("budget", [10, 8])
def test_where_decodes_take_all_tokens_first_tokens_ask_for_nothing(budget: int) -> None:
    run = tuple(decoding(f"{n}") for n in range(10))
    assert tokens(prompt("a", 300.0), run=run, least=10, budget=budget) == 10


def test_one_whose_first_token_is_under_way_asks_for_nothing() -> None:
    under_way = make_job("under way", prompt=4000, num_computed_tokens=4000, slo=Slo(ttft_s=60.0))
    assert tokens(under_way, prompt("b", 300.0)) == tokens(prompt("b", 300.0))
