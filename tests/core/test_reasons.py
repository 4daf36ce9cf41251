from __future__ import annotations

from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.explain.reasons import why_all_waited
from tests.strategies import decoding, make_job


def test_prompts_that_have_the_next_step_waited_for_the_turn_of_decodes() -> None:
    answer, prompt = decoding("b"), make_job("a")
    view = StepView(residents=[answer], waiting=[prompt], max_run=8, max_resident=8, max_tokens=64)

    def why(plan: StepPlan) -> str:
        return why_all_waited(view, StepOutcome(now_s=0.0, plan=plan, tokens={answer: 1}))[0]

    assert (
        why(StepPlan(run=[answer], next_up=[prompt]))
        == "the step was the decodes' turn, and the next is the prompts'"
    )
    assert why(StepPlan(run=[answer])) == "the policy let nobody start"
