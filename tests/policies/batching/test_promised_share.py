"""The share of the time that decodes keep while prompts are computed, by hand and simulated."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.errors import ConfigError
from headway.policies.batching.paced import Paced
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.sim.simulation import System
from tests.policies.batching.scene import Scene, timed
from tests.policies.instance import LinearCost
from tests.sim.worlds import Linear, calibration, limits, request, run
from tests.strategies import FEW, decoding, make_job


def scene(*residents: Job, share: float = 0.51) -> Scene:
    """A tenth of a second a token. Steps aim at 0.01 less than the share."""
    batching = Paced(LinearCost(), share=1.0, decode_share=share)
    return Scene(batching, residents=list(residents), free_blocks=400, total_blocks=900, max_tokens=640)


def test_decodes_go_on_alone_until_a_grain_of_the_prompt_is_paid_for() -> None:
    # A decode takes 0.1 s: with 0.45 steps are to take 0.222 s in the mean. A grain of 16 tokens beside it takes 1.7 s.
    # 13 decodes leave 1.59 s for it, 0.11 too much, so the next needs only 12.
    at = scene(decoding("x"), share=0.46).wait(make_job("a", prompt=500))
    found = []
    for number in range(27):
        plan = at.plan()
        found.append(plan.token_budget if plan.admit else 0)
        tokens = {at.view.residents[0]: 1}
        # A step takes as long as it was predicted to.
        at.batching.observe(StepOutcome(now_s=at.view.now_s, plan=plan, tokens=tokens))
        at.view.now_s += 0.1 * (found[-1] or 1)
        assert at.plan().token_budget == at.plan().token_budget, f"asked twice, step {number} is another"
    assert found == [*[0] * 13, 17, *[0] * 12, 17]


def test_more_decodes_have_more_of_the_prompt_beside_them() -> None:
    # 32 decodes take 3.2 s, so that steps may take 6.4: 32 tokens of the prompt at once.
    at = scene(*[decoding(f"{n:02}") for n in range(32)]).wait(make_job("a", prompt=500))
    at.view.max_run = at.view.max_resident = 64
    assert at.plan().token_budget == 32 + 32


def test_a_tighter_target_between_tokens_leaves_prompts_less() -> None:
    # 5 s hold 50 tokens: 16 of the prompt. Without the target there would be 32.
    streams = [timed(f"{n:02}", 5.0) for n in range(32)]
    at = scene(*streams).wait(make_job("a", prompt=500))
    at.view.max_run = at.view.max_resident = 64
    assert at.plan().token_budget == 32 + 16


def test_without_decodes_or_step_times_the_budget_is_the_engines() -> None:
    alone = scene().wait(make_job("a", prompt=500))
    assert alone.plan().token_budget == 640
    unknown = scene(decoding("x")).wait(make_job("a", prompt=500))
    unknown.batching = Paced(UnknownCost(), decode_share=0.5)
    assert unknown.plan().token_budget == 640


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, 7.0])
def test_a_share_lies_between_none_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match="accepted: auto, or a share of the time between 0 and 1"):
        Paced(decode_share=share)


# ---- simulated: a stream beside a prompt 64 times as long ----------------------------------------------


@dataclass(frozen=True)
class ToldCost(LinearCost):
    """A policy's wrong cost model for steps that follow a law: it predicts that prompts take `wrong` times as long
    as they do.
    """

    law: Linear
    wrong: float = 1.0

    def prefill_s(self, num_tokens: int) -> float:
        return self.step_s(BatchShape(num_jobs=1, num_tokens=num_tokens))

    def step_s(self, shape: BatchShape) -> float:
        return self.law.step_s(shape) + (self.wrong - 1) * self.law.per_token_s * shape.num_prefill_tokens


@dataclass(frozen=True, slots=True)
class Experts(Linear):
    """So much more for a step with prompts: any prompt has tokens for every expert, whose weights are read."""

    read_s: float = 0.0

    def step_s(self, shape: BatchShape) -> float:
        reads = bool(shape.num_prefill_tokens)
        return self.base_s + self.per_token_s * shape.num_tokens + self.read_s * reads


STREAM, TIMES = 64, 64


def beside(
    share: float, law: Linear, *, wrong: float = 1.0, asynchronous: bool = False
) -> tuple[float, float]:
    """The share of time that the decodes of a stream had, and the slowdown of a prompt relative to being alone."""
    steps: list[tuple[float, float, set[str]]] = []

    def build(cost: CostModel) -> Policy:
        return build_policy(find_preset("headway", decode_share=share), ToldCost(law, wrong))

    def watch(_: str, outcome: StepOutcome, began_s: float, ended_s: float) -> None:
        steps.append((began_s, ended_s, {job.id for job in outcome.tokens}))

    trace = [request("stream", 0.0, STREAM, 2000), request("long", 1.0, STREAM * TIMES, 1)]
    sizes = limits(
        num_blocks=800, block_size=16, max_num_batched_tokens=2048 + STREAM, asynchronous=asynchronous
    )
    run(
        trace,
        build,
        System(limits=sizes, calibration=calibration(law)),
        max_output_tokens=2000,
        check=False,
        watch=watch,
    )
    first = next(number for number, (began_s, _, _) in enumerate(steps) if began_s >= 1.0)
    last = max(number for number, (_, _, ids) in enumerate(steps) if "long" in ids)
    took_s = steps[last][1] - steps[first - 1][1]
    decodes_s = (law.base_s + law.per_token_s) * sum("stream" in ids for _, _, ids in steps[first : last + 1])
    alone_s = 2 * law.step_s(BatchShape(num_jobs=1, num_tokens=STREAM * TIMES // 2))
    return decodes_s / took_s, took_s / alone_s


@FEW
@given(
    share=st.floats(0.2, 0.85),
    base_s=st.floats(0.003, 0.006),
    token_s=st.floats(1e-4, 2e-4),
    asynchronous=st.booleans(),
)
def test_a_stream_keeps_its_share_and_the_prompt_beside_it_the_rest(
    share: float, base_s: float, token_s: float, asynchronous: bool
) -> None:
    found, times = beside(share, Linear(base_s, token_s), asynchronous=asynchronous)
    assert abs(found - share) <= 0.02
    assert times <= 1 / (1 - share)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_mixture_of_experts_keeps_it_although_small_chunks_are_dear(
    share: float, asynchronous: bool
) -> None:
    found, times = beside(share, Experts(0.004, 3e-5, read_s=0.02), asynchronous=asynchronous)
    assert abs(found - share) <= 0.02
    assert times <= 1 / (1 - share)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize("wrong", [0.7, 1.4])
def test_it_keeps_it_where_prompts_take_longer_or_less_than_is_predicted(
    wrong: float, asynchronous: bool
) -> None:
    found, _ = beside(0.6, Linear(0.005, 2e-4), wrong=wrong, asynchronous=asynchronous)
    assert abs(found - 0.6) <= 0.02


def test_without_a_promise_a_stream_has_hardly_anything_beside_a_long_prompt() -> None:
    steps: list[set[str]] = []
    trace = [request("stream", 0.0, STREAM, 600), request("long", 1.0, STREAM * TIMES, 1)]
    sizes = limits(num_blocks=800, block_size=16, max_num_batched_tokens=2048)
    run(
        trace,
        "headway",
        System(limits=sizes, calibration=calibration(Linear(0.005, 2e-4))),
        max_output_tokens=600,
        watch=lambda _, outcome, began_s, ended_s: steps.append({job.id for job in outcome.tokens}),
    )
    assert sum({"long", "stream"} <= ids for ids in steps) <= 4
