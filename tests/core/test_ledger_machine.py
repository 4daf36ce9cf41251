"""The ledger under any sequence of arrivals, steps, samples and ends."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headway.core.job import Job, JobState
from headway.core.ledger import Ledger
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.record import Outcome
from tests.strategies import UNTIMED, make_job


class LedgerMachine(RuleBasedStateMachine):
    """Keeps its own simple account beside the ledger's."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.now_s = 0.0
        self.waiting: set[Job] = set()
        self.swapped: set[Job] = set()
        self.resident: set[Job] = set()
        self.ended: list[Job] = []
        self.computed: dict[Job, int] = {}

    def _now(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def _live(self) -> list[Job]:
        return sorted(self.waiting | self.swapped | self.resident, key=lambda job: job.id)

    @rule()
    def arrive(self) -> None:
        job = make_job(f"{len(self.computed):03}", arrival_s=self._now())
        self.ledger.arrive(job)
        self.waiting.add(job)
        self.computed[job] = 0

    @precondition(lambda self: self._live())
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        mixed = data.draw(st.permutations(self.ledger.residents))
        run = mixed[: data.draw(st.integers(0, len(mixed)))]
        if data.draw(st.booleans()):
            run = self.ledger.residents
        victims = mixed[data.draw(st.integers(0, len(mixed))) :]
        waiting = sorted(self.waiting | self.swapped, key=lambda job: job.id)
        admitted = data.draw(st.permutations(waiting))[: data.draw(st.integers(0, 3))]
        cached = {job: data.draw(st.integers(0, 3)) for job in admitted}
        ran = [job for job in [*run, *admitted] if job not in victims]
        tokens = {job: data.draw(st.integers(1, 5)) for job in ran}
        fates = {job: data.draw(st.sampled_from(Fate)) for job in victims}
        paused = [job for job in self.ledger.residents if job not in run]
        expected = [job for job in [*run, *paused] if job not in fates] + admitted
        outcome = StepOutcome(
            now_s=self._now(),
            plan=StepPlan(run=run),
            tokens=tokens,
            admitted=admitted,
            cached_tokens=cached,
            preempted=fates,
        )
        self.ledger.apply(outcome)
        for job in self.computed:
            dropped = fates.get(job) is Fate.RECOMPUTE
            start = 0 if dropped else max(self.computed[job], cached.get(job, 0))
            self.computed[job] = start + tokens.get(job, 0)
        self.resident = self.resident - set(fates) | set(admitted)
        swapped = {job for job, fate in fates.items() if fate is Fate.SWAP}
        self.swapped = self.swapped - set(admitted) | swapped
        self.waiting = self.waiting - set(admitted) | (set(fates) - swapped)
        assert self.ledger.residents == expected

    @precondition(lambda self: self._live())
    @rule(data=st.data(), tokens=st.integers(1, 3))
    def sample(self, data: st.DataObject, tokens: int) -> None:
        job = data.draw(st.sampled_from(self._live()))
        before = job.num_output_tokens
        assert self.ledger.sampled(job, tokens, self._now()) is (before == 0)
        assert job.num_output_tokens == before + tokens

    @precondition(lambda self: self._live())
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        job = data.draw(st.sampled_from(self._live()))
        record = self.ledger.end(job, outcome, self._now())
        assert (record.id, record.outcome, record.finished_s) == (job.id, outcome, self.now_s)
        self.waiting.discard(job)
        self.swapped.discard(job)
        self.resident.discard(job)
        self.ended.append(job)

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def end_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="not in list"):
            self.ledger.end(data.draw(st.sampled_from(self.ended)), Outcome.FINISHED, self._now())

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        ledger = self.ledger
        ledger.check()
        assert ledger.arrived == ledger.live + ledger.ended.total() == len(self.computed)
        assert set(ledger.waiting.values()) == self.waiting
        assert set(ledger.swapped.values()) == self.swapped
        assert set(ledger.residents) == self.resident
        assert ledger.ended.total() == len(self.ended)
        assert all(job.state is JobState.ENDED for job in self.ended)

    @invariant()
    def computed_tokens_are_what_the_steps_brought(self) -> None:
        for job in self._live():
            assert job.num_computed_tokens == self.computed[job]
            assert job.state is not JobState.WAITING or job.num_computed_tokens == 0


LedgerMachine.TestCase.settings = settings(UNTIMED, max_examples=40, stateful_step_count=25)
TestLedger = LedgerMachine.TestCase
