from __future__ import annotations

import asyncio
from threading import Event, get_ident

from headway.core.length_estimate import LengthEstimate
from headway.loadgen.dispatcher import PredictorThread
from headway.predict.lengths.facts import RequestFacts
from headway.traces import TraceRequest


class Slow:
    """Thinks until it is told to go on; notes who asked and in which order."""

    def __init__(self) -> None:
        self.go_on = Event()
        self.heard: list[str] = []
        self.threads: set[int] = set()

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        self.go_on.wait()
        self.threads.add(get_ident())
        self.heard.append(f"predict {facts.user_input}")
        return LengthEstimate.around(facts.num_prompt_tokens)

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        self.threads.add(get_ident())
        self.heard.append(f"learn {facts.user_input} {output_tokens}")


def request(prompt: str | None, tokens: int = 7) -> TraceRequest:
    return TraceRequest("a", 0.0, tokens, 5, tenant="t", prompt=prompt)


async def test_the_loop_goes_on_while_the_predictor_thinks_and_it_hears_all_in_order() -> None:
    slow = Slow()
    with PredictorThread(slow) as predictor_thread:
        one, two = predictor_thread.facts(request("one"), 9), predictor_thread.facts(request("two", 8), 9)
        judging = asyncio.create_task(predictor_thread.judge([one, two]))
        await asyncio.sleep(0)  # would never come back if it thought here
        predictor_thread.learn(one, 5)
        slow.go_on.set()
        estimates = await judging
    assert [estimate and estimate.tokens for estimate in estimates] == [7, 8]
    assert slow.heard == ["predict one", "predict two", "learn one 5"]  # also what came last, before the end
    assert len(slow.threads) == 1
    assert get_ident() not in slow.threads


async def test_without_a_predictor_nothing_is_known() -> None:
    with PredictorThread(None) as predictor_thread:
        facts = predictor_thread.facts(request(None), 9)
        assert await predictor_thread.judge([facts, facts]) == [None, None]
        predictor_thread.learn(facts, 5)
    assert facts == RequestFacts(num_prompt_tokens=7, max_output_tokens=9, tenant="t")


def test_what_many_prompts_begin_with_is_their_instruction() -> None:
    with PredictorThread(None) as predictor_thread:
        for number in range(20):
            facts = predictor_thread.facts(
                request(f"Please translate the following text to Polish: story {number} of mine"), 9
            )
    assert facts.instruction.startswith("Please translate the following text to Polish:")
    assert facts.user_input.rstrip().endswith("19 of mine")
