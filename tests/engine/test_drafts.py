"""The tokens of steps with drafts: the real scheduler, with made-up drafts of which some are right."""

from __future__ import annotations

import pytest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from headway.core.record import Outcome
from headway.engine.model_free import ModelFreeEngine, ScriptedRequest
from tests.engine.scripts import scheduler

pytestmark = pytest.mark.vllm

DRAFTS = 3


class DraftingEngine(ModelFreeEngine):
    """Drafts after every token of an answer, of which the first `right` are."""

    right = 0

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        computed = super().compute(output)
        for request_id, tokens in zip(computed.req_ids, computed.sampled_token_ids, strict=True):
            if output.scheduled_spec_decode_tokens.get(request_id):
                tokens.extend([7] * self.right)
        return computed

    def process_oldest(self) -> None:
        output, _ = self._in_flight[0]
        super().process_oldest()
        live = [one for one in output.num_scheduled_tokens if one in self.scheduler.requests]
        self.scheduler.update_draft_token_ids(DraftTokenIds(live, [[7] * DRAFTS for _ in live]))


SPECULATION = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 3}


@pytest.mark.parametrize("right", [0, 2, 3])
def test_a_view_says_how_many_tokens_a_decode_brings_of_late(right: int) -> None:
    built = scheduler(policy="headway", vllm={"speculative_config": SPECULATION})
    assert built.view.decoded_tokens == 1.0
    engine = DraftingEngine(built)
    engine.right = right
    for number in range(4):
        hints = {"headway_ttft_ms": 500, "headway_tbt_ms": 50}
        prompt = range(number * 100, number * 100 + 20)
        engine.add(ScriptedRequest(str(number), 0, prompt, output_tokens=400, extra_args=hints))
    for _ in range(95):
        engine.step()
    assert built.view.decoded_tokens == pytest.approx(1 + right, abs=0.1)
    while built.has_unfinished_requests():
        engine.step()
    assert built.ledger.ended == {Outcome.FINISHED: 4}
    assert built.counters.policy_faults == 0


class SparingEngine(DraftingEngine):
    """Makes no drafts after a step in which no prompt ends, as vLLM 0.33 tells its workers."""

    spared = 0

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        unfinished = [self.scheduler.requests[one].is_prefill_chunk for one in output.num_scheduled_tokens]
        output.skip_drafts = bool(unfinished) and all(unfinished)
        self.spared += output.skip_drafts
        return super().compute(output)


def test_a_step_without_drafts_after_it_teaches_nothing_of_those_with() -> None:
    built = scheduler(num_blocks=200, vllm={"speculative_config": SPECULATION})
    engine = SparingEngine(built)
    engine.add(ScriptedRequest("a", 0, range(1_500), output_tokens=9))  # 512 tokens a step
    while built.has_unfinished_requests():
        engine.step()
    last = 1  # it would be learned from beside the step after it
    assert engine.spared == 2
    assert built.cost.steps.observed_steps == built.counters.steps - engine.spared - last
