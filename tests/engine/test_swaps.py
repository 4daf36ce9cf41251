"""Swapping under the real vLLM scheduler and KV manager, with every block's contents followed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import Fate, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.kv_host import HostKv
from headway.engine.model_free import replay
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.recompute import Recompute
from headway.policies.order import Order
from tests.engine.kv_mirror import MirrorEngine
from tests.engine.scripts import assert_empty, scheduler, stream

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["sync", "sync-prefix", "async", "async-prefix"],
)
COPIES = pytest.mark.parametrize(
    ("serial", "copy_steps"), [(True, 0), (False, 0), (False, 3)], ids=["serial", "quick", "slow"]
)


@dataclass
class Restless(DecodeFirst):
    """Decode first, with seeded pauses, and offloads, swaps and drops of whoever is paused."""

    rng: random.Random = field(default_factory=lambda: random.Random(5))
    victims: dict[Job, Fate] = field(default_factory=dict)
    planned: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    scheduler: Any = None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = super().plan(view, order, leaving)
        plan.run = [job for job in plan.run if self.rng.random() > 0.25]
        paused = [job for job in view.residents if job not in plan.run]
        fates = [Fate.SWAP, Fate.SWAP, Fate.RECOMPUTE]
        self.victims = {job: self.rng.choice(fates) for job in paused if self.rng.random() < 0.3}
        if view.host_total_blocks:
            plan.offload = [
                job for job in paused if job not in self.victims and self.rng.random() < 0.3
            ]
        for job, fate in self.victims.items():
            back = job in view.restoring
            self.planned[f"{fate} of {'one coming back' if back else 'a resident'}"] += 1
            self.in_flight += bool(self.scheduler.requests[job.id].num_in_flight_tokens)
        return plan


@dataclass
class TakesVictims(Recompute):
    """Preempts whom the batching names."""

    restless: Restless
    serial: bool = False

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        plan.preempt = self.restless.victims
        return plan


def restless(
    *, serial: bool, host_blocks: int = 40, asynchronous: bool = False, prefix_caching: bool = False
) -> tuple[Any, Restless]:
    """A scheduler whose policy swaps at random, and that policy's batching."""
    built = scheduler(
        asynchronous=asynchronous,
        prefix_caching=prefix_caching,
        vllm={"host_kv": HostKv(blocks=host_blocks)},
    )
    batching = Restless(scheduler=built)
    policy = built.guard.policy
    policy.batching, policy.eviction = batching, TakesVictims(batching, serial)
    built.swaps.copies.serial = serial
    return built, batching


def lengths(engine: MirrorEngine) -> Counter[str]:
    """Output tokens heard, by request."""
    heard: Counter[str] = Counter()
    for output in engine.heard:
        heard[output.request_id] += len(output.new_token_ids)
    return heard


@MODES
@COPIES
def test_every_step_finds_its_kv_and_every_request_its_length(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, batching = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script = MirrorEngine(built, copy_steps), stream(60)
    for _ in replay(engine, script, 20_000):
        pass
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert built.counters.policy_faults == built.counters.watchdog_faults == 0
    assert built.counters.differences["unexplained"] == 0
    assert min(engine.copied_blocks.values()) > 100
    assert bool(batching.in_flight) == asynchronous
    assert_empty(built)
    assert built.swaps.copies.host.free_blocks == built.swaps.copies.host.num_blocks
