"""Who is told what becomes of a scheduler's jobs, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.core.record import Outcome
from headway.engine.step.compare import compare
from headway.engine.step.explainer import explainer_of
from headway.engine.step.prefixes import prefix_watch_of
from headway.engine.step.served_records import records_of

if TYPE_CHECKING:
    from headway.engine.step.scheduler import PolicyScheduler


class Following:
    """Tells the ledger, the explainer, the prefix watch and the policy of one scheduler what happened.

    Of a step the ledger hears first, since the others look at jobs as the step left them, and the policy last: it ranks
    who was preempted by what the watch finds of it. Of an end the policy hears before the ledger marks the job so.
    """

    def __init__(self, scheduler: PolicyScheduler) -> None:
        self._scheduler = scheduler
        self.prefixes = prefix_watch_of(scheduler)
        self._records = records_of(scheduler)
        self.explainer = explainer_of(scheduler)

    def arrived(self, job: Job, now_s: float) -> None:
        """A job has come, and waits."""
        self._scheduler.ledger.arrive(job)
        if self.prefixes is not None:
            self.prefixes.come(job)
        if self.explainer is not None:
            self.explainer.arrived(job, now_s)
        self._scheduler.guard.add(job)

    def stepped(self, outcome: StepOutcome) -> None:
        """A step was filled: why it did less than planned is named and counted before anybody hears of it."""
        scheduler = self._scheduler
        if not scheduler.outcomes.alike:
            outcome.passed_over = compare(outcome, scheduler)
            if scheduler.swaps is not None:
                scheduler.swaps.found_tokens.clear()
            outcome.passed_over.update(scheduler.not_offloaded)
        scheduler.counters.stepped(outcome)
        self.moved(outcome)

    def moved(self, outcome: StepOutcome) -> None:
        """Jobs were moved, in a step or between two."""
        scheduler = self._scheduler
        scheduler.ledger.apply(outcome)
        if self.explainer is not None:
            self.explainer.stepped(scheduler.view, outcome)
        if self.prefixes is not None:
            self.prefixes.follow(outcome)
        scheduler.guard.observe(outcome)

    def copy_lost(self, job: Job) -> None:
        """What the host had of a swapped job is gone: it waits, to be computed again."""
        self._scheduler.ledger.lose(job)
        if self.prefixes is not None:
            self.prefixes.come(job)
        self._scheduler.guard.touch(job)

    def ended(self, job: Job, outcome: Outcome, now_s: float) -> None:
        """A job is gone; its record is written."""
        scheduler = self._scheduler
        scheduler.guard.end(job, finished=outcome is Outcome.FINISHED)
        if self.prefixes is not None:
            self.prefixes.end(job)
        if scheduler.swaps is not None:
            scheduler.swaps.forget(job)
        record = scheduler.ledger.end(job, outcome, now_s)
        if self.explainer is not None:
            self.explainer.ended(record)
        if self._records is not None and not self._records.append(record):
            scheduler.counters.unwritten_records += 1

    def close(self) -> None:
        """Close the records; nothing ends after this."""
        if self._records is not None:
            self._records.close()
