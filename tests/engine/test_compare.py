"""Each reason why the engine does less than a plan asked, provoked in vLLM's real scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from headway.core.job import Job, JobState
from headway.core.plan import Fate, Reason, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.engine.model_free import ScriptedRequest, to_request
from headway.engine.step.compare import compare
from headway.engine.step.context import FilledStep, StepContext
from headway.engine.step.window_queue import WindowQueue
from headway.policies.eviction.reactive import Recompute
from headway.policies.presets import PRESETS
from headway.policies.protocols import Batching, Order
from tests.engine.scripts import HearingEngine, assert_empty, give_encoder, image_request, scheduler, steps
from tests.strategies import decoding, make_job, prefilling

pytestmark = pytest.mark.vllm

SMALL = 9
"""Blocks of a cache for 8 x 32 = 256 tokens: one is vLLM's own."""


@dataclass
class Watched:
    """A batching as it was, whose outcomes are kept; `paused`, `caps`, `victims` and `budget` go into its plans."""

    inner: Batching
    outcomes: list[StepOutcome] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    caps: dict[str, int] = field(default_factory=dict)
    victims: set[str] = field(default_factory=set)
    budget: int | None = None

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        plan = self.inner.plan(view, order, leaving)
        plan.run = [job for job in plan.run if job.id not in self.paused | self.victims]
        named = [*plan.run, *plan.admit]
        plan.token_budget = plan.token_budget if self.budget is None else self.budget
        plan.chunk_cap = {job: self.caps[job.id] for job in named if job.id in self.caps}
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)
        self.inner.observe(outcome)


@dataclass
class Preempting(Recompute):
    """Takes the victims of the batching that names them."""

    watched: Watched

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        plan.preempt = {job: Fate.RECOMPUTE for job in view.residents if job.id in self.watched.victims}
        return plan


class Scene:
    """An engine without a model, and what each of its steps did less than planned."""

    def __init__(self, **options: Any) -> None:
        self.scheduler = scheduler(**options)
        self.engine = HearingEngine(self.scheduler)
        policy = self.scheduler.guard.policy
        self.watched = policy.batching = Watched(policy.batching)
        policy.eviction = Preempting(self.watched)

    def add(self, id_: str, prompt_tokens: int, output_tokens: int = 5, lora: int = 0) -> Any:
        start = len(self.scheduler.requests) * 10_000
        request: Any = to_request(ScriptedRequest(id_, 0, range(start, start + prompt_tokens), output_tokens))
        if lora:
            request.lora_request = LoRARequest(f"adapter-{lora}", lora, "nowhere")
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, str]:
        """Request id -> reason, for one more step."""
        self.engine.step()
        return {job.id: reason.value for job, reason in self.watched.outcomes[-1].passed_over.items()}

    @property
    def tokens(self) -> dict[str, int]:
        """The tokens that the last step granted."""
        return {job.id: count for job, count in self.watched.outcomes[-1].tokens.items()}

    def finish(self) -> Counter[Reason]:
        """Serve the rest; every difference of the run, none of them unexplained."""
        for _ in steps(self.engine):
            self.engine.step()
        assert_empty(self.scheduler)
        differences: Counter[Reason] = self.scheduler.counters.differences
        assert differences[Reason.UNEXPLAINED] == 0
        return differences


def test_a_step_as_planned_has_no_differences() -> None:
    scene = Scene()
    for name in "abc":
        scene.add(name, 20)
    assert scene.step() == {}
    assert scene.tokens == {"a": 20, "b": 20, "c": 20}
    assert scene.finish() == {}


def test_budget_ends_admission_and_what_waits_behind_is_spare() -> None:
    scene = Scene()  # 512 tokens a step
    for name in "abcde":
        scene.add(name, 300)
    assert scene.step() == {"c": "budget"}
    assert scene.tokens == {"a": 300, "b": 212}
    scene.finish()


def test_a_budget_smaller_than_the_batch_leaves_residents_out() -> None:
    scene = Scene()
    for name in "abc":
        scene.add(name, 10)
    scene.step()
    scene.watched.budget = 2
    assert scene.step() == {"c": "budget"}
    assert scene.tokens == {"a": 1, "b": 1}
    scene.watched.budget = None
    scene.finish()


