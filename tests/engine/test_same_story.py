"""The simulator and the real scheduler tell the same story of every request."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from bench.right.conformance import (
    HOST_BLOCKS,
    SHORT_BLOCKS,
    ConformanceCase,
    FixedCost,
    RealEngine,
    Scripted,
    SimulatedSide,
    drive,
    job_of,
    make_script,
    policy_of,
)
from headway.core.plan import StepOutcome
from headway.core.record import Record
from headway.engine.demo_model import ensure_demo_random
from headway.explain.explanation import explain
from headway.explain.trail import Trail
from headway.sim.watcher import ObservedStep, watched

pytestmark = pytest.mark.vllm


class Following:
    """Writes a simulated engine's trail, as the plug-in writes the real one's."""

    def __init__(self) -> None:
        self.trail = Trail()

    def saw(self, sight: ObservedStep) -> None:
        self.trail.stepped(sight.view, sight.outcome)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        pass

    def ended(self, record: Record) -> None:
        self.trail.finished(record)


class FollowedSide(SimulatedSide):
    """The simulated engine, followed."""

    def __init__(self, case: ConformanceCase) -> None:
        self.following = Following()
        super().__init__(case, policy=watched(policy_of(case), self.following, "", FixedCost()))
        self.engine._on_end = self.following.ended

    def add(self, scripted: Any, now_s: float, shared: list[int]) -> None:
        job = job_of(scripted, now_s)
        self.following.trail.arrived(job, now_s)
        self.engine.arrive(job, scripted.output_tokens, now_s, shared)


def told(trail: Trail, id_: str) -> dict[str, object]:
    """Everything but what is predicted: the two cost models learn from different clocks."""
    found = explain(trail, id_, 0.0, block_bytes=64)
    assert found is not None
    return {
        "chapters": [asdict(chapter) for chapter in found.story.chapters],
        "waited": (found.waited_s, list(found.waited)),
        "behind": (found.num_behind, list(found.behind)),
        "displaced": list(found.displaced),
        "moved": found.moved,
    }


@pytest.mark.parametrize("asynchronous", [False, True], ids=["one deep", "two deep"])
@pytest.mark.parametrize(
    ("preset", "host_blocks"),
    [("vllm", 0), ("ascendra-lp", 0), ("fastserve", HOST_BLOCKS), ("vllm-s-fallback", HOST_BLOCKS)],
)
def test_both_tell_the_same_story_of_every_request(preset: str, host_blocks: int, asynchronous: bool) -> None:
    case = ConformanceCase(preset, False, SHORT_BLOCKS, asynchronous, host_blocks)
    real, ours = RealEngine(case, str(ensure_demo_random())), FollowedSide(case)
    script: list[Scripted] = make_script(40, seed=5)
    for _ in drive(real, ours, script):
        now_s = real.now_s
        assert ours.decide(now_s) == real.decide()
    trails = (ours.following.trail, real.scheduler.listeners.explainer.trail)
    differing = {
        scripted.request.id: [told(trail, scripted.request.id) for trail in trails]
        for scripted in script
        if len({repr(told(trail, scripted.request.id)) for trail in trails}) > 1
    }
    assert differing == {}
    assert sum(track.num_displacements for track in trails[0].tracks) > 0 or preset == "ascendra-lp"
