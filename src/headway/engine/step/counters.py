"""Totals of one engine's scheduling, from start to stop."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, fields

from headway.core.plan import Departure, Fate, Reason, StepOutcome
from headway.policies.protocols import KnowsLate, Order, Predicting

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 0.5
"""How often the growth of the totals is sent to the process that serves metrics; the final one is always sent."""


@dataclass(slots=True)
class Counters:
    """Totals that only grow. `differences` counts, by reason, the jobs that got less than planned."""

    steps: int = 0
    planned_steps: int = 0
    distrusting_steps: int = 0
    untimed_steps: int = 0
    empty_steps: int = 0
    scheduled_tokens: int = 0
    admissions: int = 0
    pauses: int = 0
    planned_preemptions: int = 0
    shortage_preemptions: int = 0
    swaps: int = 0
    offloads: int = 0
    prefetches: int = 0
    put_backs: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    refused_swaps: int = 0
    failed_copies: int = 0
    lost_copies: int = 0
    policy_faults: int = 0
    slow_calls: int = 0
    watchdog_faults: int = 0
    late_transfers: int = 0
    unwritten_records: int = 0
    slow_call_s: float = 0.0
    scheduler_s: float = 0.0
    vllm_schedule_s: float = 0.0
    follow_s: float = 0.0
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0
    copy_wait_s: float = 0.0
    forward_s: float = 0.0
    departures: Counter[Departure] = field(default_factory=Counter)
    differences: Counter[Reason] = field(default_factory=Counter)
    _told: dict[str, int] = field(default_factory=dict)
    _due_s: float = 0.0

    def stepped(self, outcome: StepOutcome) -> None:
        """Count a filled step, after the comparison with its plan."""
        self.steps += 1
        self.empty_steps += not outcome.tokens
        self.scheduled_tokens += outcome.num_tokens
        self.admissions += len(outcome.admitted)
        self.shortage_preemptions += len(outcome.preempted) - len(outcome.plan.preempt)
        self.swaps += sum(fate is Fate.SWAP for fate in outcome.preempted.values())
        for reason in outcome.passed_over.values():
            self.differences[reason] += 1

    def flat(self) -> dict[str, int]:
        """Every total under one flat name, times in whole microseconds."""
        flat: dict[str, int] = {}
        for name in _TOTALS:
            if name.endswith("_s"):
                flat[f"{name[:-1]}us"] = round(getattr(self, name) * 1e6)
            else:
                flat[name] = getattr(self, name)
        flat.update((f"departures.{departure}", self.departures[departure]) for departure in Departure)
        flat.update((f"differences.{reason}", self.differences[reason]) for reason in Reason)
        return flat

    def news(self, now_s: float, *, is_last: bool) -> dict[str, int]:
        """What `grown` returns, every TOLD_EVERY_S and at the end; empty in between."""
        if now_s < self._due_s and not is_last:
            return {}
        self._due_s = now_s + TOLD_EVERY_S
        return self.grown()

    def grown(self) -> dict[str, int]:
        """The growth of every total since the last call; in the first call, the totals."""
        before, self._told = self._told, self.flat()
        return {name: total - before.get(name, 0) for name, total in self._told.items()}


_TOTALS = tuple(
    each.name for each in fields(Counters) if each.name[0] != "_" and each.type in ("int", "float")
)


class TrustWatch:
    """Counts the steps that a policy plans without trusting its predictions, and logs when that changes.

    Which predictions an order uses is asked once, since the question takes microseconds. A step costs two attribute
    reads.
    """

    def __init__(self, order: Order, counters: Counters) -> None:
        self._counters = counters
        self._lengths = order if isinstance(order, Predicting) else None
        self._step_times = order if isinstance(order, KnowsLate) else None
        self._lengths_trusted: bool | None = None
        self._step_times_trusted: bool | None = None

    def planned(self) -> None:
        """Count a planned step."""
        if self._lengths is not None:
            trusted = self._lengths.trusts_predictions
            self._counters.distrusting_steps += not trusted
            if trusted is not self._lengths_trusted:
                _say("predicted lengths", self._lengths_trusted, trusted)
                self._lengths_trusted = trusted
        if self._step_times is not None:
            trusted = self._step_times.trusts_step_times
            self._counters.untimed_steps += not trusted
            if trusted is not self._step_times_trusted:
                _say("predicted step times", self._step_times_trusted, trusted)
                self._step_times_trusted = trusted


def _say(what: str, before: bool | None, now: bool) -> None:
    if before is None:
        return  # the initial state is no change
    if now:
        logger.warning("%s hold again: scheduling goes by them", what)
    else:
        logger.warning("%s do not hold: scheduling goes without them until they do", what)