def test_seats() -> None:
    scene = Scene(batch_width=2)
    for name in "abcd":
        scene.add(name, 10)
    assert scene.step() == {"c": "seats"}
    scene.finish()


def test_isl_the_whole_sequence_must_fit() -> None:
    scene = Scene(num_blocks=SMALL)
    scene.add("a", 200)  # 7 of 8 blocks
    scene.add("b", 100)
    scene.add("c", 1)
    assert scene.step() == {"b": "isl"}
    scene.finish()


def test_blocks_for_the_first_chunk() -> None:
    scene = Scene(num_blocks=SMALL, vllm={"scheduler_reserve_full_isl": False})
    scene.add("a", 200)
    scene.add("b", 100)
    assert scene.step() == {"b": "blocks"}
    scene.finish()


def test_the_watermark() -> None:
    scene = Scene(num_blocks=SMALL, vllm={"watermark": 0.25})  # 2 blocks
    scene.add("a", 150)  # 5 of 8 blocks
    scene.add("b", 60)  # would fit the 3 that are left, but not with the watermark
    assert scene.step() == {"b": "watermark"}
    scene.finish()


def test_whole_prompts() -> None:
    scene = Scene(policy="vllm-v0")
    for name in "abc":
        scene.add(name, 300)
    assert scene.step() == {"b": "whole_prompt"}
    assert scene.tokens == {"a": 300}
    scene.finish()


def test_a_whole_prompt_has_the_room_of_a_job_whose_last_token_is_in_flight() -> None:
    scene = Scene(policy="orca", asynchronous=True)
    scene.add("a", 10, output_tokens=2)
    scene.add("b", 10, output_tokens=9)
    assert [scene.step(), scene.step()] == [{}, {}]
    scene.add("c", 40)
    scene.watched.budget = 41
    assert scene.step() == {"a": "in_flight"}
    assert scene.tokens == {"b": 1, "c": 40}
    scene.finish()


def test_shortage_takes_the_last_resident_and_ends_admission() -> None:
    scene = Scene(num_blocks=SMALL)
    scene.add("a", 128)  # 4 blocks, and a fifth with the next token
    scene.add("b", 128)
    assert scene.step() == {}
    scene.add("c", 1)
    assert scene.step() == {"b": "blocks", "c": "preemption"}
    assert scene.tokens == {"a": 1}
    assert scene.finish()[Reason.BLOCKS] == 1


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_paused_engine(state: PauseState) -> None:
    scene = Scene()
    scene.add("a", 10)
    scene.step()
    scene.add("b", 10)
    scene.scheduler.set_pause_state(state)
    newcomers = {"b": "engine_paused"}
    assert scene.step() == (
        newcomers if state is PauseState.PAUSED_NEW else {"a": "engine_paused", **newcomers}
    )
    assert scene.tokens == ({"a": 1} if state is PauseState.PAUSED_NEW else {})
    scene.scheduler.set_pause_state(PauseState.UNPAUSED)
    assert scene.step() == {}
    scene.finish()


def guided(id_: str) -> Any:
    """A request bound to a grammar that has not been compiled."""
    rules = StructuredOutputsParams(json='{"type": "object"}')
    return Request(
        request_id=id_,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(max_tokens=3, structured_outputs=rules),
        pooling_params=None,
    )


@pytest.mark.parametrize("policy", ["vllm", "vllm-v0", "orca", "static"])
def test_a_grammar_in_the_making_is_passed_over_and_a_failed_one_fails_its_request(policy: str) -> None:
    scene = Scene(policy=policy)
    request = guided("g")
    scene.scheduler.add_request(request)
    scene.add("a", 10, output_tokens=2)
    assert scene.step() == {"g": "grammar"}
    assert scene.tokens == {"a": 10}
    while "a" in scene.scheduler.requests:
        scene.step()
    assert scene.step() == {"g": "grammar"}
    request.structured_output_request.grammar = ValueError("no such grammar")
    assert scene.finish()[Reason.GRAMMAR] > 0
    assert {name: str(end.finish_reason) for name, end in scene.engine.endings().items()} == {
        "a": "length",
        "g": "error",
    }
    assert scene.scheduler.counters.watchdog_faults == 0


