"""The plug-in over vLLM's real scheduler and KV manager, without a model."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from inspect import isfunction
from itertools import pairwise
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.plan import Departure, Fate, StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.model_free import ScriptedRequest, replay, to_request
from headway.engine.scheduler import PolicyScheduler
from headway.engine.self_check import compare_logs, run_script, stock_builder
from headway.engine.step.stall_recovery import STALLED_STEPS
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.reactive import Recompute
from headway.policies.presets import PRESETS, build_policy
from headway.policies.protocols import Order
from tests.engine.scripts import HearingEngine, assert_empty, scheduler, steps, stream

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["sync", "sync-prefix", "async", "async-prefix"],
)
TWO_MODES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching"), [(False, True), (True, False)], ids=["sync-prefix", "async"]
)
"""For tests of many policies or calls, each of which meets either value of both."""


@MODES
def test_preset_vllm_decides_as_stock_step_by_step(asynchronous: bool, prefix_caching: bool) -> None:
    ours = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine = HearingEngine(ours)
    actual = list(replay(engine, stream(), 5_000))
    _, expected = run_script(
        stock_builder(asynchronous), ours.vllm_config, stream(), num_blocks=64, max_steps=5_000
    )
    parity = compare_logs(expected, actual)
    assert parity.first_difference is None
    assert parity.preemptions > 0
    assert ours.counters.planned_steps == ours.counters.steps == parity.steps


@TWO_MODES
@pytest.mark.parametrize("policy", PRESETS)
def test_every_preset_serves_every_request_to_its_length(
    policy: str, asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy=policy)
    engine = HearingEngine(built)
    script = stream(12)
    for _ in replay(engine, script, 5_000):
        pass
    generated = Counter({request.id: 0 for request in script})
    for output in engine.heard:
        generated[output.request_id] += len(output.new_token_ids)
    assert generated == {request.id: request.output_tokens for request in script}
    assert len(engine.endings()) == len(script)
    assert built.counters.differences["unexplained"] == 0
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert_empty(built)


@MODES
def test_blocks_are_missing_where_memory_keeps_a_job_out(asynchronous: bool, prefix_caching: bool) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy="sjf")
    missing: Counter[bool] = Counter()
    for _ in replay(HearingEngine(built), stream(), 5_000):
        for job in built.ledger.waiting.values():
            lacks = built.view.missing_blocks(job) > 0
            assert lacks == (built.admission.misfit(built.requests[job.id]) is not None)
            missing[lacks] += 1
    assert missing[True]
    assert missing[False]


@dataclass
class Shaken(DecodeFirst):
    """Decode first, with seeded pauses, chunk caps and preemptions of whoever is paused."""

    scheduler: Any = None
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    victims_in_flight: int = 0

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = super().plan(view, order, leaving)
        run = [job for job in plan.run if self.rng.random() > 0.3]
        paused = [job for job in plan.run if job not in run]
        plan.run = run
        plan.chunk_cap = {job: self.rng.randint(1, 64) for job in run if job.prefilling}
        self.victims = {job: Fate.RECOMPUTE for job in paused if self.rng.random() < 0.1}
        in_flight = [job for job in self.victims if self.scheduler.requests[job.id].num_in_flight_tokens]
        self.victims_in_flight += len(in_flight)
        return plan


@dataclass
class TakesVictims(Recompute):
    """Preempts whom the batching names."""

    shaken: Shaken

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        plan.preempt = self.shaken.victims
        return plan


@MODES
def test_pauses_caps_and_preemptions_lose_no_token(asynchronous: bool, prefix_caching: bool) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching)
    shaken = Shaken(scheduler=built)
    built.guard.policy.batching, built.guard.policy.eviction = shaken, TakesVictims(shaken)
    engine = HearingEngine(built)
    script = stream(50)
    for _ in replay(engine, script, 20_000):
        pass
    counters = built.counters
    assert (counters.pauses > 100, counters.planned_preemptions > 20) == (True, True)
    assert counters.differences["unexplained"] == 0
    assert bool(shaken.victims_in_flight) == asynchronous
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert_empty(built)


def test_a_chunk_cap_is_kept() -> None:
    built = scheduler()

    class Capped(DecodeFirst):
        def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
            plan = super().plan(view, order, leaving)
            plan.chunk_cap = dict.fromkeys([*plan.run, *plan.admit], 7)
            return plan

    built.guard.policy.batching = Capped()
    engine = HearingEngine(built)
    grants = [max(log.tokens.values(), default=0) for log in replay(engine, stream(10), 5_000)]
    assert max(grants) == 7
    assert_empty(built)


def test_batch_width_is_apart_from_worker_slots() -> None:
    built = scheduler(batch_width=3, num_blocks=500)
    engine = HearingEngine(built)
    widths = [len(log.tokens) for log in replay(engine, stream(40), 20_000)]
    assert max(widths) == 3
    assert built.max_num_running_reqs == 32
    assert built.counters.differences["seats"] > 0


@pytest.mark.parametrize("call", ["add", "end", "touch", "observe", "plan"])
@TWO_MODES
def test_a_policy_that_raises_is_replaced_and_nothing_is_lost(
    call: str, asynchronous: bool, prefix_caching: bool, caplog: pytest.LogCaptureFixture
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy="sjf")
    calls = 0

    class Failing(type(built.guard.policy)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            nonlocal calls
            if name == call:
                calls += 1
                if calls == 20:
                    raise ZeroDivisionError(f"{call} failed on purpose")
            return super().__getattribute__(name)

    policy = built.guard.policy
    built.guard.policy = Failing(policy.name, policy.order, policy.batching, policy.eviction)
    engine = HearingEngine(built)
    script = stream(40)
    for _ in replay(engine, script, 5_000):
        pass
    assert built.counters.policy_faults == 1
    assert built.guard.policy.name == "vllm"
    assert "failed on purpose" in caplog.text
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert_empty(built)


class PausesEveryone(DecodeFirst):
    """A deliberately bad part: once something runs, nothing ever does again."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = super().plan(view, order, leaving)
        plan.run = ()
        return plan


