"""The promised share of decodes behind vLLM's own scheduler, on a virtual clock."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.engine.model_free import ModelFreeEngine, ScriptedRequest
from headway.policies.presets import build_policy, find_preset
from tests.engine.scripts import scheduler

BASE_S, TOKEN_S = 0.005, 2e-4
STREAM, TIMES = 16, 64


class Law(UnknownCost):
    """A known law of step times."""

    def prefill_s(self, num_tokens: int) -> float:
        return BASE_S + TOKEN_S * num_tokens

    def step_s(self, shape: BatchShape) -> float:
        return BASE_S + TOKEN_S * shape.num_tokens


class TimedEngine(ModelFreeEngine):
    """Steps take what the law says."""

    def step_s(self, output: SchedulerOutput) -> float:
        return BASE_S + TOKEN_S * int(output.total_num_scheduled_tokens)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_stream_keeps_its_share_beside_a_prompt_64_times_as_long(share: float, depth: int) -> None:
    built = scheduler(asynchronous=depth == 2, num_blocks=200)
    built.guard.policy = build_policy(find_preset("headway", decode_share=share), Law())
    engine = TimedEngine(built, depth=depth)
    engine.add(ScriptedRequest("stream", 0, range(STREAM), output_tokens=1500))
    for _ in range(20):
        engine.step()
    engine.add(ScriptedRequest("long", 0, range(STREAM * TIMES), output_tokens=1))
    steps = []
    while "long" in built.requests:
        steps.append(engine.step().tokens)
    computing = steps[: max(number for number, tokens in enumerate(steps) if "long" in tokens) + 1]
    took_s = sum(BASE_S + TOKEN_S * sum(tokens.values()) for tokens in computing)
    decodes_s = (BASE_S + TOKEN_S) * sum("stream" in tokens for tokens in computing)
    assert sum(tokens.get("long", 0) for tokens in computing) == STREAM * TIMES
    assert abs(decodes_s / took_s - share) <= 0.02
    assert took_s <= (BASE_S + TOKEN_S * STREAM * TIMES) / (1 - share)
