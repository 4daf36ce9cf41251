"""Predictions made useless: the ways, the watch of the governor, the figures, and a small run of each way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from bench.figures import GOODPUT, MEAN_JCT, Runs
from bench.gain.broken_predictions import Found, Plan, broken_cell, broken_table, broken_verdicts, run, tabled
from bench.governor import (
    NO_LENGTHS,
    NO_STEPS,
    REFERENCES,
    TRUSTING,
    Change,
    GovernorWatch,
    TimesSteps,
    WrongSteps,
    governor_figures,
    shares,
    told_wrongly,
    ways,
    wrong_by,
)
from bench.streams import NONE, TWO, Targets
from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.predict.steps.learned import LearnedCost
from headway.predict.steps.step_time import StepTimeModel

pytestmark = pytest.mark.slow

TARGETS = Targets(interactive=Slo(ttft_s=2.0, tbt_s=0.2), patient=Slo(ttft_s=40.0, tbt_s=1.0))


# ---- step times that are wrong -----------------------------------------------------------------------------


def learned() -> LearnedCost:
    """A cost model that learned from 40 steps of 1 ms plus a millisecond for each job."""
    cost = LearnedCost(steps=StepTimeModel())
    for number in range(40):
        shape = BatchShape()
        for _ in range(1 + number % 8):
            shape.add(1, 100)
        cost.steps.observe(shape, 0.001 + 0.001 * shape.num_jobs)
    cost.to_host.observe(10, 0.5)
    return cost


def test_steps_are_wrong_by_the_factor_and_copies_right() -> None:
    honest = learned()
    wrong: CostModel = wrong_by(3.0)(honest)
    shape = BatchShape()
    shape.add(1, 100)
    assert honest.step_s(shape) == pytest.approx(0.002, rel=0.05)
    assert wrong.step_s(shape) == pytest.approx(3 * honest.step_s(shape))
    assert wrong.prefill_s(64) == pytest.approx(3 * honest.prefill_s(64))
    assert wrong.step_within_s(shape, 0.9) == pytest.approx(3 * honest.step_within_s(shape, 0.9))
    assert wrong.swap_out_s(10) == honest.swap_out_s(10) > 0
    assert wrong.swap_in_s(10) == honest.swap_in_s(10)


def test_a_policy_is_told_wrongly_or_as_it_is() -> None:
    told: list[CostModel] = []

    def build(cost: CostModel) -> Policy:
        told.append(cost)
        return build_policy(find_preset("vllm"), cost)

    assert told_wrongly(build, 1.0) is build
    honest = learned()
    told_wrongly(build, 0.5)(honest)
    assert told == [WrongSteps(honest, 0.5)]
    with pytest.raises(ConfigError, match="more than 0"):
        WrongSteps(honest, 0.0)


# ---- the governor ------------------------------------------------------------------------------------------


@dataclass
class Order:
    """An order that says what it trusts, as told."""

    lengths: bool = True
    steps: bool = True

    @property
    def trusts_predictions(self) -> bool:
        return self.lengths

    @property
    def trusts_step_times(self) -> bool:
        return self.steps


def test_the_watch_notes_what_is_gone_by_from_when_on() -> None:
    policy = build_policy(find_preset("vllm"))
    policy.order = order = Order()  # type: ignore[assignment]
    watch = GovernorWatch(policy)
    for now_s, lengths, steps in (
        (0.0, True, True),
        (1.0, True, True),
        (2.0, False, True),
        (4.0, False, False),
    ):
        order.lengths, order.steps = lengths, steps
        watch.look(now_s)
    assert watch.changes == [Change(0.0, TRUSTING), Change(2.0, NO_LENGTHS), Change(4.0, NO_STEPS)]
    # 2 s, 2 s and 4 s of 8.
    assert shares(watch.changes, 8.0) == {TRUSTING: 0.25, NO_LENGTHS: 0.25, NO_STEPS: 0.5}


def test_the_watch_knows_the_governor_of_headway() -> None:
    watch = GovernorWatch(build_policy(find_preset("headway")))
    watch.look(0.0)
    assert watch.changes[0].goes_by in (TRUSTING, NO_LENGTHS)
    assert isinstance(build_policy(find_preset("headway")).order, TimesSteps)


def test_a_policy_without_a_governor_goes_by_nothing() -> None:
    for policy in (build_policy(find_preset("sarathi")), None):
        watch = GovernorWatch(policy)
        watch.look(1.0)
        watch.look(2.0)
        assert len(watch.changes) == 1
        assert shares(watch.changes, 3.0) == {}
    assert shares([], 3.0) == {}


def test_runs_of_a_governor_are_averaged() -> None:
    found = governor_figures(
        [[Change(0.0, TRUSTING)], [Change(0.0, NO_LENGTHS), Change(3.0, TRUSTING)]], [2.0, 4.0]
    )
    # All of the first run and a quarter of the second.
    assert found["share_of_time"] == {TRUSTING: 0.625, NO_LENGTHS: 0.375}
    assert found["steps"] == [0, 1]
    assert found["first_run"] == [{"at_s": 0.0, "goes_by": TRUSTING}]


# ---- figures -----------------------------------------------------------------------------------------------


def of(jct_s: float, slo: Slo = TARGETS.patient) -> Runs:
    record = Record(
        id="a",
        arrival_s=0.0,
        prompt_tokens=8,
        outcome=Outcome.FINISHED,
        output_tokens=1,
        first_token_s=jct_s,
        finished_s=jct_s,
        slo=slo,
    )
    return Runs([[record]])


def test_behind_is_told_of_the_better_reference() -> None:
    runs = {"fastserve": of(10.0), "sarathi": of(20.0), "random lengths": of(10.2), "steps x 3": of(9.0)}
    cell = broken_cell(MEAN_JCT, runs, {}, {})
    assert cell["behind_each"]["random lengths"] == pytest.approx({"fastserve": 0.02, "sarathi": -0.49})
    assert cell["behind"] == pytest.approx({"random lengths": 0.02, "steps x 3": -0.1})
    found = broken_verdicts({NONE: {"1.2": cell}})
    assert found["worst_behind"] == pytest.approx({"random lengths": 0.02, "steps x 3": -0.1})
    assert (found["holds"], found["exceptions"]) == (True, [])


def test_a_way_that_is_too_far_behind_is_named() -> None:
    # Within 2 s or not: 1 in place of 1, and 0.
    slo = TARGETS.interactive
    runs = {"fastserve": of(1.0, slo), "sarathi": of(3.0, slo), "steps / 3": of(3.0, slo)}
    cell = broken_cell(GOODPUT, runs, {}, {})
    found = broken_verdicts({TWO: {"0.8": cell}})
    assert not found["holds"]
    assert found["exceptions"] == [{"cell": "two, load 0.8", "way": "steps / 3", "behind": 1.0}]
    lines = broken_table({"cells": {TWO: {"0.8": cell}}}).splitlines()
    assert lines[0] == "| clients | load | metric | `fastserve` | `sarathi` | steps / 3 |"
    assert lines[2] == "| two | 0.8 | goodput | 1 | 0 | 0 (+100.0 %) |"


# ---- options, and small runs ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> list[Found]:
    """A hundred requests for one system, so few a second that nobody waits long."""
    plan = Plan(policy="predicted", systems=("roomy",), kinds=(TWO,), loads=(1.0,), seeds=1)
    return [run(replace(cell, count=100)) for cell in plan.cells({"roomy": 1.0}, {"roomy": TARGETS})]


def test_every_way_answers_everybody(found: list[Found]) -> None:
    assert len({each.cell.name for each in found}) == len(found) == len(REFERENCES) + 6
    everybody = {record.id for record in found[0].records}
    for each in found:
        assert {record.id for record in each.records if record.outcome is Outcome.FINISHED} == everybody


def test_the_governor_believes_honest_lengths_and_no_random_ones(found: list[Found]) -> None:
    changes = {each.cell.name: [change.goes_by for change in each.changes] for each in found}
    assert changes["honest"] == [NO_LENGTHS, TRUSTING]
    assert changes["random lengths"] == [NO_LENGTHS]
    assert changes["sarathi"] == [""]
    table = tabled(found)["roomy, two"]["1"]
    assert table["metric"] == GOODPUT
    assert set(table["behind"]) == {way.name for way in ways("x")}
    assert table["governor"]["random lengths"]["share_of_time"] == {NO_LENGTHS: 1.0}