class StartsNobody(DecodeFirst):
    """A deliberately bad part: nobody is admitted."""

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = super().plan(view, order, leaving)
        plan.admit = ()
        return plan


@pytest.mark.parametrize("bad", [PausesEveryone, StartsNobody])
def test_the_watchdog_sees_a_stall_and_clears_it(
    bad: type[DecodeFirst], caplog: pytest.LogCaptureFixture
) -> None:
    built = scheduler()
    built.guard.policy.batching = bad()
    engine = HearingEngine(built)
    for request in stream(30, mean_gap_steps=0):
        engine.add(request)
    for _ in steps(engine, limit=1_000_000):
        engine.step()
    assert built.counters.watchdog_faults >= 2
    assert built.counters.empty_steps >= STALLED_STEPS
    assert "work is ready and nothing ran" in caplog.text
    assert built.ledger.ended == {Outcome.FINISHED: 30}
    assert_empty(built)


def test_a_remedy_that_does_not_help_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is taken again and again, several times a second."""
    built = scheduler(check=False)
    built.kv_cache_manager.allocate_slots = lambda *args, **kwargs: None  # there is room, and nobody gets any
    engine = HearingEngine(built)
    engine.add(ScriptedRequest("waits", 0, range(10), 1))
    for _ in range(10 * STALLED_STEPS):
        engine.step()
        engine.now_s += 0.02
    told = [record.getMessage().split("remedy: ")[1] for record in caplog.records if "remedy" in record.msg]
    assert [each.split()[0] for each in told] == ["RECOMPUTE_PAUSED", "FAIL_OVERSIZED", "STOCK_ORDER"]
    assert built.counters.watchdog_faults > 2 * len(told)


def test_after_a_calm_hour_a_stall_has_its_grace_too() -> None:
    built = scheduler()
    engine = HearingEngine(built)
    engine.add(ScriptedRequest("before", 0, range(10), 1))
    for _ in steps(engine):
        engine.step()
    built.clock = lambda: 3_600.0
    batching, built.guard.policy.batching = built.guard.policy.batching, StartsNobody()
    engine.add(ScriptedRequest("after", 0, range(10), 1))
    for _ in range(3 * STALLED_STEPS):
        engine.step()
    assert built.counters.watchdog_faults == 0
    built.guard.policy.batching = batching
    engine.step()
    assert_empty(built)


@pytest.mark.parametrize("known_at_once", [True, False])
def test_requests_larger_than_the_cache_fail_with_the_reason_and_block_no_other(
    known_at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    built = scheduler(num_blocks=9)
    built.admission.one_block_for_all_layers = known_at_once
    engine = HearingEngine(built)
    for turn in range(4):
        engine.add(ScriptedRequest(f"huge-{turn}", 0, range(300), 4))
        engine.add(ScriptedRequest(f"small-{turn}", 0, range(5_000, 5_050), 4))
        for _ in steps(engine, limit=1_000_000):
            engine.step()
        endings = engine.endings()
        assert endings[f"huge-{turn}"].finish_reason == FinishReason.ERROR
        assert endings[f"huge-{turn}"].stop_reason == "headway: needs 10 KV blocks, the engine has 8"
        assert endings[f"small-{turn}"].finish_reason == FinishReason.LENGTH
    assert "request huge-0 fails: headway: needs 10 KV blocks, the engine has 8" in caplog.text
    assert not built.guard.fell_back, "the policy did nothing wrong"
    assert (built.counters.watchdog_faults == 0) is known_at_once
    assert_empty(built)


@MODES
def test_expired_and_shed_requests_end_once_with_their_reason(
    asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(
        asynchronous=asynchronous,
        prefix_caching=prefix_caching,
        leaving=["expired", "queue-bound:max_waiting=10"],
    )
    engine = HearingEngine(built)
    late = {"headway_ttft_ms": 1}
    for request in stream(20, mean_gap_steps=0, extra_args=late):
        engine.add(request)
    for _ in steps(engine):
        engine.step()
    endings = engine.endings()
    reasons = Counter(ending.stop_reason for ending in endings.values())
    assert reasons["headway:expired"] + reasons["headway:shed"] > 0
    assert reasons["headway:expired"] == built.ledger.ended[Outcome.EXPIRED]
    assert reasons["headway:shed"] == built.ledger.ended[Outcome.SHED]
    aborted = [ending for ending in endings.values() if ending.finish_reason == FinishReason.ABORT]
    assert len(aborted) == reasons["headway:expired"] + reasons["headway:shed"]
    assert len(endings) == 20
    assert_empty(built)


@pytest.mark.parametrize(("declared", "limit"), [(3, 3), (400, 400), (None, 5)])
def test_policies_see_the_declared_limit_whatever_vllms(declared: int | None, limit: int) -> None:
    # A replay cuts answers at their true lengths, which policies are not to see.
    built = scheduler(asynchronous=False, prefix_caching=False)
    hints = None if declared is None else {"headway_max_output_tokens": declared}
    engine = HearingEngine(built)
    engine.add(ScriptedRequest("a", 0, range(8), output_tokens=5, extra_args=hints))
    engine.step()
    (job,) = built.ledger.residents
    assert job.max_output_tokens == limit


class TokenSeconds(UnknownCost):
    """A millisecond a token, whatever else is in the step: known from the start."""

    def prefill_s(self, num_tokens: int) -> float:
        return 1e-3 * num_tokens

    def step_s(self, shape: BatchShape) -> float:
        return 1e-3 * shape.num_tokens


def as_low_priority(built: Any, clock: Callable[[], float]) -> None:
    """Let the scheduler serve as ascendra-lp, with these costs, on this clock."""
    built.clock = clock
    built.guard.policy = build_policy(PRESETS["ascendra-lp"], TokenSeconds())


@MODES
def test_who_would_be_late_is_handed_off_once_with_its_reason(
    asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine = HearingEngine(built)
    count = iter(range(1_000_000))
    as_low_priority(built, lambda: next(count) * 0.05)
    script = stream(60, mean_gap_steps=1, extra_args={"headway_ttft_ms": 3_000})
    moves = {"headway_ttft_ms": 3_000, "headway_may_move": True}
    script = [replace(each, extra_args=moves) if number % 4 else each for number, each in enumerate(script)]
    for _ in replay(engine, script, 5_000):
        pass
    reasons = {id_: ending.stop_reason for id_, ending in engine.endings().items()}
    handed_off = {id_ for id_, reason in reasons.items() if reason == "headway:handed_off"}
    expired = {id_ for id_, reason in reasons.items() if reason == "headway:expired"}
    assert len(handed_off) > 5
    assert expired
    assert handed_off.isdisjoint(each.id for each in script[::4])
    assert all(engine.endings()[id_].finish_reason == FinishReason.ABORT for id_ in handed_off | expired)
    heard = {output.request_id for output in engine.heard if output.new_token_ids}
    assert heard.isdisjoint(handed_off | expired)
    ended = built.ledger.ended
    assert (ended[Outcome.HANDED_OFF], ended[Outcome.EXPIRED]) == (len(handed_off), len(expired))
    assert ended[Outcome.FINISHED] == len(script) - len(handed_off) - len(expired)
    counted = built.counters.departures
    assert (counted[Departure.HAND_OFF], counted[Departure.EXPIRED]) == (len(handed_off), len(expired))
    assert (built.counters.policy_faults, built.counters.watchdog_faults) == (0, 0)
    assert_empty(built)


def test_no_request_is_handed_off_while_a_gateway_says_that_too_much_waits_elsewhere() -> None:
    built = scheduler()
    engine = HearingEngine(built)
    count = iter(range(1_000_000))
    as_low_priority(built, lambda: next(count) * 0.05)
    full = {"headway_ttft_ms": 3_000, "headway_may_move": True, "headway_waiting_elsewhere": "900000,1000000"}
    for _ in replay(engine, stream(60, mean_gap_steps=1, extra_args=full), 5_000):
        pass
    assert built.ledger.ended[Outcome.HANDED_OFF] == 0
    assert built.ledger.ended[Outcome.EXPIRED] > 0
    assert (list(built.view.waiting_elsewhere), built.view.told_elsewhere_s > 0) == (
        [900_000, 1_000_000],
        True,
    )


@pytest.mark.parametrize("client_leaves", [False, True])
def test_all_parts_of_streamed_input_are_refused_the_last_one_too(client_leaves: bool) -> None:
    built = scheduler()
    engine = HearingEngine(built)

    def send(*, resumable: bool) -> None:
        sampling = SamplingParams(max_tokens=50)
        built.add_request(Request("s", [0], sampling, None, resumable=resumable))
        engine.step()

    parts = (
        [True, True] if client_leaves else [True, True, False]
    )  # the last one looks like any other request
    for resumable in parts:
        send(resumable=resumable)
    if client_leaves:
        built.finish_requests(["s"], RequestStatus.FINISHED_ABORTED)
    why = "headway: streaming input is not supported; send the whole prompt"
    heard = [(one.new_token_ids, one.finish_reason, one.stop_reason) for one in engine.heard]
    assert heard == [([], FinishReason.ERROR, why)] * len(parts)
    assert_empty(built)
    send(resumable=False)  # of somebody else
    for _ in steps(engine, limit=60):
        engine.step()
    assert built.ledger.ended == {Outcome.FAILED: len(parts), Outcome.FINISHED: 1}
    assert_empty(built)


@TWO_MODES
@pytest.mark.parametrize("policy", ["vllm", "sjf", "static", "vllm-v0"])
def test_aborts_at_any_moment_leave_nothing_behind(
    policy: str, asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy=policy)
    engine = HearingEngine(built)
    rng = random.Random(3)
    script = stream(60, mean_gap_steps=1)
    for _ in replay(engine, script, 5_000):
        if built.requests and rng.random() < 0.2:
            victim = rng.choice(sorted(built.requests))
            built.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            built.finish_requests(victim, RequestStatus.FINISHED_ABORTED)  # a second abort is no news
    ended = built.ledger.ended
    assert ended[Outcome.CANCELLED] > 5
    assert ended[Outcome.CANCELLED] + ended[Outcome.FINISHED] == len(script)
    assert_empty(built)


@MODES
def test_a_prefix_cache_reset_preempts_behind_the_policys_back_and_is_followed(
    asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy="sjf")
    engine = HearingEngine(built)
    script = stream(30)
    for step, _ in enumerate(replay(engine, script, 5_000)):
        if step % 20 == 10:
            built.reset_prefix_cache(reset_running_requests=True)
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert_empty(built)


def test_a_step_is_followed_while_the_workers_compute_it() -> None:
    built = scheduler()
    built.add_request(to_request(ScriptedRequest("a", 0, range(40), 3)))
    output = built.schedule()
    assert (built.counters.steps, list(built.ledger.waiting)) == (0, ["a"])
    built.get_grammar_bitmask(output)
    assert (built.counters.steps, [job.id for job in built.ledger.residents]) == (1, ["a"])
    built.get_grammar_bitmask(output)
    assert built.counters.steps == 1


def _abort(built: Any) -> None:
    built.finish_requests(min(built.requests), RequestStatus.FINISHED_ABORTED)


def _add(built: Any) -> None:
    built.add_request(to_request(ScriptedRequest(f"late {len(built.jobs)}", 0, range(40), 3)))


def _reset(built: Any) -> None:
    built.reset_prefix_cache(reset_running_requests=True)


def _ask(built: Any) -> None:
    built.answer("requests", "")


def _schedule_no_more(built: Any) -> None:
    """Do nothing: the step's output comes without another call of vLLM in between."""


