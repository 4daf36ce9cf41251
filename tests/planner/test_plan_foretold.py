from __future__ import annotations

from dataclasses import replace

from headway.lab.predictor_choice import length_source
from headway.planner.runs import PlanRun, _foretold, simulate_plan_run
from headway.planner.sampling import Sample
from headway.sim.lengths import GivenLengths, RecordedLengths
from headway.traces import TraceRequest
from tests.planner.plans import prepared


def test_what_was_noted_is_foretold() -> None:
    request = TraceRequest(id="7", arrival_s=0.0, input_tokens=5, output_tokens=40)
    other = replace(request, id="8")
    source = length_source("noisy-oracle:tau=0.8", [request, other])
    assert source is not None
    noted = RecordedLengths(source)
    said = noted.predict(request, 100)
    assert said is not None
    foretold = GivenLengths(noted.said)
    assert foretold.predict(request, 100) == said
    assert foretold.predict(other, 100) is None


def test_a_predictor_learns_as_stock_vllm_serves_and_all_others_hear_the_same() -> None:
    found = prepared(policies=("predicted",))
    part = Sample(0, 0.0, 4.0)
    told = _foretold(found.task, part, 1, "learned:first_answers=20,trees=5")
    said = [told.predict(request, 100) for request in found.task.requests() if request.arrival_s <= 4.0]
    first = next(place for place, estimate in enumerate(said) if estimate is not None)
    assert first > 20
    assert all(estimate is not None for estimate in said[first:])
    predicted = replace(found.default, policy="predicted", seats=4, predictor="learned")
    run = PlanRun(task=found.task, configuration=predicted, sample=part)
    assert run.digest() != replace(run, foretold=True).digest()
    assert simulate_plan_run(replace(run, foretold=True)).summary.finished > 0
