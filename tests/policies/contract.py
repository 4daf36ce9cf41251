"""The rules that every policy must keep, whatever its parts: checks that run a policy over a workload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.length_estimate import LengthEstimate
from headway.core.plan import StepOutcome, StepPlan
from headway.core.slo import NO_TARGETS, Slo
from headway.policies.parts import build_part
from headway.policies.policy import Policy
from headway.policies.presets import Preset, build_policy
from headway.policies.protocols import Leaving
from headway.sim.limits import EngineLimits
from tests.policies.instance import STEP_S, Instance, LinearCost, Snapshot, small_engine
from tests.strategies import slos

REMEMBERED_STEPS = 8
"""Steps after which an eviction remembers nobody who came in them."""

MakePolicy = Callable[["Workload"], Policy]
"""A fresh policy for one run of a workload; only a bad one looks at the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request: when it comes, what the policy may know, and its true length, which it may not."""

    id: str
    at_step: int
    prompt: int
    output: int
    limit: int
    slo: Slo = NO_TARGETS
    priority: int = 0
    predicted: LengthEstimate | None = None
    ready_after_steps: int = 0

    def job(self) -> Job:
        """A new job for it."""
        return Job(
            id=self.id,
            arrival_s=self.at_step * STEP_S,
            num_prompt_tokens=self.prompt,
            max_output_tokens=self.limit,
            slo=self.slo,
            priority=self.priority,
            predicted_length=self.predicted,
            may_move=True,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests for an engine on which each of them fits."""

    arrivals: tuple[Arrival, ...]
    engine: EngineLimits = field(default_factory=small_engine)

    @property
    def total_tokens(self) -> int:
        """All tokens of all requests."""
        return sum(arrival.prompt + arrival.output for arrival in self.arrivals)


def hurried(workload: Workload, tbt_s: float) -> Workload:
    """The same requests, all with this target between tokens."""
    arrivals = (replace(each, slo=replace(each.slo, tbt_s=tbt_s)) for each in workload.arrivals)
    return replace(workload, arrivals=tuple(arrivals))


estimates: st.SearchStrategy[LengthEstimate | None] = st.none() | st.builds(
    LengthEstimate, st.sampled_from([1.0, 3.0, 6.0]), st.just(1.0), st.sampled_from([6.0, 9.0, 40.0])
)
"""Predictions that have nothing to do with the true length, which a permutation of lengths leaves as they are."""

overlaps: st.SearchStrategy[dict[str, int]] = st.sampled_from(
    [{}, {"asynchronous": True}, {"pipeline_stages": 2}]
)
"""One step at a time, or two in flight."""


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """A few requests with many ties, on an engine short of everything."""
    engine = small_engine(
        num_blocks=draw(st.integers(8, 20)),
        watermark_blocks=draw(st.integers(0, 1)),
        batch_width=draw(st.integers(1, 4)),
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(4, 16)),
        prefix_caching=draw(st.booleans()),
        **draw(overlaps),
        host_blocks=draw(st.sampled_from([0, 3, 12, 40])),
        restore_share=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )
    names = draw(st.lists(st.integers(0, 99), min_size=1, max_size=7, unique=True))
    return Workload(tuple(draw(_arrivals(f"{name:02}")) for name in names), engine)


@st.composite
def _arrivals(draw: st.DrawFn, id_: str) -> Arrival:
    # At most 20 + 8 tokens: 7 blocks of 4 and a watermark of 1 are the smallest pool.
    limit = draw(st.integers(1, 8))
    return Arrival(
        id=id_,
        at_step=draw(st.integers(0, 6)),
        prompt=draw(st.integers(1, 20)),
        output=draw(st.integers(1, limit)),
        limit=limit,
        slo=draw(slos),
        priority=draw(st.integers(-1, 1)),
        predicted=draw(estimates),
        ready_after_steps=draw(st.sampled_from([0, 0, 0, 2, 5])),
    )


@dataclass(slots=True)
class Run:
    """A finished run: by step, the plan, who ended, and how many tokens each live job had brought."""

    instance: Instance
    ended: list[frozenset[str]] = field(default_factory=list)
    produced: list[dict[str, int]] = field(default_factory=list)

    @property
    def plans(self) -> list[Snapshot]:
        """The plan of each step."""
        return self.instance.plans


def drive(policy: Policy, workload: Workload, *, may_idle: bool = True, watched: bool = True) -> Run:
    """Run a workload to its end, checking each step; every request must have ended within a bounded time."""
    lengths = {each.id: each.output for each in workload.arrivals}
    instance = Instance(policy, lengths, workload.engine, watched=watched)
    run = Run(instance)
    due = deque(sorted(workload.arrivals, key=lambda arrival: arrival.at_step))
    ready_at: dict[Job, int] = {}
    limit = 20 + 6 * workload.engine.depth * workload.total_tokens
    while due or instance.ledger.live:
        step = len(run.ended)
        assert step < limit, f"still live after {limit} steps: {instance.ledger.waiting}"
        while due and due[0].at_step <= step:
            arrival = due.popleft()
            job = arrival.job()
            ready_at[job] = step + arrival.ready_after_steps
            instance.arrive(job)
        instance.hold_back(job for job, at in ready_at.items() if step < at)
        before = set(instance.records)
        ready = None if may_idle else _ready_for_an_empty_engine(instance)
        outcome = instance.step()
        # A step may also do nothing but start a swapped job's way back.
        did = outcome.tokens or outcome.admitted
        idled = ready is not None and ready.state is JobState.WAITING and not did
        assert not idled, f"nothing ran although {ready!r} was ready"
        run.ended.append(frozenset(set(instance.records) - before))
        run.produced.append({job.id: job.num_output_tokens for job in ready_at})
    assert set(instance.records) == set(instance.true_output)
    return run


