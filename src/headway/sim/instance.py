"""One engine on the virtual clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nextafter
from typing import NamedTuple

from headway.core.batch_shape import BatchShape, padded_shape_of, shape_of
from headway.core.host_copies import Copy, Direction
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.predict.steps.learned import StepClock
from headway.sim.clock import Clock, CopyEngine, EventLoop, Phase, Pipeline
from headway.sim.engine import SimulatedEngine
from headway.sim.killed_steps import as_killing
from headway.sim.kv_pool import BlockKey

SPIN_S = 1e-2
"""How often an engine with work that cannot be scheduled looks again, if no part says when to."""

StepObserver = Callable[[str, StepOutcome, float, float], None]
"""Called for each step with its instance, its outcome, when it was scheduled, and when its output arrived."""

LearnCopy = Callable[[int, float], None]
"""Called for each finished copy of one direction with its blocks, and its seconds after its start."""


class _StepUnderWay(NamedTuple):
    """A step in flight: when it ends, when it was scheduled, and whether it was killed."""

    finished_s: float
    started_s: float
    outcome: StepOutcome
    killed: bool


class Instance:
    """Schedules steps as vLLM's engine loop does: up to `depth` in flight, then waits for the oldest.

    Between a step's start and its output only arrivals happen. After a steady step, everything up to `horizon_s()`, the
    next arrival anywhere, is skipped in one go (unless someone watches every step).

    Copies between device and host or store go through `copiers`, beside the steps; no step is skipped while any is
    under way. Serial copies delay the step that they were decided with, or the next plan if no job runs; those of a job
    with steps in flight delay the next step after these. `learn_copies` is told how long each took. A policy that kills
    steps says when (`sim.killed_steps`).
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        clock: Clock,
        loop: EventLoop,
        *,
        learn: StepClock,
        host_s: float = 0.0,
        host_job_s: float = 0.0,
        horizon_s: Callable[[], float] = lambda: -inf,
        watch: StepObserver | None = None,
        copiers: Mapping[Direction, CopyEngine] | None = None,
        learn_copies: Mapping[Direction, LearnCopy] | None = None,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._loop = loop
        self._learn = learn
        self._horizon_s = horizon_s
        self._watch = watch
        self._pipeline = Pipeline(engine.limits.pipeline_stages)
        self._host_s = host_s
        self._host_job_s = host_job_s
        self._copiers = copiers or {}
        self._learn_copies = learn_copies or {}
        self._serial_s = 0.0
        self._killing = as_killing(engine.policy, engine.limits)
        self._shape_of = padded_shape_of if engine.policy.pads_prompts else shape_of
        self._flights: deque[_StepUnderWay] = deque()
        self._shape = BatchShape()
        self._wake_s = inf

    def arrive(self, job: Job, output_tokens: int, shared: Sequence[BlockKey] = ()) -> None:
        """Take in a request now; wakes an idle engine."""
        self.engine.arrive(job, output_tokens, self._loop.now_s, shared)
        if not self._flights:
            self._wake(self._loop.now_s)

    def _wake(self, time_s: float) -> None:
        if time_s < self._wake_s:
            self._wake_s = time_s
            self._loop.at(time_s, Phase.SCHEDULE, self._schedule)

    def _schedule(self) -> None:
        """Fill the pipeline, then wait for the oldest step, or, with none in flight, for a change."""
        now_s = self._loop.now_s
        if now_s != self._wake_s:
            return  # it was woken earlier
        self._wake_s = inf
        moved = False
        while len(self._flights) < self.engine.limits.depth:
            if self._may_repeat() and self._repeat(now_s):
                return
            outcome = self.engine.schedule(now_s)
            self._hold_up(now_s)
            if not outcome.tokens:
                self._start_copies(now_s)
                moved = self.engine.tier is not None and bool(outcome.preempted or outcome.admitted)
                break
            self._shape = self._shape_of(outcome.tokens)
            cut_s = inf if self._killing is None else self._killing.cut_s(outcome)
            self._dispatch(outcome, now_s, cut_s)
            self._start_copies(now_s)
        if self._flights:
            self._loop.at(self._flights[0].finished_s, Phase.OUTPUT, self._output)
        elif self.engine.ledger.live:
            if moved or self._serial_s:
                # Nothing runs, but the next plan may differ: wait for serial copies, or ask again.
                self._wake(now_s + (self._serial_s or SPIN_S))
                self._serial_s = 0.0
            else:
                self._wait(now_s)

    def _dispatch(self, outcome: StepOutcome, now_s: float, cut_s: float = inf) -> None:
        """Submit a step; it is killed at `cut_s` if it takes longer."""
        host_s = self._host_s + self._host_job_s * self._shape.num_jobs
        step_s = self._clock.step_s(self._shape)
        self.engine.totals.busy_s += step_s
        finished_s = self._pipeline.dispatch(now_s, host_s, step_s, self._serial_s)
        killed = cut_s < finished_s
        if killed:
            self._pipeline.cut(cut_s)
        self._flights.append(_StepUnderWay(min(finished_s, cut_s), now_s, outcome, killed))
        # A step that waited for copies, or was killed, says nothing about its shape's duration.
        teaches = not (self._serial_s or killed) and self._learn.learns_next(now_s, self._shape.kind)
        lesson = self._shape if teaches else None
        self._serial_s = 0.0
        self._learn.dispatched(lesson, now_s)
        self._learn.learn()

    def _output(self) -> None:
        """Process the end of the oldest step."""
        flight = self._flights.popleft()
        finished_s = flight.finished_s
        self._learn.finished(finished_s)
        if self._watch is not None:
            self._watch(self.engine.name, flight.outcome, flight.started_s, finished_s)
        if flight.killed and self._killing is not None:
            self._killing.killed(flight.outcome, finished_s)
            self.engine.kill()
        else:
            self.engine.update(finished_s)
        self._hold_up(finished_s)
        self._start_copies(finished_s)
        self._wake(finished_s)

    def _hold_up(self, now_s: float) -> None:
        """Let the next step wait for the serial copies that start now."""
        if not self.engine.serial_copies:
            return
        for copy in self.engine.take_copies():
            self._serial_s += self._copiers[copy.direction].seconds(copy)
            self._loop.at(now_s + self._serial_s, Phase.COPY, partial(self._learn_copy, copy))

    def _start_copies(self, now_s: float) -> None:
        """Start the copies beside the steps; the last pipeline stage begins and ends last."""
        start_s = now_s + self._pipeline.lag_s(now_s)
        for copy in self.engine.take_copies():
            copier = self._copiers[copy.direction]
            self._loop.at(copier.submit(copy, start_s), Phase.COPY, partial(self._copied, copy))

    def _learn_copy(self, copy: Copy) -> None:
        """Report the duration of a finished copy."""
        if copy.direction in self._learn_copies:
            seconds = self._copiers[copy.direction].seconds(copy)
            self._learn_copies[copy.direction](len(copy.blocks), seconds)

    def _copied(self, copy: Copy) -> None:
        """A copy is done; an engine without work may have some now."""
        self._learn_copy(copy)
        self.engine.copied(copy)
        self._start_copies(self._loop.now_s)
        if not self._flights:
            self._wake(self._loop.now_s)

    def _wait(self, now_s: float) -> None:
        """Look again later at work that cannot be scheduled now; fail what can never fit."""
        if self.engine.fail_oversized(now_s):
            self._wake(now_s)
            return
        change_s = self.engine.policy.next_change_s(self.engine.view(now_s))
        if self.engine.kept is not None:
            change_s = min(change_s, self.engine.kept.next_s)
        if change_s < inf:
            self._wake(nextafter(change_s, inf) if change_s >= now_s else now_s + SPIN_S)

    # ---- skipping steps that repeat --------------------------------------------------------------------

    def _may_repeat(self) -> bool:
        """False with pipeline stages: residents of a step in flight wait for its tokens and may not continue."""
        limits = self.engine.limits
        waits_for_tokens = limits.depth > 1 and not limits.asynchronous
        return self._watch is None and not waits_for_tokens and len(self._flights) == limits.depth - 1

    def _repeat(self, now_s: float) -> bool:
        """Skip the steps up to the next arrival or change of plan; False if there is none to skip."""
        horizon_s, steady = self._horizon_s(), self.engine.steady
        if steady is None or now_s >= horizon_s:
            return False
        policy, rounds = self.engine.policy, self.engine.steady_rounds()
        # Counted from the time of the plan: a change since then must end the stretch too.
        change_s = policy.next_change_s(self.engine.view(steady.now_s))
        if not rounds or now_s > change_s:
            return False
        done = 0
        while done < rounds and now_s < horizon_s and now_s <= change_s:
            self._shape = self._shape.grown()
            steady.now_s = now_s
            policy.observe(steady)
            self._dispatch(steady, now_s)
            if self._flights[0].finished_s > horizon_s:
                break
            now_s = self._flights.popleft().finished_s
            self._learn.finished(now_s)
            done += 1
        self.engine.repeat(done)
        if len(self._flights) == self.engine.limits.depth:
            self.engine.schedule_again()
            self._loop.at(self._flights[0].finished_s, Phase.OUTPUT, self._output)
        else:
            self._wake(now_s)
        return True
