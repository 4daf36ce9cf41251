"""Parts that answer with junk, or raise anything at all, over vLLM's real scheduler: the service goes on."""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.job import JobState
from headway.core.plan import Departure, Fate, StepPlan
from headway.engine.model_free import replay
from headway.policies.presets import PRESETS, build_policy
from tests.engine.scripts import HearingEngine, assert_empty, scheduler, stream
from tests.strategies import SOME, decoding, make_job

pytestmark = pytest.mark.vllm

errors = st.sampled_from([SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError, ValueError])
values = (
    st.sampled_from([nan, inf, -inf, 1.5, 3.5, 8.0, -1, 0, 10**30, np.int64(8), np.float32(8), np.ones(2)])
    | st.sampled_from([*Departure, *Fate, "garbage", "shed", "", b"", object(), StepPlan, [], {}, ()])
    | st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.floats()
)
picks = st.integers(0, 200)
"""Of a job, live or not, or of what is none, once it is known which there are (`Faulty`)."""


@dataclass(frozen=True)
class Several:
    """A container of some sort with such picks in it."""

    sort: Callable[[Any], Any]
    picks: list[int]


@dataclass(frozen=True)
class Table:
    """A dict from such picks to values."""

    rows: dict[int, Any]


answers = (
    values
    | st.builds(Several, st.sampled_from([list, tuple, iter, set, deque]), st.lists(picks, max_size=6))
    | st.builds(Table, st.dictionaries(picks, values, max_size=4))
)
spoiled_fields = st.dictionaries(
    st.sampled_from([part.name for part in fields(StepPlan)]), answers, min_size=1, max_size=3
)
CALLS = [
    ("order", "top"),
    ("order", "rank"),
    ("order", "next_change_s"),
    ("batching", "next_change_s"),
    ("eviction", "evict"),
    ("leaving", "leave"),
]
HOOKS = [
    *(("order", call) for call in ("add", "remove", "touch", "observe", "end")),
    ("batching", "observe"),
    ("eviction", "observe"),
    ("leaving", "add"),
    ("leaving", "remove"),
]


@dataclass(frozen=True)
class Fault:
    """One wrong call of one part, after some sound calls: it raises, or returns junk."""

    part: str
    call: str
    after_calls: int
    answer: Any

    @property
    def raises(self) -> bool:
        return isinstance(self.answer, type) and issubclass(self.answer, BaseException)


class Faulty:
    """Puts a fault into the policy of a scheduler; `calls` of the call so far."""

    def __init__(self, fault: Fault, built: Any) -> None:
        self._fault, self._built = fault, built
        self.calls = 0
        policy = build_policy(replace(PRESETS["sjf"], leaving=("expired",)))
        (rule,) = policy.leaving
        sound = rule if fault.part == "leaving" else getattr(policy, fault.part)
        behind = getattr(type(sound), fault.call)

        def called(part: object, *arguments: Any) -> Any:
            self.calls += 1
            if self.calls != fault.after_calls + 1:
                return behind(part, *arguments)
            return self._misbehave(lambda: behind(part, *arguments))

        faulty = type("Faulty", (type(sound),), {fault.call: called})()
        setattr(policy, fault.part, (faulty,) if fault.part == "leaving" else faulty)
        built.guard.policy = policy

    def _misbehave(self, sound: Callable[[], Any]) -> Any:
        """Raise or answer as drawn; a plan keeps the fields that were not."""
        answer = self._fault.answer
        if self._fault.raises:
            raise answer("on purpose")
        if (self._fault.part, self._fault.call) != ("batching", "plan"):
            return self._resolved(answer)
        plan = sound()
        for name, value in answer.items():
            setattr(plan, name, self._resolved(value))
        return plan

    def _resolved(self, answer: Any) -> Any:
        """The answer with jobs for picks."""
        if isinstance(answer, Several):
            return answer.sort([self._picked(number) for number in answer.picks])
        if isinstance(answer, Table):
            return {self._picked(number): value for number, value in answer.rows.items()}
        return answer

    def _picked(self, number: int) -> Any:
        """A live job, most often; or a copy of one, one that the engine never had, or none at all."""
        live = list(self._built.jobs.values())
        made_up = [make_job("new"), make_job("ended", state=JobState.ENDED), decoding("runs")]
        pool = [*live, *map(replace, live[:2]), *made_up, "0", None, 3]
        return pool[number % len(pool)]


faults = (
    st.builds(Fault, st.just("batching"), st.just("plan"), st.integers(0, 40), spoiled_fields | errors)
    | st.sampled_from(CALLS).flatmap(
        lambda call: st.builds(Fault, *map(st.just, call), st.integers(0, 40), answers | errors)
    )
    | st.sampled_from(HOOKS).flatmap(
        lambda call: st.builds(Fault, *map(st.just, call), st.integers(0, 10), errors)
    )
)


@SOME
@given(fault=faults, asynchronous=st.booleans())
@example(fault=Fault("leaving", "leave", 3, Table({0: "garbage"})), asynchronous=False)
@example(fault=Fault("batching", "plan", 9, {"chunk_cap": Table({0: 1.5})}), asynchronous=False)
@example(fault=Fault("batching", "plan", 9, {"token_budget": 3.5}), asynchronous=True)
@example(fault=Fault("batching", "plan", 9, {"admit": Several(list, [1])}), asynchronous=False)
@example(fault=Fault("batching", "next_change_s", 0, nan), asynchronous=False)
@example(fault=Fault("order", "add", 5, SystemExit), asynchronous=True)
@example(fault=Fault("order", "end", 5, KeyboardInterrupt), asynchronous=False)
def test_whatever_a_part_does_every_request_ends_once_and_the_policy_pays(
    fault: Fault, asynchronous: bool
) -> None:
    built = scheduler(asynchronous=asynchronous, num_blocks=40)
    faulty = Faulty(fault, built)
    engine = HearingEngine(built)
    script = stream(12)
    for _ in replay(engine, script, 5_000):
        pass
    assert set(engine.endings()) == {scripted.id for scripted in script}
    assert built.ledger.ended.total() == len(script)
    assert_empty(built)
    assert built.counters.policy_faults == built.guard.fell_back
    assert built.guard.fell_back or not (fault.raises and faulty.calls > fault.after_calls)
