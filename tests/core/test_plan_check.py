from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from headway.core.job import Job, JobState
from headway.core.plan import Departure, Fate, StepPlan
from headway.core.plan_check import check_plan
from headway.core.view import StepView
from headway.errors import PlanError
from tests.strategies import decoding, ledger_of, make_job

RUNS, OTHER, WAITS, SWAPPED, ENDED = (
    decoding("runs"),
    decoding("other"),
    make_job("waits"),
    make_job("swapped", state=JobState.SWAPPED),
    make_job("ended", state=JobState.ENDED),
)
VIEW = StepView(
    residents=[RUNS, OTHER],
    waiting=[WAITS],
    swapped=[SWAPPED],
    max_run=2,
    max_resident=4,
    max_tokens=8,
    host_total_blocks=9,
)
LEDGER = ledger_of(VIEW)


def plan_of(part: str, value: Any) -> StepPlan:
    """A plan with this alone in it, of whatever type."""
    fields: dict[str, Any] = {part: value}
    return StepPlan(**fields)


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(),
        StepPlan(run=[OTHER, RUNS], admit=[WAITS, SWAPPED], token_budget=8, chunk_cap={WAITS: 1}),
        StepPlan(run=[RUNS], preempt={OTHER: Fate.SWAP}, leave={WAITS: Departure.SHED}),
        StepPlan(run=VIEW.residents, admit=[WAITS]),
        StepPlan(run=[RUNS], offload=[OTHER], prefetch=[SWAPPED]),
    ],
)
def test_a_plan_within_the_rules_passes(plan: StepPlan) -> None:
    check_plan(plan, VIEW, LEDGER)


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("run", lambda job: StepPlan(run=[job])),
        ("preempt", lambda job: StepPlan(preempt={job: Fate.RECOMPUTE})),
        ("admit", lambda job: StepPlan(admit=[job])),
        ("leave", lambda job: StepPlan(leave={job: Departure.EXPIRED})),
        ("offload", lambda job: StepPlan(offload=[job])),
        ("prefetch", lambda job: StepPlan(prefetch=[job])),
    ],
)
@pytest.mark.parametrize("job", [RUNS, WAITS, SWAPPED, ENDED], ids=lambda job: job.id)
def test_each_part_names_jobs_of_its_own_states(
    part: str, names: Callable[[Job], StepPlan], job: Job
) -> None:
    residents, queued = ("run", "preempt", "offload"), [WAITS, SWAPPED]
    accepted = [RUNS] if part in residents else [SWAPPED] if part == "prefetch" else queued
    if job in accepted:
        check_plan(names(job), VIEW, LEDGER)
        return
    with pytest.raises(PlanError, match=re.escape(f"{part} names {job!r}; accepted: ")):
        check_plan(names(job), VIEW, LEDGER)


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(run=[RUNS, RUNS]),
        StepPlan(admit=[WAITS, WAITS]),
        StepPlan(run=[RUNS], preempt={RUNS: Fate.RECOMPUTE}),
        StepPlan(run=VIEW.residents, preempt={RUNS: Fate.RECOMPUTE}),
        StepPlan(admit=[WAITS], leave={WAITS: Departure.HAND_OFF}),
        StepPlan(run=[RUNS], admit=[RUNS]),
        StepPlan(run=VIEW.residents, offload=[RUNS]),
        StepPlan(preempt={RUNS: Fate.SWAP}, offload=[RUNS]),
    ],
)
def test_a_job_named_twice_is_refused(plan: StepPlan) -> None:
    with pytest.raises(PlanError, match=r"may name a job once; named more than once: \['(runs|waits)'\]"):
        check_plan(plan, VIEW, LEDGER)


NOT_WHOLE = [1.5, 3.0, nan, inf, -inf, True, None, "3", np.int64(3), np.float64(3), [3]]


@pytest.mark.parametrize("budget", [-1, 9, *NOT_WHOLE])
def test_a_budget_beyond_the_engines_is_refused(budget: Any) -> None:
    with pytest.raises(
        PlanError, match=re.escape(f"token_budget is {budget!r}; accepted: an int from 0 to 8")
    ):
        check_plan(StepPlan(token_budget=budget), VIEW, LEDGER)


def test_a_batch_wider_than_the_engine_is_refused() -> None:
    with pytest.raises(PlanError, match="run names 2 jobs; the batch width is 1"):
        check_plan(StepPlan(run=[RUNS, OTHER]), StepView(max_run=1), LEDGER)


@pytest.mark.parametrize("cap", [0, -3, *NOT_WHOLE])
def test_a_cap_that_is_no_number_of_tokens_is_refused(cap: Any) -> None:
    with pytest.raises(PlanError, match=re.escape(f" is {cap!r}; accepted: an int from 1 up")):
        check_plan(StepPlan(run=[RUNS], chunk_cap={RUNS: cap}), VIEW, LEDGER)


@pytest.mark.parametrize("part", ["offload", "prefetch"])
def test_nothing_is_copied_ahead_of_need_where_there_is_no_host(part: str) -> None:
    plan = StepPlan(offload=[RUNS]) if part == "offload" else StepPlan(prefetch=[SWAPPED])
    with pytest.raises(PlanError, match=f"{part} names jobs, but this engine has no host blocks"):
        check_plan(plan, StepView(max_run=2), LEDGER)
    check_plan(plan, VIEW, LEDGER)


