"""Parts that disturb a preset on purpose: paused residents, capped chunks, preemptions; for `bench/outputs.py`.

They are registered by entry points, as any other package registers parts, and named in the engine's settings.
Unlike a product's parts they draw from a seeded generator: the same calls give the same disturbance.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.policies.order import Order
from headway.policies.parts import build_part
from headway.policies.presets import Preset

PAUSE_SHARE = 0.25
"""Of the jobs a step would run."""
CAPPED_SHARE = 0.5
"""Of the jobs a step would prefill."""
CAPS_TOKENS = (1, 7, 31, 33)
"""One token, some, and chunks that end beside a block's border."""
PREEMPT_SHARE = 0.2
"""Of the jobs a step pauses."""
MAX_PREEMPTIONS = 4
"""A job preempted this often is left alone, so that every run ends."""


class ForcedBatching:
    """The plan of the batching it stands `around`, with some of its jobs paused and some chunks capped.

    Jobs of the tenant `spare` are never capped. `seen` holds what a run must have met for its result to
    mean something.
    """

    def __init__(self, around: str, spare: str = "", seed: int = 0, cost: CostModel | None = None) -> None:
        self._around = build_part("batching", _inner(around), cost)
        self._spare = spare
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The step's plan, disturbed."""
        plan: StepPlan = self._around.plan(view, order, leaving)
        plan.run = [job for job in plan.run if self._random.random() >= PAUSE_SHARE]
        plan.chunk_cap = {**plan.chunk_cap, **self._caps([*plan.run, *plan.admit])}
        self._see("resident_adapters", len({job.lora_id for job in view.residents}))
        return plan

    def _caps(self, jobs: Iterable[Job]) -> dict[Job, int]:
        prefills = [job for job in jobs if job.prefilling and job.tenant != self._spare]
        capped = [job for job in prefills if self._random.random() < CAPPED_SHARE]
        return {job: self._random.choice(CAPS_TOKENS) for job in capped}

    def observe(self, outcome: StepOutcome) -> None:
        """Note prefix cache hits, of newcomers and of resumed jobs; then let the inner part learn."""
        for job in outcome.admitted:
            kind = "resumed_hit_tokens" if job.num_preemptions else "first_hit_tokens"
            self._see(kind, outcome.cached_tokens[job])
        self._around.observe(outcome)

    def _see(self, what: str, value: int) -> None:
        self.seen[what] = max(self.seen[what], value)


class ForcedEviction:
    """What the eviction it stands `around` preempts, and some of the jobs this step pauses."""

    def __init__(self, around: str, seed: int = 0, cost: CostModel | None = None) -> None:
        self._around = build_part("eviction", _inner(around), cost)
        self._random = random.Random(seed)

    def preempt(self, view: StepView, plan: StepPlan, order: Order) -> Mapping[Job, Fate]:
        """Victims; most of them ran in the step before, so their last output may still be in flight."""
        running = set(plan.run)
        paused = [job for job in view.residents if job not in running]
        forced = [
            job
            for job in paused
            if job.num_preemptions < MAX_PREEMPTIONS and self._random.random() < PREEMPT_SHARE
        ]
        return {**dict.fromkeys(forced, Fate.RECOMPUTE), **self._around.preempt(view, plan, order)}


def forced_settings(preset: Preset, *, seed: int, spare: str) -> dict[str, Any]:
    """Engine settings that put a preset under disturbance and have every step checked."""
    return {
        "policy": preset.name,
        "batching": f"forced:seed={seed},spare={spare},around={_outer(preset.batching)}",
        "eviction": f"forced:seed={seed},around={_outer(preset.eviction)}",
        "check": True,
    }


def _outer(spec: str) -> str:
    """A part with its settings as one setting of another part, where a comma would end it."""
    return spec.replace(",", ";")


def _inner(spec: str) -> str:
    return spec.replace(";", ",")
