"""Properties of every filled step, for any plan that a policy may return."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given
from hypothesis import strategies as st

from headway.core.fill import fill
from headway.core.job import Job
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan
from tests.core.block_pool import BlockPool
from tests.strategies import UNTIMED, decoding, make_job, prefilling

NOT_READY = [Reason.GRAMMAR, Reason.LORA, Reason.REMOTE_KV, Reason.STALE_OUTPUT]


@dataclass
class Scene:
    """A plan with the engine it is for, filled once."""

    residents: list[Job]
    pool: BlockPool
    plan: StepPlan
    max_run: int
    max_resident: int

    def __post_init__(self) -> None:
        self.held_before = {job: self.pool.room(job) for job in self.residents}
        self.outcome: StepOutcome = fill(
            self.plan,
            self.residents,
            self.pool,
            now_s=0.0,
            max_run=self.max_run,
            max_resident=self.max_resident,
        )

    @property
    def shortage(self) -> list[Job]:
        """Victims the plan did not name, in order."""
        return [job for job in self.outcome.preempted if job not in self.plan.preempt]


@st.composite
def residents(draw: st.DrawFn, pool: BlockPool) -> list[Job]:
    """Jobs in prefill or decode, as many as the pool holds."""
    found: list[Job] = []
    for number in range(draw(st.integers(0, 6))):
        prompt = draw(st.integers(1, 20))
        if draw(st.booleans()):
            job = decoding(f"r{number}", prompt=prompt, output=draw(st.integers(1, 6)))
        else:
            job = prefilling(f"r{number}", prompt=prompt, computed=draw(st.integers(0, prompt)))
        pool.tables[job] = []
        if not pool._extend(job, job.num_computed_tokens):
            del pool.tables[job]
            break
        found.append(job)
    return found


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Any plan that passes `check_plan`, over a pool that is often short."""
    pool = BlockPool(draw(st.integers(1, 24)), watermark_blocks=draw(st.integers(0, 2)))
    live = draw(residents(pool))
    waiting = [make_job(f"w{number}", prompt=draw(st.integers(1, 20))) for number in range(4)]
    pool.not_ready = draw(st.dictionaries(st.sampled_from(waiting), st.sampled_from(NOT_READY), max_size=2))
    pool.cached = {job: draw(st.integers(0, job.num_tokens - 1)) for job in waiting}
    mixed = draw(st.permutations(live))
    run = mixed[: draw(st.integers(0, len(live)))]
    rest = mixed[len(run) :]
    capped = st.dictionaries(st.sampled_from([*live, *waiting]), st.integers(1, 12), max_size=4)
    plan = StepPlan(
        run=run,
        admit=draw(st.permutations(waiting))[: draw(st.integers(0, 4))],
        token_budget=draw(st.integers(0, 40)),
        chunk_cap=draw(capped),
        whole_prompts=draw(st.booleans()),
        preempt=dict.fromkeys(rest[: draw(st.integers(0, len(rest)))], Fate.RECOMPUTE),
    )
    return Scene(live, pool, plan, len(run) + draw(st.integers(0, 3)), len(live) + draw(st.integers(0, 3)))


@UNTIMED
@given(scene=scenes())
def test_budget_and_seats_are_never_exceeded(scene: Scene) -> None:
    plan, outcome = scene.plan, scene.outcome
    assert outcome.num_tokens == sum(outcome.tokens.values()) <= plan.token_budget
    assert len(outcome.tokens) <= scene.max_run
    still_in = [job for job in scene.residents if job not in outcome.preempted]
    assert len(still_in) + len(outcome.admitted) <= scene.max_resident


@UNTIMED
@given(scene=scenes())
def test_blocks_are_conserved_and_only_residents_hold_any(scene: Scene) -> None:
    scene.pool.check()
    still_in = {job for job in scene.residents if job not in scene.outcome.preempted}
    assert set(scene.pool.tables) == still_in | set(scene.outcome.admitted)
    assert scene.outcome.free_blocks == scene.pool.free_blocks


@UNTIMED
@given(scene=scenes())
def test_no_token_without_kv(scene: Scene) -> None:
    for job, tokens in scene.outcome.tokens.items():
        done = scene.outcome.cached_tokens.get(job, job.num_computed_tokens)
        assert done + tokens <= min(scene.pool.room(job), job.num_tokens)


@UNTIMED
@given(scene=scenes())
def test_each_job_gets_the_least_of_need_cap_and_budget_left(scene: Scene) -> None:
    plan, outcome = scene.plan, scene.outcome
    left = plan.token_budget
    for job in [*plan.run, *outcome.admitted]:
        done = outcome.cached_tokens.get(job, job.num_computed_tokens)
        wanted = min(job.num_tokens - done, plan.chunk_cap.get(job, left), left)
        if job in outcome.preempted or wanted == 0:
            assert job not in outcome.tokens
            continue
        assert outcome.tokens[job] == wanted
        left -= wanted
    assert set(outcome.tokens) <= {*plan.run, *outcome.admitted}


@UNTIMED
@given(scene=scenes())
def test_pauses_keep_their_kv_and_victims_come_from_the_end(scene: Scene) -> None:
    plan, outcome = scene.plan, scene.outcome
    paused = [job for job in scene.residents if job not in plan.run and job not in plan.preempt]
    line = [*plan.run, *paused]
    assert scene.shortage == line[::-1][: len(scene.shortage)]
    for job in paused:
        if job not in outcome.preempted:
            assert scene.pool.room(job) == scene.held_before[job]
    if scene.shortage:
        assert not outcome.admitted


@UNTIMED
@given(scene=scenes())
def test_admission_goes_in_order_and_ends_at_the_first_ready_misfit(scene: Scene) -> None:
    plan, outcome = scene.plan, scene.outcome
    assume(plan.admit)
    assume(not scene.shortage)
    seen = [job for job in plan.admit if job in outcome.admitted or job in outcome.passed_over]
    assert seen == list(plan.admit[: len(seen)])
    assert [job for job in seen if job in outcome.admitted] == outcome.admitted
    ended_by = [job for job in seen if outcome.passed_over.get(job, Reason.LORA) not in NOT_READY]
    assert ended_by in ([], seen[-1:])
    if not ended_by:
        assert seen == list(plan.admit)


@UNTIMED
@given(scene=scenes())
def test_a_whole_prompt_starts_whole_or_alone(scene: Scene) -> None:
    plan, outcome = scene.plan, scene.outcome
    assume(plan.whole_prompts)
    for job in outcome.admitted:
        cut_by_budget = outcome.cached_tokens[job] + outcome.tokens[job] < job.num_tokens
        if cut_by_budget and job not in plan.chunk_cap:
            assert job.num_tokens > plan.token_budget
            assert list(outcome.tokens) == [job]
