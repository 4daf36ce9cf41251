"""Swapping under the real vLLM scheduler and KV manager, with every block's contents followed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.metrics.stats import KV_FETCH_COMPLETED_WAITING, KV_FETCH_IN_PROGRESS
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from headway.core.host_copies import Direction
from headway.core.job import Job, JobState
from headway.core.plan import Fate, StepPlan
from headway.core.prefix_watch import PrefixWatch
from headway.core.record import Outcome
from headway.core.view import StepView
from headway.engine.host_kv import HostKv
from headway.engine.kv.copies import CopyOrder, CopyOrders, CopyReport
from headway.engine.model_free import ScriptedRequest, replay
from headway.engine.step.stall_recovery import PATIENCE_S
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.reactive import Recompute
from headway.policies.protocols import Order
from tests.engine.kv_mirror import MirrorEngine
from tests.engine.scripts import assert_empty, scheduler, steps, stream

pytestmark = pytest.mark.vllm

MODES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["sync", "sync-prefix", "async", "async-prefix"],
)
COPIES = pytest.mark.parametrize(
    ("serial", "copy_steps"), [(True, 0), (False, 0), (False, 3)], ids=["serial", "quick", "slow"]
)
WAYS = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching", "serial", "copy_steps"),
    [
        (False, False, True, 0),
        (True, True, True, 0),
        (False, True, False, 0),
        (True, False, False, 0),
        (False, False, False, 3),
        (True, True, False, 3),
    ],
    ids=[
        "sync serial",
        "async-prefix serial",
        "sync-prefix quick",
        "async quick",
        "sync slow",
        "async-prefix slow",
    ],
)
"""Modes and speeds of copies: each value of one meets each of every other."""
EXTREMES = pytest.mark.parametrize(
    ("asynchronous", "prefix_caching", "serial", "copy_steps"),
    [(False, False, True, 0), (True, True, True, 0), (False, True, False, 3), (True, False, False, 3)],
    ids=["sync serial", "async-prefix serial", "sync-prefix slow", "async slow"],
)
"""The same of the two that are farthest apart."""


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
            plan.offload = [job for job in paused if job not in self.victims and self.rng.random() < 0.3]
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
    *,
    serial: bool,
    host_blocks: int = 40,
    asynchronous: bool = False,
    prefix_caching: bool = False,
    **vllm: Any,
) -> tuple[Any, Restless]:
    """A scheduler whose policy swaps at random, and that policy's batching."""
    built = scheduler(
        asynchronous=asynchronous,
        prefix_caching=prefix_caching,
        vllm={"host_kv": HostKv(blocks=host_blocks), **vllm},
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


@WAYS
def test_every_step_finds_its_kv_and_every_request_its_length(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, batching = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script = MirrorEngine(built, copy_steps), stream(25)
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


@MODES
@pytest.mark.parametrize("policy", ["restless", "fastserve"])
def test_vllm_tells_how_many_wait_for_their_kv_and_how_many_for_their_turn(
    policy: str, asynchronous: bool, prefix_caching: bool
) -> None:
    modes = {"asynchronous": asynchronous, "prefix_caching": prefix_caching}
    if policy == "restless":
        built, _ = restless(serial=False, **modes)
    else:
        built = scheduler(policy=policy, batch_width=4, vllm={"host_kv": HostKv(blocks=40)}, **modes)
    built._kv_fetch_stages = {}  # as where statistics are logged
    copies, counts, seen = built.swaps.copies, built._kv_fetch_counts, Counter[str]()
    for _ in replay(MirrorEngine(built, 3), stream(25), 20_000):
        assert counts[KV_FETCH_IN_PROGRESS] == len(copies.restoring)
        assert counts[KV_FETCH_COMPLETED_WAITING] == len(copies.returned) - len(copies.restoring)
        seen.update(counts)
    assert min(seen[KV_FETCH_IN_PROGRESS], seen[KV_FETCH_COMPLETED_WAITING]) > 0
    assert set(counts.values()) == {0}


class DraftingEngine(MirrorEngine):
    """Refuses every draft. Follows copies block by block; which token a draft was is not followed."""

    def _attend(self, request: Request, granted: int) -> None:
        pass


@COPIES
@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_that_are_refused_after_their_job_was_swapped_do_no_harm(
    serial: bool, copy_steps: int, asynchronous: bool
) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    built, batching = restless(serial=serial, asynchronous=asynchronous, speculative_config=drafts)
    engine, script = DraftingEngine(built, copy_steps), stream(25)
    for _ in replay(engine, script, 20_000):
        pass
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert built.counters.policy_faults == built.counters.watchdog_faults == 0
    assert min(engine.copied_blocks.values()) > 0
    assert bool(batching.in_flight) == asynchronous
    assert_nothing_held(built)


# ---- ends at any moment ------------------------------------------------------------------------------


def moment(built: Any, request_id: str) -> str:
    """The stage of a request on its way through the engine."""
    job, copies = built.jobs[request_id], built.swaps.copies
    if job in copies.restoring:
        return "restoring"
    if job.state is JobState.SWAPPED:
        return "swapped" if not copies.uncopied_blocks(job) else "leaving"
    return str(job.state.value)


def rarest(built: Any, met: Collection[str]) -> tuple[str, str]:
    """A request at the moment of which fewest have been met, and that moment."""
    moments = {request_id: moment(built, request_id) for request_id in sorted(built.requests)}
    seen = Counter(met)
    return min(moments.items(), key=lambda item: seen[item[1]])


def assert_nothing_held(built: Any) -> None:
    """Both pools are empty, once the copies under way have ended."""
    assert_empty(built)
    assert not built.swaps.copies.busy
    assert built.swaps.copies.host.free_blocks == built.swaps.copies.host.num_blocks
    built.swaps.check(())
    assert not built.swaps.found_tokens


def finish_copies(engine: MirrorEngine) -> None:
    """Step as long as vLLM would, to hear of copies whose requests are gone."""
    for _ in steps(engine):
        engine.step()
    engine.drain()


@WAYS
def test_requests_aborted_at_any_moment_end_once_and_hold_nothing(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script, rng = MirrorEngine(built, copy_steps), stream(50), random.Random(7)
    aborted: dict[str, str] = {}
    for _ in replay(engine, script, 20_000):
        if built.requests and rng.random() < 0.15:
            victim, aborted_at = rarest(built, aborted.values())
            aborted[victim] = aborted_at
            built.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            built.finish_requests(victim, RequestStatus.FINISHED_ABORTED)  # a second abort is no news
    finish_copies(engine)
    finished = {request.id: request.output_tokens for request in script if request.id not in aborted}
    heard = lengths(engine)
    assert {id_: heard[id_] for id_ in finished} == finished
    assert engine.endings().keys() == finished.keys()
    assert built.ledger.ended == {Outcome.FINISHED: len(finished), Outcome.CANCELLED: len(aborted)}
    between_steps = {"leaving", "restoring"} if copy_steps else set()
    assert {"waiting", "swapped", "resident"} | between_steps <= set(aborted.values())
    assert_nothing_held(built)


@EXTREMES
def test_kv_the_host_has_no_room_for_is_dropped_and_counted(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(
        serial=serial, host_blocks=6, asynchronous=asynchronous, prefix_caching=prefix_caching
    )
    engine, script = MirrorEngine(built, copy_steps), stream(30)
    for _ in replay(engine, script, 20_000):
        pass
    finish_copies(engine)
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert built.counters.refused_swaps > 5
    assert min(engine.copied_blocks.values()) > 0
    assert_nothing_held(built)


# ---- copies that come to nothing ----------------------------------------------------------------------

WRONG_TOKEN = 888_888
"""What is sampled where KV is missing; nobody may hear it."""


class FailingMirror(MirrorEngine):
    """Fails some copies in one direction; a step that finds their KV missing samples a wrong token."""

    def __init__(self, built: Any, copy_steps: int, direction: Direction) -> None:
        super().__init__(built, copy_steps)
        self._direction = direction
        self._rng = random.Random(11)
        self._missing: set[int] = set()
        self._spoiled: set[int] = set()
        self._misled: set[str] = set()

    def compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._misled.clear()
        result = super().compute(output)
        for request_id in self._misled:
            sampled = result.sampled_token_ids[result.req_id_to_index[request_id]]
            sampled[:] = [WRONG_TOKEN] * len(sampled)
        return result

    def process_oldest(self) -> None:
        reported = set(self._in_flight[0][1].kv_connector_output.invalid_block_ids)
        super().process_oldest()
        self._missing -= reported

    def _copy(self, orders: CopyOrders) -> KVConnectorOutput:
        copied = super()._copy(orders)
        self._missing |= copied.invalid_block_ids
        return copied

    def _move(
        self,
        order: CopyOrder,
        source: NDArray[np.int64],
        target: NDArray[np.int64],
        sources: tuple[int, ...],
        targets: tuple[int, ...],
        report: CopyReport,
    ) -> None:
        direction = Direction.TO_HOST if source is self.device else Direction.TO_DEVICE
        from_spoiled = direction is Direction.TO_DEVICE and not self._spoiled.isdisjoint(sources)
        if from_spoiled or (direction is self._direction and self._rng.random() < 0.2):
            self.failing.add(order.number)
        super()._move(order, source, target, sources, targets, report)
        if direction is Direction.TO_HOST:
            failed = order.number in self.failing
            self._spoiled = self._spoiled.union(targets) if failed else self._spoiled.difference(targets)

    def _attend(self, request: Request, granted: int) -> None:
        try:
            super()._attend(request, granted)
        except AssertionError:
            held = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
            if self._missing.isdisjoint(held):
                raise
            self._misled.add(request.request_id)


@WAYS
@pytest.mark.parametrize("direction", Direction, ids=["to-host", "to-device"])
def test_a_copy_that_fails_costs_its_request_a_computation_and_nobody_a_token(
    direction: Direction, serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script = FailingMirror(built, copy_steps, direction), stream(20)
    for _ in replay(engine, script, 20_000):
        pass
    finish_copies(engine)
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert not any(WRONG_TOKEN in output.new_token_ids for output in engine.heard)
    assert built.ledger.ended == {Outcome.FINISHED: len(script)}
    assert min(built.counters.failed_copies, built.counters.lost_copies) > 0
    assert built.counters.watchdog_faults == 0
    assert_nothing_held(built)


# ---- what happens to those who are swapped ------------------------------------------------------------


@EXTREMES
@pytest.mark.parametrize("reset_running", [False, True], ids=["idle", "running"])
def test_kv_from_before_a_prefix_cache_reset_is_computed_again(
    reset_running: bool, serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script, lost = MirrorEngine(built, copy_steps), stream(15), 0
    for step, _ in enumerate(replay(engine, script, 20_000)):
        if step % 10 == 9:
            lost += len(built.ledger.swapped)
            built.reset_prefix_cache(reset_running_requests=reset_running)
            assert not built.ledger.swapped
            assert not (reset_running and built.swaps.copies.returned)
    finish_copies(engine)
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert built.counters.lost_copies >= lost > 0
    assert_nothing_held(built)


def test_the_prefix_cache_is_asked_of_all_that_wait_also_after_a_copy_was_lost() -> None:
    built, _ = restless(serial=False, asynchronous=False, prefix_caching=True)
    watch = built.listeners.prefixes = PrefixWatch(
        lambda job, index: False, built.block_size, built.guard.touch
    )
    lost = 0
    for step, _ in enumerate(replay(MirrorEngine(built, 2), stream(15), 20_000)):
        if step % 10 == 9:
            lost += len(built.ledger.swapped)
            built.reset_prefix_cache()
            assert set(built.ledger.waiting.values()) <= set(watch._line)
    assert lost > 0


@EXTREMES
def test_a_policy_that_raises_while_jobs_are_swapped_leaves_them_to_stock_order(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, batching = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script, swapped = MirrorEngine(built, copy_steps), stream(30), 0
    for _ in replay(engine, script, 20_000):
        if not swapped and len(built.ledger.swapped) > 1 and (serial or built.swaps.copies.returned):
            swapped = len(built.ledger.swapped)
            del batching.rng  # the next plan raises
    finish_copies(engine)
    assert swapped > 1
    assert (built.guard.policy.name, built.counters.policy_faults) == ("vllm", 1)
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert_nothing_held(built)


@dataclass
class SwapsAt(Restless):
    """Decode first; every resident is swapped out in some of the steps."""

    at: Collection[int] = ()
    step: int = 0

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        self.step += 1
        self.victims = dict.fromkeys(view.residents, Fate.SWAP) if self.step in self.at else {}
        plan = DecodeFirst.plan(self, view, order, leaving)
        plan.run = [job for job in plan.run if job not in self.victims]
        return plan


def swapping_at(at: Collection[int], **kwargs: Any) -> Any:
    """A scheduler whose policy swaps out everybody in these steps."""
    built, _ = restless(**kwargs)
    batching = SwapsAt(scheduler=built, at=at)
    policy = built.guard.policy
    policy.batching, policy.eviction = batching, TakesVictims(batching, policy.eviction.serial)
    return built


@EXTREMES
def test_blocks_the_device_still_caches_are_not_copied_back(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    """300 tokens of prompt are 9 whole blocks of 32 and the last one: only that is in no prefix cache."""
    built = swapping_at({6, 20}, serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine = MirrorEngine(built, copy_steps)
    script = [ScriptedRequest("long", 0, list(range(300)), 30)]
    for _ in replay(engine, script, 200):
        pass
    finish_copies(engine)
    assert lengths(engine) == {"long": 30}
    assert built.counters.planned_preemptions == 2
    assert engine.copied_blocks["out"] >= 10
    assert engine.copied_blocks["in"] == (2 if prefix_caching else 20)
    assert_nothing_held(built)


@EXTREMES
def test_a_request_that_reads_no_prefix_cache_is_not_swapped(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    """One that wants log probabilities of its prompt: vLLM loads nothing for it, so that it is computed."""
    built, _ = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    engine, script = MirrorEngine(built, copy_steps), stream(15)
    for step, _ in enumerate(replay(engine, script, 20_000)):
        for request in built.requests.values():
            request.skip_reading_prefix_cache = True
        assert not built.ledger.swapped, step
    assert lengths(engine) == {request.id: request.output_tokens for request in script}
    assert built.counters.refused_swaps == 0
    assert_nothing_held(built)


@EXTREMES
def test_a_request_put_back_before_it_ran_is_not_copied_to_the_host_again(
    serial: bool, copy_steps: int, asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(serial=serial, asynchronous=asynchronous, prefix_caching=prefix_caching)
    copied_blocks: list[int] = []
    preempt = built._shaping._preempt

    def noted(job: Job, fate: Fate) -> None:
        put_back, before = job in built.swaps.copies.returned, job.swapped_blocks
        preempt(job, fate)
        if put_back and fate is Fate.SWAP:
            copied_blocks.append(job.swapped_blocks - before)
            assert not built.swaps.copies.uncopied_blocks(job)

    built._shaping._preempt = noted
    engine, script = MirrorEngine(built, copy_steps), stream(30)
    for _ in replay(engine, script, 20_000):
        pass
    assert bool(copied_blocks) != serial  # what a step waits for runs in that step
    assert not any(copied_blocks)


# ---- what vLLM asks the connector ---------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_vllm_neither_drops_output_in_flight_nor_keeps_blocks_back(asynchronous: bool) -> None:
    """With a consumer's role it would do one, and with a delivery that has to happen the other."""
    built, _ = restless(serial=False, asynchronous=asynchronous)
    assert built.vllm_config.kv_transfer_config.kv_role == "kv_producer"
    assert (built.requires_kv_delivery, built.defer_block_free) == (False, False)


def test_the_connector_refuses_sleep_mode_as_vllm_033_asks() -> None:
    built, _ = restless(serial=False, asynchronous=False)
    connector = KVConnectorFactory.get_connector_class(built.vllm_config.kv_transfer_config)
    assert connector.supports_sleep_mode(built.vllm_config.kv_transfer_config) is False


@MODES
def test_a_step_short_of_blocks_waits_only_for_copies_and_admits_nobody(
    asynchronous: bool, prefix_caching: bool
) -> None:
    built, _ = restless(serial=False, asynchronous=asynchronous, prefix_caching=prefix_caching)
    asked, answers = built.swaps.waits_for_blocks, []

    def noted() -> bool:
        coming_free = built.swaps.device.coming_free
        answers.append(asked())
        assert answers[-1] == bool(coming_free)
        assert built._admission_closed or not answers[-1]
        return bool(answers[-1])

    built.swaps.waits_for_blocks = noted
    engine, script = MirrorEngine(built, 3), stream(60)
    for _ in replay(engine, script, 20_000):
        if answers and answers[-1] and built._admission_closed:
            assert not built.swaps.admitted
    assert set(answers) == {False, True}
    assert lengths(engine) == {request.id: request.output_tokens for request in script}


def test_a_step_does_not_wait_for_ever() -> None:
    built = swapping_at({6}, serial=False)
    engine = MirrorEngine(built, 6)
    asked: dict[float, bool] = {}
    for _ in replay(engine, [ScriptedRequest("long", 0, list(range(300)), 30)], 200):
        if built.swaps.device.coming_free and not asked:
            for engine.now_s in (100.0, 100.0 + PATIENCE_S, 100.1 + PATIENCE_S):
                asked[engine.now_s] = built.swaps.waits_for_blocks()
    assert list(asked.values()) == [True, True, False]
    assert not built.swaps.waits_for_blocks()  # nothing is under way any more


@pytest.mark.parametrize(("share", "stalls"), [(0.8, False), (2.0, True)], ids=["patient", "too long"])
def test_waiting_for_the_blocks_that_a_copy_holds_is_no_stall_unless_it_takes_too_long(
    share: float, stalls: bool
) -> None:
    """The whole cache but 10 blocks is on its way to the host for 400 steps, and who waits needs 13."""
    copy_steps = 400

    class Slow(MirrorEngine):
        def step_s(self, output: SchedulerOutput) -> float:
            return share * PATIENCE_S / copy_steps

    built = swapping_at({9}, serial=False, host_blocks=80)
    engine = Slow(built, copy_steps)
    script = [
        ScriptedRequest("long", 0, list(range(1_700)), 30),
        ScriptedRequest("next", 9, list(range(5_000, 5_400)), 30),
    ]
    for _ in replay(engine, script, 3_000):
        pass
    assert built.counters.empty_steps >= copy_steps
    assert bool(built.counters.watchdog_faults) == stalls
    assert lengths(engine) == {"long": 30, "next": 30}
    assert_nothing_held(built)