@pytest.mark.parametrize("policy", PRESETS)
def test_under_every_policy_a_failed_grammar_ends_its_request_soon(policy: str) -> None:
    built = scheduler(policy=policy)
    engine = HearingEngine(built)
    request = guided("g")
    built.add_request(request)
    engine.add(ScriptedRequest("a", 0, range(10), 2))
    engine.step()
    request.structured_output_request.grammar = ValueError("no such grammar")
    for _ in steps(engine, limit=100):
        engine.step()
    endings = engine.endings()
    assert {name: str(end.finish_reason) for name, end in endings.items()} == {"a": "length", "g": "error"}
    assert built.counters.watchdog_faults == 0
    assert_empty(built)


def test_held_by_the_engine() -> None:
    scene = Scene()
    request = scene.add("a", 10)
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    scene.add("b", 10)
    assert scene.step() == {"a": "held"}
    request.status = RequestStatus.WAITING
    assert scene.step() == {}
    scene.finish()


def test_the_last_token_may_be_in_flight() -> None:
    scene = Scene(asynchronous=True)
    scene.add("a", 10, output_tokens=2)
    assert [scene.step(), scene.step()] == [{}, {}]
    assert scene.step() == {"a": "in_flight"}
    scene.finish()


def test_a_job_preempted_in_flight_waits_for_its_stale_output() -> None:
    scene = Scene(asynchronous=True)
    scene.engine._depth = 3  # so that the output is still on its way when the next step is planned
    scene.add("a", 10, output_tokens=20)
    scene.add("b", 10, output_tokens=20)
    for _ in range(3):
        assert scene.step() == {}
    scene.watched.victims = {"b"}
    assert scene.step() == {}
    scene.watched.victims = set()
    assert scene.step() == {"b": "stale_output"}
    scene.finish()


def test_a_long_prefill_is_kept_short_by_vllms_own_threshold() -> None:
    scene = Scene(vllm={"long_prefill_token_threshold": 64})
    scene.add("a", 300)
    scene.add("b", 100)
    assert scene.step() == {"a": "long_prefill", "b": "long_prefill"}
    assert scene.tokens == {"a": 64, "b": 64}
    assert scene.step() == {"a": "long_prefill"}
    scene.finish()


def test_prefills_that_vllm_defers_for_data_parallel_balance() -> None:
    scene = Scene(vllm={"long_prefill_token_threshold": 32})
    scene.add("a", 10)
    scene.step()
    scene.add("b", 100)
    scene.step()
    scene.add("c", 10)
    output = scene.scheduler.schedule(throttle_prefills=True)
    assert output.num_scheduled_tokens == {"a": 1}
    scene.scheduler.get_grammar_bitmask(output)
    outcome = scene.watched.outcomes[-1]
    assert {job.id: why.value for job, why in outcome.passed_over.items()} == dict.fromkeys(
        "bc", "engine_paused"
    )
    scene.scheduler.update_from_output(output, scene.engine.compute(output))
    assert scene.step() == {"b": "long_prefill"}
    scene.finish()


def test_while_prefills_are_deferred_decodes_do_not_make_room_for_them() -> None:
    scene = Scene(policy="vllm-v0")
    scene.add("a", 10)
    scene.step()
    scene.add("b", 10)
    output = scene.scheduler.schedule(throttle_prefills=True)
    assert output.num_scheduled_tokens == {"a": 1}
    scene.scheduler.update_from_output(output, scene.engine.compute(output))
    scene.step()
    assert scene.tokens == {"b": 10}
    scene.finish()


def test_while_prefills_are_deferred_a_prompt_that_has_begun_pauses_no_decode() -> None:
    scene = Scene(policy="vllm-v0")  # 512 tokens a step
    scene.add("a", 10)
    scene.step()
    scene.add("b", 600)
    scene.step()
    assert scene.tokens == {"b": 512}
    output = scene.scheduler.schedule(throttle_prefills=True)
    assert output.num_scheduled_tokens == {"a": 1}
    scene.scheduler.update_from_output(output, scene.engine.compute(output))
    scene.step()
    assert scene.tokens == {"b": 88}
    scene.finish()


def spaces_prompts(scene: Scene) -> bool:
    """Whether this vLLM has `--prefill-schedule-interval` for an engine of its own."""
    return hasattr(scene.scheduler, "local_prefill_interval")


