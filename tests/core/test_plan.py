from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from headway.core.job import Job, JobState
from headway.core.plan import Departure, Fate, StepPlan, check_plan
from headway.core.view import StepView
from headway.errors import PlanError
from tests.strategies import decoding, make_job

RUNS, OTHER, WAITS, SWAPPED, ENDED = (
    decoding("runs"),
    decoding("other"),
    make_job("waits"),
    make_job("swapped", state=JobState.SWAPPED),
    make_job("ended", state=JobState.ENDED),
)
VIEW = StepView(
    residents=(RUNS, OTHER), waiting=(WAITS,), max_run=2, max_resident=4, max_tokens=8, host_total_blocks=9
)


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
    check_plan(plan, VIEW)


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
        check_plan(names(job), VIEW)
        return
    with pytest.raises(PlanError, match=re.escape(f"{part} names {job!r}; accepted: ")):
        check_plan(names(job), VIEW)


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
        check_plan(plan, VIEW)


@pytest.mark.parametrize("budget", [-1, 9])
def test_a_budget_beyond_the_engines_is_refused(budget: int) -> None:
    with pytest.raises(PlanError, match=f"token_budget is {budget}; accepted: 0 to 8"):
        check_plan(StepPlan(token_budget=budget), VIEW)


def test_a_batch_wider_than_the_engine_is_refused() -> None:
    with pytest.raises(PlanError, match="run names 2 jobs; the batch width is 1"):
        check_plan(StepPlan(run=[RUNS, OTHER]), StepView(max_run=1))


@pytest.mark.parametrize("cap", [0, -3])
def test_a_cap_that_grants_nothing_is_refused(cap: int) -> None:
    with pytest.raises(PlanError, match=f"chunk_cap of .*'runs'.* is {cap}; accepted: 1 or more"):
        check_plan(StepPlan(run=[RUNS], chunk_cap={RUNS: cap}), VIEW)


@pytest.mark.parametrize("part", ["offload", "prefetch"])
def test_nothing_is_copied_ahead_of_need_where_there_is_no_host(part: str) -> None:
    plan = StepPlan(offload=[RUNS]) if part == "offload" else StepPlan(prefetch=[SWAPPED])
    with pytest.raises(PlanError, match=f"{part} names jobs, but this engine has no host blocks"):
        check_plan(plan, StepView(max_run=2))
    check_plan(plan, VIEW)


def test_a_swap_where_there_is_no_host_is_left_to_the_engine() -> None:
    check_plan(StepPlan(preempt={RUNS: Fate.SWAP}), StepView(max_run=2))
