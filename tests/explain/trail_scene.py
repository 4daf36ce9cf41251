"""An engine whose steps a test writes itself, followed by a trail."""

from __future__ import annotations

from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.core.view import StepView
from headway.explain.telling import tell
from headway.explain.trail import Trail


class Scene:
    """An engine of two seats and blocks of 4 tokens, a step a second, whose outcomes the test writes itself."""

    def __init__(self, kept: int = 500) -> None:
        self.ledger = Ledger()
        self.trail = Trail(kept=kept)
        self.now_s = 0.0
        self.jobs: dict[str, Job] = {}

    def come(self, id_: str, prompt: int = 4, slo: Slo | None = None, *, program: str | None = None) -> Job:
        job = Job(
            id=id_,
            arrival_s=self.now_s,
            num_prompt_tokens=prompt,
            max_output_tokens=99,
            slo=slo or Slo(),
            program=program,
        )
        self.jobs[id_] = job
        self.ledger.arrive(job)
        self.trail.arrived(job, self.now_s)
        return job

    def step(
        self,
        tokens: dict[str, int],
        *,
        admitted: str = "",
        preempted: dict[str, Fate] | None = None,
        planned: bool = True,
        room_for: str = "",
        passed_over: dict[str, Reason] | None = None,
        seconds: float = 1.0,
    ) -> None:
        """One step: who got tokens, who was admitted (ids of one letter), whose KV left; its output is a token each."""
        jobs = self.jobs
        view = StepView(
            now_s=self.now_s,
            residents=self.ledger.residents,
            waiting=self.ledger.waiting.values(),
            swapped=self.ledger.swapped.values(),
            free_blocks=3,
            block_size=4,
            max_run=2,
            max_resident=2,
        )
        gone = {jobs[id_]: fate for id_, fate in (preempted or {}).items()}
        new = [jobs[id_] for id_ in admitted]
        plan = StepPlan(
            run=[job for job in self.ledger.residents if job not in gone],
            admit=new,
            token_budget=64,
            preempt=gone if planned else {},
            room_for=jobs[room_for] if room_for else None,
        )
        outcome = StepOutcome(
            now_s=self.now_s,
            plan=plan,
            tokens={jobs[id_]: count for id_, count in tokens.items()},
            num_tokens=sum(tokens.values()),
            admitted=new,
            preempted=gone,
            passed_over={jobs[id_]: reason for id_, reason in (passed_over or {}).items()},
        )
        self.ledger.apply(outcome)
        self.trail.stepped(view, outcome)
        self.now_s += seconds
        for job in outcome.tokens:
            if job.num_computed_tokens >= job.num_tokens:
                self.ledger.sampled(job, 1, self.now_s)

    def end(self, id_: str, outcome: Outcome = Outcome.FINISHED) -> None:
        self.trail.finished(self.ledger.end(self.jobs.pop(id_), outcome, self.now_s))

    def beginning(self, id_: str) -> str:
        track = self.trail.find(id_)
        assert track is not None
        return tell(self.trail, track, self.now_s).chapters[0].why

    def told(self, id_: str) -> list[tuple[str, float, float]]:
        track = self.trail.find(id_)
        assert track is not None
        return [(str(c.kind), c.start_s, c.end_s) for c in tell(self.trail, track, self.now_s).chapters]


def displaced_scene() -> Scene:
    # a starts at 0 and decodes at 1; at 2 the policy gives its place to b, which came at 1. b prefills at 2 and
    # decodes at 3; it ends at 4, and a, which had 4 + 1 tokens computed, starts again then with all its 6.
    scene = Scene()
    scene.come("a", slo=Slo(ttft_s=3.0, deadline_s=4.0))
    scene.step({"a": 4}, admitted="a")
    scene.come("b")
    scene.step({"a": 1}, passed_over={"b": Reason.SEATS})
    scene.step({"b": 4}, admitted="b", preempted={"a": Fate.RECOMPUTE})
    scene.step({"b": 1}, passed_over={"a": Reason.ISL})
    scene.end("b")
    scene.step({"a": 6}, admitted="a")
    scene.end("a")
    return scene
