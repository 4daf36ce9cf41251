"""What one engine counts about its own scheduling, from start to stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headway.core.plan import Departure, Fate, Reason, StepOutcome


@dataclass(slots=True)
class Counters:
    """Totals that only grow. `differences` counts, by reason, jobs for which a step did less than planned."""

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
    watchdog_faults: int = 0
    late_transfers: int = 0
    unwritten_records: int = 0
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

    def stepped(self, outcome: StepOutcome) -> None:
        """Count a step that was filled and compared with its plan."""
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
        return {
            "steps": self.steps,
            "planned_steps": self.planned_steps,
            "distrusting_steps": self.distrusting_steps,
            "untimed_steps": self.untimed_steps,
            "empty_steps": self.empty_steps,
            "scheduled_tokens": self.scheduled_tokens,
            "admissions": self.admissions,
            "pauses": self.pauses,
            "planned_preemptions": self.planned_preemptions,
            "shortage_preemptions": self.shortage_preemptions,
            "swaps": self.swaps,
            "offloads": self.offloads,
            "prefetches": self.prefetches,
            "put_backs": self.put_backs,
            "swapped_out_blocks": self.swapped_out_blocks,
            "swapped_in_blocks": self.swapped_in_blocks,
            "refused_swaps": self.refused_swaps,
            "failed_copies": self.failed_copies,
            "lost_copies": self.lost_copies,
            "policy_faults": self.policy_faults,
            "watchdog_faults": self.watchdog_faults,
            "late_transfers": self.late_transfers,
            "unwritten_records": self.unwritten_records,
            "scheduler_us": round(self.scheduler_s * 1e6),
            "vllm_schedule_us": round(self.vllm_schedule_s * 1e6),
            "follow_us": round(self.follow_s * 1e6),
            "swap_out_us": round(self.swap_out_s * 1e6),
            "swap_in_us": round(self.swap_in_s * 1e6),
            "copy_wait_us": round(self.copy_wait_s * 1e6),
            "forward_us": round(self.forward_s * 1e6),
            **{f"departures.{departure}": self.departures[departure] for departure in Departure},
            **{f"differences.{reason}": self.differences[reason] for reason in Reason},
        }

    def grown(self) -> dict[str, int]:
        """By how much every total has grown since this was last asked; the first time, the totals."""
        before, self._told = self._told, self.flat()
        return {name: total - before.get(name, 0) for name, total in self._told.items()}
