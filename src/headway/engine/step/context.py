"""The data of one step: its plan and preparation, and what vLLM granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.job import Job
from headway.core.plan import Reason, StepPlan

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepContext:
    """The decisions for a step, and how vLLM was prepared for it. Steps with a repeated plan share one context.

    `num_running` requests run before vLLM admits others, up to `seats` in all. `caps` are token limits by request id.
    `cut` is the first job of `admit` whose prompt did not fit whole. The adapters of the jobs in `over_adapters` exceed
    the step's limit.
    """

    plan: StepPlan = field(default_factory=StepPlan)
    num_running: int = 0
    seats: int = 0
    defers_prefills: bool = False
    caps: Mapping[str, int] = field(default_factory=dict)
    cut: Job | None = None
    over_adapters: Sequence[Job] = ()
    not_offloaded: Mapping[Job, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FilledStep:
    """A step that vLLM has filled; `repeated`: it had the plan of the step before.

    `admission_closed`: blocks ran out that copies will free, so vLLM was told to start or resume no more requests.
    """

    step: StepContext
    output: SchedulerOutput
    now_s: float
    dispatched_s: float
    admission_closed: bool = False
    repeated: bool = False

    def as_before(self, before: FilledStep | None) -> bool:
        """Whether the step before had the same plan and grants."""
        if before is None or not self.repeated:
            return False
        return bool(self.output.num_scheduled_tokens == before.output.num_scheduled_tokens)