def _ready_for_an_empty_engine(instance: Instance) -> Job | None:
    """A job that could start at once: nothing else is resident, and nobody's KV is on its way."""
    if instance.ledger.residents or instance.copying:
        return None
    return next((job for job in instance.ledger.waiting.values() if instance.pool.ready(job) is None), None)


def check_drains(make: MakePolicy, workload: Workload, *, may_idle: bool = True) -> Run:
    """Each plan is legal and changes nothing; all requests end; the parts then hold nothing more. That run."""
    policy = make(workload)
    run = drive(policy, workload, may_idle=may_idle)
    for part in (policy.order, *policy.leaving):
        assert not jobs_held_by(part), f"{part!r} still holds {jobs_held_by(part)}"
    assert len(jobs_held_by(policy.batching)) <= workload.engine.max_run
    for _ in range(REMEMBERED_STEPS):
        policy.eviction.observe(StepOutcome(now_s=run.instance.now_s, plan=StepPlan()))
    assert not jobs_held_by(policy.eviction), (
        f"{policy.eviction!r} still holds {jobs_held_by(policy.eviction)}"
    )
    assert run.instance.pool.free_blocks == run.instance.pool.num_blocks
    return run


def check_repeats(first: Run, make: MakePolicy, workload: Workload, *, any_order: bool) -> None:
    """The same events give the same plans, simultaneous arrivals in another order too where ids break ties."""
    if any_order:
        workload = replace(workload, arrivals=workload.arrivals[::-1])
    assert drive(make(workload), workload, watched=False).plans == first.plans


def check_blind_to_true_lengths(first: Run, make: MakePolicy, workload: Workload, seed: int) -> None:
    """Permute the lengths of unfinished jobs: every plan up to the first differing end is the same (invariant 7)."""
    random = Random(seed)
    from_step = random.randrange(len(first.ended))
    other = _permuted(workload, first, from_step, random)
    second = drive(make(other), other, watched=False)
    for step, (plan, twin) in enumerate(zip(first.plans, second.plans, strict=False)):
        assert plan == twin, f"step {step} depends on an output that has not ended"
        if first.ended[step] != second.ended[step]:
            return
    assert len(first.plans) == len(second.plans)


def _permuted(workload: Workload, run: Run, from_step: int, random: Random) -> Workload:
    """The same workload with the lengths still to come shuffled among the jobs that live after `from_step`."""
    over = frozenset[str]().union(*run.ended[: from_step + 1])
    produced = run.produced[from_step]
    live = [arrival for arrival in workload.arrivals if arrival.id not in over]
    to_come = [arrival.output - produced.get(arrival.id, 0) for arrival in live]
    random.shuffle(to_come)
    output = {
        arrival.id: min(arrival.limit, produced.get(arrival.id, 0) + more)
        for arrival, more in zip(live, to_come, strict=True)
    }
    changed = (replace(each, output=output.get(each.id, each.output)) for each in workload.arrivals)
    return replace(workload, arrivals=tuple(changed))


def jobs_held_by(part: object) -> set[Job]:
    """Every job that can be reached from a part through its own attributes and plain containers."""
    found: set[Job] = set()
    seen: set[int] = set()
    stack = [part]
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Job):
            found.add(thing)
        elif isinstance(thing, dict):
            stack += [*thing, *thing.values()]
        elif (isinstance(thing, Sequence) and not isinstance(thing, str | bytes)) or isinstance(
            thing, set | frozenset
        ):
            stack += thing
        elif type(thing).__module__.startswith(("headway.policies", "tests.")):
            names = [*getattr(thing, "__dict__", {}), *_slots(type(thing))]
            stack += [getattr(thing, name) for name in names]
    return found


def _slots(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]


# Building looks through every installed distribution for parts; copying does not.
@cache
def _built(preset: Preset) -> Policy:
    return build_policy(preset, LinearCost())


@cache
def _built_rule(spec: str) -> Leaving:
    rule: Leaving = build_part("leaving", spec, LinearCost())
    return rule


def from_preset(preset: Preset, more_leaving: tuple[str, ...] = ()) -> MakePolicy:
    """Fresh policies of one row, with more leaving rules."""

    def make(workload: Workload) -> Policy:
        policy = deepcopy(_built(preset))
        policy.leaving += tuple(deepcopy(_built_rule(spec)) for spec in more_leaving)
        return policy

    return make
