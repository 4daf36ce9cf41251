"""Engines short of blocks, for evictions: who is resident, with how many tokens, and what is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.policies.order.response_ratio import WaitedOverLength
from headway.policies.protocols import Eviction
from tests.strategies import decoding, make_job

NOW_S = 100.0


def resident(id_: str, blocks: int, waited_s: float = 10.0) -> Job:
    """A decoding job with so many full blocks of 4: its next token opens another."""
    return decoding(id_, prompt=4 * blocks, arrival_s=NOW_S - waited_s)


def stage(*residents: Job, free: int = 0, host: int = 100, seats: int = 8, **fields: Any) -> StepView:
    """A policy's view of the engine; nothing is on the host yet."""
    fields.setdefault("missing_blocks", lambda job: -(-job.num_tokens // 4) - free)
    return StepView(
        now_s=NOW_S,
        residents=residents,
        free_blocks=free,
        total_blocks=100,
        host_free_blocks=host,
        host_total_blocks=100,
        block_size=4,
        max_run=8,
        max_resident=seats,
        max_tokens=64,
        uncopied_blocks=_all_blocks,
        unsent_blocks=_all_blocks,
        **fields,
    )


def _all_blocks(job: Job) -> int:
    return -(-job.num_computed_tokens // 4)


def copied(view: StepView, *jobs: Job) -> StepView:
    """The same, with complete copies of these on the host."""
    view.uncopied_blocks = view.unsent_blocks = lambda job: 0 if job in jobs else _all_blocks(job)
    return view


def on_its_way(view: StepView, *jobs: Job) -> StepView:
    """The same, with copies of these to the host under way."""
    view.unsent_blocks = lambda job: 0 if job in jobs else _all_blocks(job)
    return view


NEWCOMER = make_job("new")


def evicted(eviction: Eviction, view: StepView, run: list[Job] | None = None) -> StepPlan:
    """An eviction's result for a plan that runs all residents, or the given ones, and starts a newcomer."""
    plan = StepPlan(
        run=view.residents if run is None else run, admit=[NEWCOMER], token_budget=view.max_tokens
    )
    return eviction.evict(view, plan, WaitedOverLength())


@dataclass(frozen=True)
class Prices:
    """A cost model to do sums with: seconds a token, and a block each way."""

    token_s: float = 1.0
    out_s: float = 1.0
    in_s: float = 1.0
    load_token_s: float = 0.0

    @property
    def kv_tokens(self) -> int:
        """Unknown."""
        return 0

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds to compute a prompt."""
        return self.token_s * num_tokens

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step: its tokens."""
        return self.token_s * shape.num_tokens

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """Steps take what is predicted."""
        return self.step_s(shape)

    def swap_out_s(self, num_blocks: int) -> float:
        """Seconds of a copy to the host."""
        return self.out_s * num_blocks

    def swap_in_s(self, num_blocks: int) -> float:
        """Seconds of a copy back."""
        return self.in_s * num_blocks

    def load_s(self, num_tokens: int) -> float:
        """Seconds of a load from a store."""
        return self.load_token_s * num_tokens
