"""The simulated engine against the real vLLM scheduler and KV manager: `python bench/right/conformance.py --json`.

Both run the same preset on the same stream, step by step and without a model. Every preset there is, prefix
caching off and on, blocks short and plenty, one and two steps in flight; those that swap also with host
memory, whose copies take some steps unless the policy waits for them; those that pause also with a batch
narrower than the worker slots, and those that do both also with much host memory. Requests share prefixes, have
targets, priorities and predicted lengths, may move or not, and end by their limit or by a stop token. Compared at
every step: which jobs are admitted, in which order, their tokens, which pause, which are preempted and how, put back,
offloaded or prefetched, which leave and why, in which queue each stands, whether predictions are trusted, and the
free blocks before and after, on the device and on the host. What the policies know of cost, of time and of lengths is
the same on both sides: swapping and recomputing are each the cheaper now and then, quanta end and jobs starve.
`free` never re-synchronises the two; `forced` copies the real one's state into a simulated engine before a
step and compares that step alone, every `--every`-th step. `presets` says by preset what was met in `free`.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from vllm.v1.core.sched.output import SchedulerOutput

from bench.command import command_line, pauses
from bench.right.conformance_steps import Decisions, Tally, before, copied_engine, decisions, order_of
from headway.core.batch_shape import BatchShape
from headway.core.hints import read_hints
from headway.core.host_copies import Copy
from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import (
    BLOCK_SIZE,
    ModelFreeEngine,
    ScriptedRequest,
    engine_config,
    headway_builder,
    make_scheduler,
)
from headway.engine.step.guard import GuardedPolicy
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset, known_presets
from headway.sim.engine import SimulatedEngine
from headway.sim.limits import EngineLimits

MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 24
MAX_NUM_BATCHED_TOKENS = 512
SHORT_BLOCKS, SPARE_BLOCKS, PLENTY_BLOCKS = 61, 121, 1500
"""The middle number is room, now and then, for more than the running requests, so that KV moves ahead of need."""
STEP_S = 0.05
MAX_STEPS = 5_000
HOST_BLOCKS, MANY_HOST_BLOCKS = 40, 400
"""The small host memory is full now and then, the large one never."""
NARROW = 4
"""Batch width under presets that pause: a sixth of the worker slots."""
COPY_STEPS = 2
"""Steps that a copy takes after the step that ordered it."""


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """One cell of the grid."""

    preset: str
    prefix_caching: bool
    num_blocks: int
    asynchronous: bool
    host_blocks: int = 0
    batch_width: int | None = None

    def __str__(self) -> str:
        caching = "caching" if self.prefix_caching else "no caching"
        mode = "two deep" if self.asynchronous else "one deep"
        host = f", {self.host_blocks} on the host" if self.host_blocks else ""
        width = f", {self.batch_width} at a time" if self.batch_width else ""
        return f"{self.preset}, {caching}, {self.num_blocks} blocks{host}, {mode}{width}"


class FixedCost:
    """Costs of a made-up engine, where computing a prompt of 160 tokens costs about as much as copying its KV out
    and in.
    """

    @property
    def kv_tokens(self) -> int:
        """Not known."""
        return 0

    def prefill_s(self, num_tokens: int) -> float:
        """A quarter of a millisecond a token."""
        return 0.25e-3 * num_tokens

    def step_s(self, shape: BatchShape) -> float:
        """5 ms, a quarter of a millisecond a token, and a microsecond for each that a decode reads."""
        return 5e-3 + 0.25e-3 * shape.num_tokens + 1e-6 * shape.decode_context_tokens

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """The predicted time with a probability of a half, and never a tenth more."""
        return self.step_s(shape) * (1 + 0.1 * (2 * confidence - 1))

    def swap_out_s(self, num_blocks: int) -> float:
        """A fixed start, and 2 ms a block."""
        return 10e-3 + 2e-3 * num_blocks

    def swap_in_s(self, num_blocks: int) -> float:
        """The same as out."""
        return self.swap_out_s(num_blocks)

    def load_s(self, num_tokens: int) -> float:
        """There is no store."""
        return 0.0


class RealEngine(ModelFreeEngine):
    """The real scheduler under a preset, or another policy, on the bench's clock."""

    def __init__(self, case: ConformanceCase, model: str, policy: Policy | None = None) -> None:
        config = engine_config(
            model,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=case.prefix_caching,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            host_kv=HostKv(blocks=case.host_blocks) if case.host_blocks else None,
        )
        config.scheduler_config.async_scheduling = case.asynchronous
        build = headway_builder(policy=case.preset, batch_width=case.batch_width, check=True)
        super().__init__(
            make_scheduler(build, config, case.num_blocks),
            depth=2 if case.asynchronous else 1,
            copy_steps=COPY_STEPS,
        )
        scheduler = self.scheduler
        scheduler.guard = Hearing(policy or policy_of(case), scheduler.ledger, scheduler.counters)
        if scheduler.swaps is not None:
            scheduler.swaps.copies.serial = scheduler.guard.policy.serial_copies
        self.last_granted = False
        assert config.max_concurrent_batches == (2 if case.asynchronous else 1)

    def step_s(self, output: SchedulerOutput) -> float:
        """Always 0: the bench alone moves the clock."""
        return 0.0

    def decide(self) -> Decisions:
        """Schedule a step and return its decisions."""
        scheduler = self.scheduler
        ledger, swapping = scheduler.ledger, scheduler.swaps
        queued = {*ledger.waiting, *ledger.swapped}
        live = queued | {job.id for job in ledger.residents}
        found = before(ledger, swapping.copies.returned if swapping is not None else (), self.free())
        log = self.schedule()
        self.last_granted = bool(log.tokens)
        residents = [*scheduler.running, *scheduler.kv_holding_waiting]
        entered = {request.request_id for request in residents} & queued
        outcome = scheduler.guard.heard
        assert entered == {job.id for job in outcome.admitted}
        return decisions(
            found,
            outcome,
            granted=log.tokens,
            left=live - set(scheduler.requests),
            order=order_of(scheduler.guard.policy.order, ledger),
            free_after=self.free(),
        )

    def free(self) -> tuple[int, int]:
        """Free blocks of device and host."""
        swaps = self.scheduler.swaps
        on_host = swaps.copies.host.free_blocks if swaps is not None else 0
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), on_host


