"""More LoRA adapters than slots, behind vLLM's own scheduler on a virtual clock: no request waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.scheduler import Scheduler

from headway.core.job import Job, JobState
from headway.core.plan import Departure, StepPlan
from headway.engine.demo_model import ensure_demo_random
from headway.engine.model_free import (
    ModelFreeEngine,
    ScriptedRequest,
    engine_config,
    headway_builder,
    make_scheduler,
    to_request,
)
from headway.engine.step.adapters import MOST_KNOWN, PATIENCE_S, AdapterSlots
from tests.strategies import FEW, make_job

STEP_S, SLOTS, ADAPTERS, LONGEST = 0.05, 2, 8, 40
"""An answer of 40 tokens takes two seconds."""


class Asked(NamedTuple):
    """A request for an adapter; 0 for none."""

    arrival_s: float
    adapter: int
    output_tokens: int


class SteadyEngine(ModelFreeEngine):
    """Every step takes as long."""

    def step_s(self, output: object) -> float:
        return STEP_S


@cache
def _config() -> Any:
    sizes: dict[str, Any] = {"max_num_seqs": 8, "enable_prefix_caching": False}
    loras: dict[str, Any] = {"enable_lora": True, "max_loras": SLOTS, "max_cpu_loras": ADAPTERS}
    return engine_config(str(ensure_demo_random()), **sizes, **loras)


def served(build: Callable[..., Any], asked: Sequence[Asked]) -> tuple[list[float], float]:
    """The wait of each request for its first token, and the time when all had ended."""
    scheduler = make_scheduler(build, deepcopy(_config()), 600)
    engine = SteadyEngine(scheduler)
    pending = sorted(enumerate(asked), key=lambda each: each[1].arrival_s)
    first_s: dict[str, float] = {}
    while pending or scheduler.requests:
        while pending and pending[0][1].arrival_s <= engine.now_s:
            number, one = pending.pop(0)
            request = to_request(
                ScriptedRequest(str(number), 0, range(number, number + 30), one.output_tokens)
            )
            request.arrival_time = engine.now_s
            if one.adapter:
                request.lora_request = LoRARequest(f"adapter-{one.adapter}", one.adapter, "nowhere")
            scheduler.add_request(request)
        tokens = engine.step().tokens
        if not tokens:
            engine.now_s += STEP_S
        for id_ in tokens:
            first_s.setdefault(id_, engine.now_s)
    return [first_s[str(number)] - one.arrival_s for number, one in enumerate(asked)], engine.now_s


def steady(seconds: float, adapters: Sequence[int] = (1, 2)) -> list[Asked]:
    """Each of some adapters has a request every half second, of two seconds each: their slots never come free."""
    count = int(2 * seconds)
    return [Asked(0.5 * number, adapter, LONGEST) for number in range(count) for adapter in adapters]


BOUND_S = (ADAPTERS - 1) * (PATIENCE_S + LONGEST * STEP_S) + 2
"""A turn for each of the other adapters, and the steps beside them."""


def test_where_stock_lets_one_wait_as_long_as_others_come_it_has_its_turn() -> None:
    asked = [*steady(30), Asked(1.0, 3, 5)]
    assert served(Scheduler, asked)[0][-1] > 28
    for policy in ("vllm", "headway"):
        assert (
            served(headway_builder(policy=policy, check=True), asked)[0][-1]
            <= PATIENCE_S + LONGEST * STEP_S + 2
        )


@FEW
@given(
    others=st.lists(
        st.builds(Asked, st.floats(0, 40), st.integers(0, ADAPTERS), st.integers(1, LONGEST)),
        min_size=1,
        max_size=12,
    ),
    policy=st.sampled_from(["vllm", "headway"]),
)
def test_no_request_waits_longer_than_a_turn_for_each_adapter(others: list[Asked], policy: str) -> None:
    asked = [*others, *steady(50)]
    waits_s, _ = served(headway_builder(policy=policy, check=True), asked)
    assert max(waits_s[: len(others)]) <= BOUND_S


def test_of_eight_adapters_at_once_two_slots_get_as_much_through_as_under_stock() -> None:
    rng = Random(5)
    asked = [Asked(0.0, 1 + number % ADAPTERS, rng.randint(5, LONGEST)) for number in range(240)]
    _, stock_s = served(Scheduler, asked)
    waits_s, own_s = served(headway_builder(policy="vllm", check=True), asked)
    assert own_s <= 1.05 * stock_s
    assert max(waits_s) <= own_s


# ---- turns by hand -----------------------------------------------------------------------------------


def jobs(*adapters: int, resident: bool = False) -> list[Job]:
    """A job of each, a second apart."""
    found = [make_job(f"{number}", arrival_s=float(number)) for number in range(len(adapters))]
    for job, adapter in zip(found, adapters, strict=True):
        job.lora_id = adapter
        job.state = JobState.RESIDENT if resident else job.state
    return found


@pytest.mark.parametrize(
    ("now_s", "closed", "admitted"),
    [(4.9, False, [1, 2, 3, 4, 0]), (5.0, True, [2, 0])],
    ids=["not yet", "its turn"],
)
def test_the_adapter_that_ran_for_longest_gives_way(now_s: float, closed: bool, admitted: list[int]) -> None:
    # 1 has run since 0 s, 2 since 1 s. 3 waits since 0 s, 4 since 1 s.
    slots, ran = AdapterSlots(2), jobs(1, 2, resident=True)
    slots.look(ran[:1], [], 0.0)
    slots.look(ran, [], 1.0)
    waiting = jobs(3, 4)
    slots.look(ran, waiting, now_s)
    one, two, free = jobs(1, 2, 0)
    assert slots.has(one) is not closed
    plan = StepPlan(admit=[one, two, *waiting, free])
    assert [job.lora_id for job in slots.turns(plan, waiting)] == admitted
    if closed:
        slots.look(ran[1:], waiting, now_s + 1)  # those of 1 have ended: the slot is for the job of 3
        assert [slots.has(job) for job in (*waiting, one, two)] == [True, False, False, True]
        assert [job.lora_id for job in slots.turns(plan, waiting)] == [3, 2, 0]
        gone = StepPlan(admit=[two], leave={waiting[0]: Departure.SHED})
        assert slots.turns(gone, waiting) == [two]


def test_of_adapters_that_are_loaded_anew_again_and_again_the_last_are_known() -> None:
    slots = AdapterSlots(1)
    for number in range(2 * MOST_KNOWN):
        slots.look([make_job(f"r{number}", lora_id=number + 1, state=JobState.RESIDENT)], [], float(number))
    assert len(slots._last_s) <= MOST_KNOWN
    assert max(slots._last_s) == 2 * MOST_KNOWN