def test_prompts_between_two_steps_of_the_prefill_interval_are_deferred_by_vllm() -> None:
    scene = Scene(vllm={"prefill_schedule_interval": 4})
    scene.add("a", 10, output_tokens=20)
    scene.step()
    scene.add("b", 10, output_tokens=20)
    waits = {"b": "engine_paused"} if spaces_prompts(scene) else {}
    assert [scene.step() for _ in range(4)] == [waits, waits, waits, {}]
    assert scene.scheduler.view.defers_prompts is False
    scene.finish()


def test_prompts_are_not_deferred_for_decodes_that_the_plan_pauses() -> None:
    scene = Scene(vllm={"prefill_schedule_interval": 4})
    scene.add("a", 10, output_tokens=30)
    scene.step()
    scene.add("b", 60)
    scene.watched.caps, scene.watched.budget = {"b": 10}, 64
    while "b" not in scene.tokens:
        scene.step()
    scene.watched.paused = {"a"}
    for _ in range(4):
        assert scene.step() == {}
        assert scene.tokens == {"b": 10}
    scene.watched.paused, scene.watched.caps, scene.watched.budget = set(), {}, None
    scene.finish()


# ---- LoRA ------------------------------------------------------------------------------------------


def test_a_waiting_adapter_too_many_is_passed_over() -> None:
    scene = Scene(vllm={"enable_lora": True, "max_loras": 1, "max_cpu_loras": 3})
    scene.add("a", 10, lora=1)
    scene.add("b", 10, lora=2)
    scene.add("c", 10)
    scene.add("d", 10, lora=1)
    assert scene.step() == {"b": "lora"}
    assert scene.tokens == {"a": 10, "c": 10, "d": 10}
    scene.finish()


def test_a_resident_adapter_too_many_sits_the_step_out() -> None:
    scene = Scene(vllm={"enable_lora": True, "max_loras": 1, "max_cpu_loras": 3})
    paused = scene.add("a", 10, lora=1)
    scene.step()
    scene.watched.paused = {"a"}
    scene.add("b", 10, lora=2)
    assert scene.step() == {}
    assert scene.tokens == {"b": 10}
    assert paused.lora_request.lora_int_id == 1
    scene.watched.paused = set()
    assert scene.step() == {"b": "lora"}
    assert scene.tokens == {"a": 1}
    scene.finish()


def test_a_waiting_adapter_too_many_is_not_ready_so_that_nobody_makes_way_for_it() -> None:
    scene = Scene(vllm={"enable_lora": True, "max_loras": 1, "max_cpu_loras": 3})
    scene.add("a", 10, output_tokens=3, lora=1)
    scene.step()
    for name, lora in (("other", 2), ("same", 1), ("none", 0)):
        scene.add(name, 10, output_tokens=1, lora=lora)
    jobs, admission = scene.scheduler.jobs, scene.scheduler.admission

    def ready(name: str) -> bool:
        admission.adapters.look(scene.scheduler.outcomes.tokens, [], 0.0)  # as before each plan
        return bool(admission.ready(jobs[name]))

    assert [ready(name) for name in ("other", "same", "none")] == [False, True, True]
    assert not admission.admissible(jobs["other"])
    while "a" in jobs:
        scene.step()
    assert ready("other")
    scene.finish()