class Hearing(GuardedPolicy):
    """A guarded policy that keeps the last step's outcome."""

    heard = StepOutcome(now_s=0.0, plan=StepPlan())

    def observe(self, outcome: StepOutcome) -> None:
        """Keep the outcome."""
        self.heard = outcome
        super().observe(outcome)


class SimulatedSide:
    """The simulated engine under the same policy."""

    def __init__(
        self, case: ConformanceCase, limits: EngineLimits | None = None, policy: Policy | None = None
    ) -> None:
        self.engine = SimulatedEngine(
            limits or limits_of(case), policy or policy_of(case), on_end=lambda record: None, check=True
        )
        self._copies: deque[list[Copy]] = deque([] for _ in range(COPY_STEPS))
        self._due: deque[list[Copy]] = deque()

    def add(self, scripted: ScriptedRequest, now_s: float, shared: list[int]) -> None:
        """Add a request."""
        self.engine.arrive(job_of(scripted, now_s), scripted.output_tokens, now_s, shared)

    def decide(self, now_s: float) -> Decisions:
        """Schedule a step and return its decisions."""
        decisions = decisions_of(self.engine, now_s)
        started = self.engine.take_copies()
        self._copies.append([] if self.engine.policy.serial_copies else started)
        self._due.append(self._copies.popleft())
        return decisions

    def process_oldest(self, now_s: float, *, granted: bool) -> None:
        """Process the oldest step, unless this side is no longer compared: its output, if it `granted` any, and the
        copies due with it.
        """
        if not self._due:
            return
        if granted and self.engine.in_flight:
            self.engine.update(now_s)
        for copy in self._due.popleft():
            self.engine.copied(copy)


def decisions_of(engine: SimulatedEngine, now_s: float) -> Decisions:
    """Schedule a step of a simulated engine and return its decisions."""
    found = before(engine.ledger, engine.host.returned if engine.host is not None else (), free_of(engine))
    outcome: StepOutcome = engine.schedule(now_s)
    return decisions(
        found,
        outcome,
        granted={job.id: tokens for job, tokens in outcome.tokens.items()},
        left={job.id for job in outcome.left},
        order=order_of(engine.policy.order, engine.ledger),
        free_after=free_of(engine),
    )


def free_of(engine: SimulatedEngine) -> tuple[int, int]:
    """Free blocks of device and host."""
    on_host = engine.host.copies.host.free_blocks if engine.host is not None else 0
    return engine.pool.free_blocks, on_host


def policy_of(case: ConformanceCase) -> Policy:
    """The preset, with costs that are the same on both sides."""
    return build_policy(find_preset(case.preset), FixedCost())