@TWO_MODES
@pytest.mark.parametrize("meddle", [_abort, _add, _reset, _ask, _schedule_no_more])
def test_whatever_comes_before_a_step_is_followed_finds_it_followed(
    meddle: Callable[[Any], None], asynchronous: bool, prefix_caching: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=prefix_caching, policy="sjf")
    for scripted in stream(12):
        built.add_request(to_request(scripted))
    engine, sent = HearingEngine(built), 0
    while built.has_unfinished_requests() and sent < 3_000:
        output = built.schedule()
        computed = engine.compute(output)
        if sent % 9 == 4 and sent < 100 and built.requests:
            meddle(built)
            assert built.counters.steps == sent + 1 - (meddle is _schedule_no_more)
        sent += 1
        built.update_from_output(output, computed)
        assert built.counters.steps == sent
    assert built.ledger.ended.total() == built.ledger.arrived
    assert_empty(built)


def test_learning_follows_steps_that_ran() -> None:
    seen: list[StepOutcome] = []

    class Remembers(DecodeFirst):
        def observe(self, outcome: StepOutcome) -> None:
            seen.append(outcome)

    built = scheduler()
    built.guard.policy.batching = Remembers()
    logs = list(replay(HearingEngine(built), stream(20), 5_000))
    assert [sum(log.tokens.values()) for log in logs] == [outcome.num_tokens for outcome in seen]
    assert built.cost.steps.observed_steps > 20