def test_a_swap_where_there_is_no_host_is_left_to_the_engine() -> None:
    check_plan(StepPlan(preempt={RUNS: Fate.SWAP}), StepView(max_run=2), LEDGER)


@pytest.mark.parametrize("plan", [None, {}, StepPlan, type("Mine", (StepPlan,), {})()], ids=str)
def test_what_is_no_plan_is_refused(plan: Any) -> None:
    with pytest.raises(PlanError, match=r"a policy planned a .*; accepted: a StepPlan"):
        check_plan(plan, VIEW, LEDGER)


@pytest.mark.parametrize("part", ["run", "admit", "offload", "prefetch"])
@pytest.mark.parametrize(
    "jobs",
    [None, "jobs", {RUNS}, {RUNS: 1}, iter([RUNS]), deque([RUNS]), 3],
    ids=lambda jobs: type(jobs).__name__,
)
def test_what_cannot_be_read_twice_in_order_is_no_list_of_jobs(part: str, jobs: Any) -> None:
    kind = type(jobs).__name__
    with pytest.raises(PlanError, match=f"^{part} is a {kind}; accepted: a list or a tuple of jobs"):
        check_plan(plan_of(part, jobs), VIEW, LEDGER)


@pytest.mark.parametrize("part", ["chunk_cap", "preempt", "leave"])
@pytest.mark.parametrize("table", [None, [], [(RUNS, 1)], {RUNS}, "jobs"], ids=str)
def test_what_is_no_dict_is_refused(part: str, table: Any) -> None:
    with pytest.raises(PlanError, match=f"^{part} is a {type(table).__name__}; accepted: a dict"):
        check_plan(plan_of(part, table), VIEW, LEDGER)


@pytest.mark.parametrize("named", ["runs", None, 3, [RUNS], RUNS.id, {}], ids=str)
@pytest.mark.parametrize("part", ["run", "admit", "offload", "prefetch", "room_for"])
def test_what_is_no_job_is_refused(part: str, named: Any) -> None:
    if part == "room_for" and named is None:
        return
    kind = type(named).__name__
    with pytest.raises(PlanError, match=f"names a {kind}; accepted: jobs"):
        check_plan(plan_of(part, named if part == "room_for" else [named]), VIEW, LEDGER)


@pytest.mark.parametrize(
    ("part", "value"), [("chunk_cap", 1), ("preempt", Fate.SWAP), ("leave", Departure.SHED)]
)
def test_a_key_that_is_no_job_is_refused(part: str, value: Any) -> None:
    with pytest.raises(PlanError, match="names a str; accepted: jobs"):
        check_plan(plan_of(part, {"runs": value}), VIEW, LEDGER)


@pytest.mark.parametrize("value", ["garbage", "shed", "swap", None, 1, Departure, []], ids=str)
@pytest.mark.parametrize(("part", "job"), [("preempt", RUNS), ("leave", WAITS)])
def test_a_fate_or_departure_that_there_is_none_of_is_refused(part: str, job: Job, value: Any) -> None:
    with pytest.raises(PlanError, match=re.escape(f"{part} of {job!r} is {value!r}; accepted: a ")):
        check_plan(plan_of(part, {job: value}), VIEW, LEDGER)


@pytest.mark.parametrize("flag", [None, 1, "yes", np.bool_(True), np.ones(2)], ids=str)
def test_a_flag_that_is_no_bool_is_refused(flag: Any) -> None:
    with pytest.raises(PlanError, match=r"whole_prompts is a .*; accepted: True or False"):
        check_plan(StepPlan(whole_prompts=flag), VIEW, LEDGER)


@pytest.mark.parametrize(
    ("stranger", "plan"),
    [
        (decoding("runs"), lambda job: StepPlan(run=[job])),
        (decoding("new"), lambda job: StepPlan(preempt={job: Fate.RECOMPUTE})),
        (make_job("waits"), lambda job: StepPlan(admit=[job])),
        (make_job("new"), lambda job: StepPlan(leave={job: Departure.SHED})),
        (make_job("swapped", state=JobState.SWAPPED), lambda job: StepPlan(prefetch=[job])),
        (ENDED, lambda job: StepPlan(chunk_cap={job: 1})),
        (make_job("waits"), lambda job: StepPlan(run=VIEW.residents, chunk_cap={job: 1})),
    ],
)
def test_a_job_that_the_engine_does_not_have_is_refused_even_if_it_looks_like_one(
    stranger: Job, plan: Callable[[Job], StepPlan]
) -> None:
    with pytest.raises(PlanError, match=re.escape(f"names {stranger!r}; accepted: jobs of this engine")):
        check_plan(plan(stranger), VIEW, LEDGER)


def test_any_live_job_may_have_a_cap() -> None:
    caps = dict.fromkeys([RUNS, WAITS, SWAPPED], 3)
    check_plan(StepPlan(run=[OTHER], chunk_cap=caps), VIEW, LEDGER)
    check_plan(StepPlan(run=VIEW.residents, chunk_cap=caps), VIEW, LEDGER)