def test_an_adapter_is_not_to_blame_when_blocks_are_short() -> None:
    scene = Scene(num_blocks=SMALL, vllm={"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3})
    scene.add("a", 200, lora=1)
    scene.add("b", 100, lora=2)
    scene.add("c", 100, lora=2)
    assert scene.step() == {"b": "isl"}
    scene.finish()


# ---- images ----------------------------------------------------------------------------------------


def test_a_newcomer_whose_image_finds_no_room_in_the_encoder_is_passed_over_or_ends_admission() -> None:
    scene = Scene()
    give_encoder(scene.scheduler, 60)
    for name in "abcde":
        if name == "c":
            scene.add("c", 10)
        else:
            scene.scheduler.add_request(image_request(name, 100, (0, 50)))
    found = scene.step()
    if "c" in scene.tokens:  # vLLM 0.33 goes on with those behind it
        assert (found, scene.tokens) == (dict.fromkeys("bde", "encoder"), {"a": 100, "c": 10})
    else:
        assert (found, scene.tokens) == ({"b": "encoder"}, {"a": 100})
    scene.finish()


# ---- what is no difference, and what has no reason --------------------------------------------------


def test_a_pause_and_a_chunk_cap_are_as_planned() -> None:
    scene = Scene()
    scene.add("a", 10)
    scene.step()
    scene.add("b", 100)
    scene.watched.paused, scene.watched.caps = {"a"}, {"b": 30}
    assert scene.step() == {}
    assert scene.tokens == {"b": 30}
    scene.watched.paused, scene.watched.caps = set(), {}
    scene.finish()


def refuse(scene: Scene, id_: str) -> None:
    """A vLLM that, for a reason of its own, grants one request nothing."""
    scene.scheduler._reserve_prefill_lookahead = lambda request, computed, new: (
        new * (request.request_id != id_)
    )


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_difference_without_a_reason_is_counted_as_unexplained(victim: str) -> None:
    scene = Scene(check=False)
    scene.add("a", 10)
    scene.step()
    scene.add("b", 10)
    refuse(scene, victim)
    assert scene.step() == {victim: "unexplained"}


def test_tokens_for_a_job_the_plan_left_out_are_unexplained() -> None:
    scene = Scene(check=False)
    scene.add("a", 10)
    scene.step()
    scene.scheduler._shaping.capped = lambda caps, clip: clip
    scene.watched.paused = {"a"}
    assert scene.step() == {"a": "unexplained"}


def test_a_checking_scheduler_stops_at_the_unexplained() -> None:
    scene = Scene()
    scene.add("a", 10)
    refuse(scene, "a")
    with pytest.raises(AssertionError, match="no reason why the engine differs from the plan"):
        scene.step()


# ---- reasons that need a model, a drafter or a connector that is not here ---------------------------


def engine_like(request: Any, job: Job, **fields: Any) -> Any:
    """The part of a scheduler that the comparison reads, for one job without any other difference."""
    nothing_wrong: dict[str, Any] = {
        "not_ready": lambda _: None,
        "misfit": lambda _: None,
        "is_queued": lambda request: request in fields.get("waiting", [request]),
    }
    return SimpleNamespace(
        **{
            "requests": {job.id: request},
            "jobs": {job.id: job},
            "waiting": waiting(request),
            "_inflight_prefills": [],
            "_pause_state": PauseState.UNPAUSED,
            "defers_prefills": False,
            "swaps": None,
            "transfers": None,
            "view": StepView(),
            "num_spec_tokens": 0,
            "need_mamba_block_aligned_split": False,
            "scheduler_config": SimpleNamespace(long_prefill_token_threshold=0),
            "num_sampled_tokens_per_step": 1,
            "max_model_len": 4096,
            "seats_planned": 8,
            "admission": SimpleNamespace(**nothing_wrong),
            **fields,
        }
    )


def differences(outcome: StepOutcome, engine: Any) -> dict[Job, Reason]:
    """The comparison of a step that such a scheduler shaped."""
    step = StepContext(plan=outcome.plan, seats=engine.seats_planned, defers_prefills=engine.defers_prefills)
    return compare(outcome, FilledStep(step, SimpleNamespace(), 0.0, 0.0), engine, engine.admission)


def waiting(*requests: Any) -> WindowQueue:
    """A queue of these."""
    queue = WindowQueue()
    for request in requests:
        queue.add_request(request)
    return queue


def request_like(**fields: Any) -> Any:
    return SimpleNamespace(
        **{
            "request_id": "a",
            "has_encoder_inputs": False,
            "num_in_flight_tokens": 0,
            "num_computed_tokens": 10,
            "status": RequestStatus.WAITING,
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("of_request", "of_engine", "reason"),
    [
        ({}, {}, Reason.UNEXPLAINED),
        ({}, {"need_mamba_block_aligned_split": True}, Reason.ALIGNMENT),
        ({"has_encoder_inputs": True}, {}, Reason.ENCODER),
        ({}, {"num_spec_tokens": 3}, Reason.DRAFTS),
        ({"num_in_flight_tokens": 1}, {"num_spec_tokens": 3}, Reason.IN_FLIGHT),
    ],
)
def test_why_a_resident_got_nothing(
    of_request: dict[str, Any], of_engine: dict[str, Any], reason: Reason
) -> None:
    job, request = decoding("a"), request_like(**of_request)
    outcome = StepOutcome(now_s=0.0, plan=StepPlan(run=[job], token_budget=64))
    assert differences(outcome, engine_like(request, job, **of_engine)) == {job: reason}


def test_those_brought_back_without_a_place_take_no_seat() -> None:
    # One seat. b came back beside the batch, so it was not b that kept a from it.
    job, back = make_job("a"), decoding("b")
    plan = StepPlan(admit=[job], prefetch=[back], token_budget=64)
    outcome = StepOutcome(now_s=0.0, plan=plan, admitted=[back])
    engine = engine_like(request_like(), job, seats_planned=1)
    engine.admission.misfit = lambda _: Reason.ISL
    assert differences(outcome, engine) == {job: Reason.ISL}


def test_a_job_that_did_not_fit_does_not_wait_for_those_prefetched_after_it() -> None:
    # vLLM found a ready and its blocks missing, and looked at nobody behind it; then b took what may come back.
    job, behind, back = make_job("a", state=JobState.SWAPPED), make_job("c"), decoding("b")
    plan = StepPlan(admit=[job, behind], prefetch=[back], token_budget=64)
    outcome = StepOutcome(now_s=0.0, plan=plan, admitted=[back])
    engine = engine_like(request_like(), job, swaps=SimpleNamespace(found_tokens={job: 0}, copies=None))
    engine.admission.not_ready = lambda _: Reason.RESTORES
    engine.admission.misfit = lambda _: Reason.BLOCKS
    assert differences(outcome, engine) == {job: Reason.BLOCKS}


def test_a_resident_behind_a_shortage_that_freed_nothing_lacks_blocks() -> None:
    job, victim = decoding("a"), decoding("b")
    plan = StepPlan(run=[job], token_budget=64)
    outcome = StepOutcome(now_s=0.0, plan=plan, preempted={victim: Fate.RECOMPUTE})
    assert differences(outcome, engine_like(request_like(), job)) == {job: Reason.BLOCKS}


@pytest.mark.parametrize(
    ("of_request", "of_engine", "reason"),
    [
        ({}, {}, Reason.UNEXPLAINED),
        ({"has_encoder_inputs": True}, {}, Reason.ENCODER),
        ({}, {"num_spec_tokens": 3}, Reason.DRAFTS),
        ({}, {"need_mamba_block_aligned_split": True}, Reason.ALIGNMENT),
        ({"num_computed_tokens": 4095}, {}, Reason.MODEL_LENGTH),
    ],
)
def test_why_a_prefill_was_cut_short(
    of_request: dict[str, Any], of_engine: dict[str, Any], reason: Reason
) -> None:
    job, request = prefilling("a", prompt=50), request_like(**of_request)
    outcome = StepOutcome(
        now_s=0.0, plan=StepPlan(run=[job], token_budget=64), tokens={job: 10}, num_tokens=10
    )
    scheduler = engine_like(request, job, _inflight_prefills=[request], **of_engine)
    assert differences(outcome, scheduler) == {job: reason}


@pytest.mark.parametrize(
    ("of_request", "of_engine", "reason"),
    [
        ({}, {}, Reason.UNEXPLAINED),
        ({}, {"num_spec_tokens": 3}, Reason.DRAFTS),
        ({"has_encoder_inputs": True}, {}, Reason.ENCODER),
        ({}, {"need_mamba_block_aligned_split": True}, Reason.ALIGNMENT),
        ({}, {"waiting": waiting()}, Reason.HELD),
        ({"status": RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR}, {}, Reason.GRAMMAR),
        ({}, {"defers_prefills": True}, Reason.ENGINE_PAUSED),
    ],
)
def test_why_a_waiting_job_was_not_started(
    of_request: dict[str, Any], of_engine: dict[str, Any], reason: Reason
) -> None:
    job, request = make_job("a"), request_like(**of_request)
    outcome = StepOutcome(now_s=0.0, plan=StepPlan(admit=[job], token_budget=64))
    assert differences(outcome, engine_like(request, job, **of_engine)) == {job: reason}