def test_what_the_prefix_cache_holds_of_who_waits_is_known_and_found() -> None:
    # Blocks of 32. One at a time: a's 128 tokens leave four blocks behind, of which b finds three, since the last token
    # has to be computed, and long c all four; d nothing.
    a = list(range(128))
    script = [
        ScriptedRequest("a", 0, a, 2),
        ScriptedRequest("b", 0, a, 2),
        ScriptedRequest("c", 0, [*a, *range(1000, 1100)], 2),
        ScriptedRequest("d", 0, list(range(2000, 2200)), 2),
    ]
    built = scheduler(prefix_caching=True, policy="headway", vllm={"max_num_seqs": 1})
    engine = HearingEngine(built)
    known: dict[str, int] = {}
    for request in script:
        built.add_request(to_request(request))
    for _ in steps(engine):
        engine.step()
        for job in built.ledger.waiting.values():
            known[job.id] = max(known.get(job.id, 0), job.num_cached_tokens)
    assert known == {"b": 96, "c": 128, "d": 0}
    assert_empty(built)


@pytest.mark.parametrize(
    ("order", "prefix_caching"),
    [(None, False), ("arrival", True), ("on-time:prefixes=false", True)],
    ids=["no cache", "no use for it", "ablation"],
)
def test_nobody_looks_where_it_makes_no_difference(order: str | None, prefix_caching: bool) -> None:
    assert scheduler(prefix_caching=prefix_caching, policy="headway", order=order).listeners.prefixes is None