def limits_of(case: ConformanceCase) -> EngineLimits:
    """The real engine's sizes, less its null block."""
    return EngineLimits(
        num_blocks=case.num_blocks - 1,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_cudagraph_capture_size=0,  # a CPU has none
        batch_width=case.batch_width,
        prefix_caching=case.prefix_caching,
        asynchronous=case.asynchronous,
        host_blocks=case.host_blocks,
    )


def job_of(scripted: ScriptedRequest, now_s: float) -> Job:
    """The job that the plug-in makes of the request."""
    hints = read_hints(scripted.extra_args)
    return Job(
        id=scripted.id,
        arrival_s=now_s,
        num_prompt_tokens=len(scripted.prompt_token_ids),
        max_output_tokens=scripted.max_tokens or scripted.output_tokens,
        slo=hints.slo,
        priority=scripted.priority,
        predicted_length=hints.predicted_length,
        may_move=hints.may_move,
    )


@dataclass(frozen=True, slots=True)
class Scripted:
    """A request for both sides: tokens for the real one, prefix identity for the simulated one."""

    request: ScriptedRequest
    shared: list[int]


def make_script(count: int, seed: int) -> list[Scripted]:
    """Bursty arrivals and heavy-tailed lengths; half of the prompts begin with one of five documents.

    Nine answers in ten have a predicted length, good enough to be trusted once a few have ended.
    """
    rng, guesses, wishes = (
        random.Random(seed),
        random.Random(f"lengths {seed}"),
        random.Random(f"wishes {seed}"),
    )
    script: list[Scripted] = []
    step = 0
    for index in range(count):
        step += 0 if rng.random() < 0.5 else rng.randrange(8)
        prompt = min(1200, int(rng.lognormvariate(5.0, 0.9)) + 1)
        output = min(400, int(rng.lognormvariate(3.5, 0.9)) + 1)
        common = prompt * rng.randrange(1, 4) // 4 if rng.random() < 0.5 else 0
        document = rng.randrange(5)
        own = 100_000 + index * MAX_MODEL_LEN
        tokens = [*range(document * 2000, document * 2000 + common), *range(own, own + prompt - common)]
        ends_by_limit = rng.random() < 0.5
        hints = {"headway_ttft_ms": rng.choice([200, 1000, 5000])} if rng.random() < 0.6 else {}
        script.append(
            Scripted(
                ScriptedRequest(
                    id=f"r{index:05d}",
                    arrival_step=step,
                    prompt_token_ids=tokens,
                    output_tokens=output,
                    max_tokens=output if ends_by_limit else 450,
                    priority=rng.randrange(3),
                    extra_args={**hints, **_guess(output, guesses), **_wish(wishes)},
                ),
                [document * 2000 + block for block in range(common // BLOCK_SIZE)],
            )
        )
    return script


def _guess(output_tokens: int, rng: random.Random) -> dict[str, float]:
    """A predicted length and its interval, off by about a third; none for one answer in ten."""
    if rng.random() < 0.1:
        return {}
    tokens = max(1.0, output_tokens * rng.lognormvariate(0.0, 0.3))
    return {
        "headway_length": tokens,
        "headway_length_low": max(1.0, 0.67 * tokens),
        "headway_length_high": 1.5 * tokens,
    }


def _wish(rng: random.Random) -> dict[str, float | bool]:
    """The target between tokens, for three requests in four, which decodes or a long chunk may miss; and whether
    the request may move.
    """
    between_ms = rng.choice([None, 12, 40, 120])
    wish: dict[str, float | bool] = {} if between_ms is None else {"headway_tbt_ms": between_ms}
    return {**wish, "headway_may_move": rng.random() < 0.8}


def run_case(
    case: ConformanceCase, model: str, script: list[Scripted], free: Tally, forced: Tally, every: int
) -> None:
    """Drive both sides through the script; the real one's state is also copied before some steps."""
    compare(case, RealEngine(case, model), SimulatedSide(case), script, free, forced, every)


def compare(
    case: ConformanceCase,
    real: RealEngine,
    ours: SimulatedSide,
    script: list[Scripted],
    free: Tally,
    forced: Tally,
    every: int,
) -> None:
    """Step both through the script; the simulated side stops once it has differed."""
    for step in drive(real, ours, script):
        where = f"{case}, step {step}"
        copied = copied_engine(real.scheduler, limits_of(case)) if step % every == 0 else None
        now_s = real.now_s
        expected = real.decide()
        if copied is not None:
            forced.note(where, decisions_of(copied, now_s), expected)
        if free.first_difference is None:
            free.note(where, ours.decide(now_s), expected)
    free.met["cached_tokens"] += ours.engine.totals.cached_tokens


def drive(real: RealEngine, ours: SimulatedSide, script: list[Scripted]) -> Iterator[int]:
    """Step until all have ended; yields when both sides are to schedule. Outputs are processed half a step later."""
    pending = deque(script)
    flights: deque[bool] = deque()
    depth = ours.engine.limits.depth
    for step in range(MAX_STEPS):
        real.now_s = step * STEP_S
        while pending and pending[0].request.arrival_step <= step:
            scripted = pending.popleft()
            real.add(scripted.request)
            ours.add(scripted.request, real.now_s, scripted.shared)
        if not pending and not real.scheduler.has_unfinished_requests():
            return
        yield step
        granted = real.last_granted
        flights.append(granted)
        if len(flights) >= depth or not granted:
            real.now_s += STEP_S / 2
            real.process_oldest()
            ours.process_oldest(real.now_s, granted=flights.popleft())


def main() -> int:
    """Print both modes' figures; exit 1 if anything differs."""
    parser = command_line(__doc__)
    parser.add_argument("--requests", type=int, default=120, help="requests a case (default 120)")
    parser.add_argument("--every", type=int, default=8, help="copy the state every so many steps (default 8)")
    parser.add_argument("--presets", default="", help="only these, comma-separated (default all there are)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = str(ensure_demo_random())
    script = make_script(arguments.requests, arguments.seed)
    presets = arguments.presets.split(",") if arguments.presets else list(known_presets())
    free, forced = {case: Tally() for case in grid(presets)}, Tally()
    for case, tally in free.items():
        print(case, file=sys.stderr)
        run_case(case, model, script, tally, forced, arguments.every)
    found = [tally.first_difference for tally in free.values()]
    for difference in [difference for difference in [*found, *forced.differing] if difference][:10]:
        print(difference, file=sys.stderr)
    result = report(free, forced)
    print(json.dumps(result))
    return 1 if result["unexplained"] else 0


def grid(presets: list[str]) -> list[ConformanceCase]:
    """Every preset under every configuration."""
    return [
        ConformanceCase(preset, prefix_caching, num_blocks, asynchronous, host_blocks, batch_width)
        for preset in presets
        for batch_width in ((None, NARROW) if pauses(find_preset(preset)) else (None,))
        for num_blocks, host_blocks in memories(preset, narrow=batch_width is not None)
        for prefix_caching in (False, True)
        for asynchronous in (False, True)
    ]


def memories(preset: str, *, narrow: bool) -> list[tuple[int, int]]:
    """Blocks of device and host; host memory only where device blocks are short and the preset swaps."""
    chosen = [(SHORT_BLOCKS, 0), (PLENTY_BLOCKS, 0)]
    if build_policy(find_preset(preset)).uses_host:
        chosen.append((SHORT_BLOCKS, HOST_BLOCKS))
        if narrow:
            chosen.append((SPARE_BLOCKS, MANY_HOST_BLOCKS))
    return chosen


def report(free: dict[ConformanceCase, Tally], forced: Tally) -> dict[str, Any]:
    """The figures; a difference without a reason counts as unexplained, and no reason is accepted so far."""
    tallies = free.values()
    differences = [tally.first_difference for tally in tallies if tally.first_difference is not None]
    return {
        "free": {
            "decisions": sum(tally.decisions for tally in tallies),
            "first_difference": differences[0] if differences else None,
            "steps": sum(tally.steps for tally in tallies),
            **_met(tallies),
        },
        "forced": {
            "decisions": forced.decisions,
            "same": forced.same / forced.decisions,
            "steps": forced.steps,
            "preemptions": forced.met["preemptions"],
            "swaps": forced.met["swaps"],
        },
        "presets": {
            preset: _met(tally for case, tally in free.items() if case.preset == preset)
            for preset in dict.fromkeys(case.preset for case in free)
        },
        "unexplained": len(forced.differing) + len(differences),
    }


def _met(tallies: Iterable[Tally]) -> dict[str, int]:
    """How often each kind of decision occurred."""
    met: Counter[str] = Counter()
    for tally in tallies:
        met.update(tally.met)
    return dict(met)


if __name__ == "__main__":
    sys.exit(main())
