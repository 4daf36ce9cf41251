"""Several micro-batches in flight: who is in them, how busy the stages are, and when copies start."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import Fate, StepOutcome
from headway.core.record import Outcome, Record
from headway.policies.presets import known_presets
from headway.predict.steps.copies import TransferModel
from headway.sim.clock import Pipeline
from headway.sim.simulation import PolicyFactory, System
from headway.sim.watcher import ObservedStep
from headway.traces import TraceRequest
from tests.sim.swapping import Do, Script, restless, swapping_system
from tests.sim.worlds import Linear, calibration, limits, preset, request, run
from tests.strategies import FEW, UNTIMED

WIDTH = 4


class InFlight:
    """Checks each step against those under way: nobody is in two, and no pending job of a higher rank is left out."""

    def __init__(self) -> None:
        self.steps = 0
        self._under_way: deque[set[str]] = deque()

    def saw(self, sight: ObservedStep) -> None:
        chosen = sight.outcome.tokens
        if not chosen:
            return
        self.steps += 1
        under_way = set().union(*self._under_way)
        names = {job.id for job in chosen}
        assert not names & under_way
        left_out = [job for job in sight.residents if job not in chosen and job.id not in under_way]
        live = [job for job in left_out if job.num_computed_tokens < job.num_tokens]
        ranked = sight.order.rank([*chosen, *live], sight.outcome.now_s)
        assert set(ranked[: len(chosen)]) == set(chosen)
        self._under_way.append(names)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        assert self._under_way.popleft() == {job.id for job in outcome.tokens}

    def ended(self, record: Record) -> None:
        """Check nothing."""


def backlog(policy: str, stages: int) -> tuple[float, InFlight]:
    """The share of time that a stage is busy, with 60 requests at once and a second a step."""
    trace = [request(f"{number:02}", 0.0, 1 + number % 7, 10 + 7 * number % 23) for number in range(60)]
    sizes = limits(
        pipeline_stages=stages, batch_width=WIDTH, max_num_seqs=60, prefix_caching=False, num_blocks=2000
    )
    watcher = InFlight()
    _, result = run(trace, policy, System(limits=sizes, calibration=calibration()), [watcher])
    return watcher.steps / stages / result.end_s, watcher


@pytest.mark.parametrize("stages", [2, 4])
def test_every_stage_has_a_batch_of_the_highest_pending_jobs(stages: int) -> None:
    busy, _ = backlog("fastserve", stages)
    assert busy > 0.95


@pytest.mark.parametrize("stages", [2, 4])
def test_one_batch_of_requests_at_a_time_leaves_the_other_stages_idle(stages: int) -> None:
    busy, _ = backlog("fastertransformer", stages)
    assert busy == pytest.approx(1 / stages)


# ---- copies --------------------------------------------------------------------------------------------

PAIR = [request("a", 0.0, 8, 8), request("b", 0.0, 4, 8)]
"""Prefilled together 0-1; a then leaves with 2 blocks, which take a second."""
LEAVES = {1.0: Do(preempt={"a": Fate.SWAP})}


def test_a_victims_blocks_come_free_when_the_last_stage_has_copied_them() -> None:
    # b's step enters the first stage at 1 and the second at 1.5: there the copy goes on until 2.5, not 2.
    script = Script(LEAVES)
    run(PAIR, script.build, swapping_system(pipeline_stages=2))
    assert [script.seen[now_s].coming for now_s in (2.0, 3.0)] == [2, 0]
    alone = Script(LEAVES)
    run(PAIR, alone.build, swapping_system())
    assert alone.seen[2.0].coming == 0


def test_each_stage_waits_for_its_own_part_of_a_serial_copy() -> None:
    # b's step: 1 s of copies and half a second on the first stage, then the same on the second: 1-2.5-4.
    script = Script(LEAVES, serial=True)
    run(PAIR, script.build, swapping_system(pipeline_stages=2))
    assert sorted(script.seen)[:3] == [0.0, 1.0, 4.0]


def test_the_last_stage_lags_behind_by_the_steps_that_are_between() -> None:
    pipeline = Pipeline(4)
    assert pipeline.lag_s(0.0) == 0.0
    # 4 s a step: on the first stage 0-1, on the last 3-4; another one 1-2 and 4-5.
    assert pipeline.dispatch(0.0, 0.0, 4.0) == 4.0
    assert pipeline.lag_s(0.0) == 3.0
    assert pipeline.dispatch(0.0, 0.0, 4.0) == 5.0
    assert pipeline.lag_s(0.0) == 3.0
    assert (pipeline.lag_s(4.0), pipeline.lag_s(6.0)) == (1.0, 0.0)


# ---- whatever comes --------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn, *, narrow: bool) -> tuple[list[TraceRequest], System]:
    """A burst before a pipeline with little memory, a host, and copies that take from no time to several steps.

    If `narrow` a batch may be for fewer than there are seats for.
    """
    laws = st.builds(
        TransferModel, start_s=st.sampled_from([0.0, 0.3]), bytes_per_s=st.sampled_from([0.7, 4.0, 1000.0])
    )
    rows = draw(
        st.lists(st.tuples(st.integers(0, 8), st.integers(1, 16), st.integers(1, 12)), min_size=1, max_size=9)
    )
    trace = [
        request(f"{number}", arrival / 2, prompt, output)
        for number, (arrival, prompt, output) in enumerate(sorted(rows))
    ]
    seats = draw(st.integers(1, 6))
    sizes = limits(
        pipeline_stages=draw(st.sampled_from([2, 4])),
        num_blocks=draw(st.sampled_from([8, 10, 14, 30])),
        max_num_seqs=seats,
        batch_width=draw(st.integers(1, seats)) if narrow else seats,
        max_num_batched_tokens=draw(st.sampled_from([4, 16, 32])),
        prefix_caching=draw(st.booleans()),
        host_blocks=draw(st.sampled_from([1, 4, 12, 40])),
        restore_share=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )
    costs = replace(calibration(Linear(0.5, 0.05)), to_host=draw(laws), to_device=draw(laws))
    return trace, System(limits=sizes, calibration=costs)


def ends_and_is_accounted_for(world: tuple[list[TraceRequest], System], policy: PolicyFactory | str) -> None:
    trace, system = world
    records, result = run(trace, policy, system)
    assert {id_: record.output_tokens for id_, record in records.items()} == {
        each.id: each.output_tokens for each in trace
    }
    assert {record.outcome for record in records.values()} == {Outcome.FINISHED}
    totals = result.totals["0"]
    assert totals.swapped_out_blocks == sum(record.swapped_blocks for record in records.values())
    assert totals.preemptions == sum(record.preemptions for record in records.values())


@UNTIMED
@given(world=worlds(narrow=True), seed=st.integers(0, 999))
def test_with_anything_a_policy_may_do(world: tuple[list[TraceRequest], System], seed: int) -> None:
    ends_and_is_accounted_for(world, restless(seed, 40, serial=seed % 2 == 0))


TOP_JOBS = [name for name, row in known_presets().items() if row.batching.startswith("top-jobs")]


@pytest.mark.parametrize("name", TOP_JOBS)
@FEW
@given(world=worlds(narrow=False))
@pytest.mark.slow
def test_with_each_preset_that_keeps_several_batches_in_flight(
    name: str, world: tuple[list[TraceRequest], System]
) -> None:
    ends_and_is_accounted_for(world, preset(name))