def test_every_entry_point_follows_the_last_step_first() -> None:
    own = {"dismiss", "take_seat", "close_admission"}  # called within an entry point
    unmoved = {"make_stats", "shutdown"}  # neither looks at jobs, but for their number
    entries = {name for name, each in vars(PolicyScheduler).items() if isfunction(each) and name[0] != "_"}
    gated = {name for name in entries if hasattr(vars(PolicyScheduler)[name], "__wrapped__")}
    assert entries - gated == own | unmoved


def test_a_plan_made_again_is_not_put_before_vllm_again_and_vllm_does_the_same() -> None:
    built = scheduler(policy="headway")
    shape, shaped = built._shaping.shape, []

    def heard(plan: StepPlan, **how: bool) -> Any:
        shaped.append(plan)
        return shape(plan, **how)

    built._shaping.shape = heard
    arrivals = stream(count=6, mean_gap_steps=30)
    granted = [log.tokens for log in replay(HearingEngine(built), arrivals, 2_000)]
    assert len(shaped) < len(granted) / 2
    always = scheduler(policy="headway")
    always.guard._steady = None
    assert [log.tokens for log in replay(HearingEngine(always), arrivals, 2_000)] == granted
    assert_empty(built)


def test_a_replay_decides_the_same_on_a_machine_that_stalls() -> None:
    class Stalling(HearingEngine):
        def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
            if random.Random(output.total_num_scheduled_tokens).random() < 0.2:
                time.sleep(0.02)
            return super().compute(output)

    granted = [
        [log.tokens for log in replay(kind(scheduler(policy="headway")), stream(count=12), 2_000)]
        for kind in (HearingEngine, Stalling)
    ]
    assert granted[0] == granted[1]


def test_a_kept_plan_that_is_filled_as_before_is_told_by_the_same_mapping_and_no_other_is() -> None:
    built = scheduler(policy="headway")
    engine = HearingEngine(built)
    told: list[dict[Job, int]] = []
    observe = built.guard.observe

    def heard(outcome: StepOutcome) -> None:
        told.append(outcome.tokens)
        observe(outcome)

    built.guard.observe = heard
    granted = [log.tokens for log in replay(engine, stream(count=6, mean_gap_steps=30), 2_000)]
    assert [{job.id: tokens for job, tokens in step.items()} for step in told] == granted
    kept = sum(before is now for before, now in pairwise(told))
    assert len(told) / 2 < kept < len(told) - 12, "most steps, but none in which one of six comes or ends"
    assert_empty(built)
