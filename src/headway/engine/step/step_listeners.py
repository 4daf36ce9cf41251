"""Tells the ledger, the policy and others what happens to a scheduler's jobs, in a fixed order."""

from __future__ import annotations

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.record import Outcome
from headway.engine.step.admission import Admission
from headway.engine.step.compare import compare
from headway.engine.step.context import FilledStep
from headway.engine.step.endings import records_of
from headway.engine.step.explainer import explainer_of
from headway.engine.step.ports import StepPort


class StepListeners:
    """Tells the ledger, the explainer, the prefix watch and the policy of one scheduler what happened.

    The ledger comes first, since the others look at jobs as the step left them. The policy comes last, since it ranks
    preempted jobs by what the watch found. When a job ends, the policy comes before the ledger.
    """

    def __init__(self, engine: StepPort, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self.prefixes = admission.prefix_watch()
        self._records = records_of(engine)
        self.explainer = explainer_of(engine)

    def arrived(self, job: Job, now_s: float) -> None:
        """A job arrived, and waits."""
        self._engine.ledger.arrive(job)
        if self._engine.kept is not None:
            self._engine.kept.came(job, now_s)
        if self.prefixes is not None:
            self.prefixes.come(job)
        if self.explainer is not None:
            self.explainer.arrived(job, now_s)
        self._engine.guard.add(job)

    def stepped(self, outcome: StepOutcome, filled: FilledStep, *, alike: bool) -> None:
        """A step was filled. Names and counts first why it did less than planned. `alike`: it equals the step
        before.
        """
        engine = self._engine
        if not alike:
            outcome.passed_over = compare(outcome, filled, engine, self._admission)
            if engine.swaps is not None:
                engine.swaps.found_tokens.clear()
            outcome.passed_over.update(filled.step.not_offloaded)
        engine.counters.stepped(outcome)
        self.moved(outcome)

    def moved(self, outcome: StepOutcome) -> None:
        """Jobs moved, in a step or between two."""
        engine = self._engine
        engine.ledger.apply(outcome)
        if engine.kept is not None:
            engine.kept.stepped(outcome)
        if self.explainer is not None:
            self.explainer.stepped(engine.view, outcome)
        if self.prefixes is not None:
            self.prefixes.follow(outcome)
        engine.guard.observe(outcome)

    def copy_lost(self, job: Job) -> None:
        """The host lost a swapped job's KV: the job waits, to be computed again."""
        self._engine.ledger.lose(job)
        if self.prefixes is not None:
            self.prefixes.come(job)
        self._engine.guard.touch(job)

    def ended(self, job: Job, outcome: Outcome, now_s: float) -> None:
        """A job ended; write its record."""
        engine = self._engine
        engine.guard.end(job, finished=outcome is Outcome.FINISHED)
        if self.prefixes is not None:
            self.prefixes.end(job)
        if engine.swaps is not None:
            engine.swaps.forget(job)
        record = engine.ledger.end(job, outcome, now_s)
        if self.explainer is not None:
            self.explainer.ended(record)
        if self._records is not None and not self._records.append(record):
            engine.counters.unwritten_records += 1

    def close(self) -> None:
        """Close the records; no job ends after this."""
        if self._records is not None:
            self._records.close()
