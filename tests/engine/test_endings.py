from __future__ import annotations

import pytest
from vllm.v1.request import RequestStatus

from headway.core.record import Outcome
from headway.engine.model_free import ModelFreeEngine, ScriptedRequest
from headway.engine.step import endings
from headway.engine.step.endings import marked, stopped_among
from tests.engine.scripts import scheduler

pytestmark = pytest.mark.vllm


def test_an_answer_that_ends_on_a_stop_string_has_finished_and_one_whose_client_went_has_not() -> None:
    built = scheduler(policy="predicted")
    engine = ModelFreeEngine(built)
    for name in ("stopped", "gone", "waits"):
        engine.add(ScriptedRequest(name, 0, range(40), 100))
    for _ in range(20):
        engine.step()
    for _ in range(2):  # vLLM sends each abort twice
        built.finish_requests(["stopped", "gone", "headway:stopped:stopped"], RequestStatus.FINISHED_ABORTED)
    assert built.ledger.ended == {Outcome.FINISHED: 1, Outcome.CANCELLED: 1}
    built.finish_requests("waits", RequestStatus.FINISHED_ABORTED)
    assert built.ledger.ended[Outcome.CANCELLED] == 2
    assert not built.requests


def test_a_mark_is_of_the_outputs_that_were_handled_last() -> None:
    token = endings._STOPPED.set(frozenset({"a", "b"}))
    try:
        assert marked(["a", "c"]) == ["a", "c", "headway:stopped:a"]
        assert stopped_among(marked(["a", "c"])) == {"a"}
        assert marked(["c"]) == ["c"]
    finally:
        endings._STOPPED.reset(token)
    assert marked(["a"]) == ["a"]
