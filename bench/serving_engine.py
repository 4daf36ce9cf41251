"""A real engine that serves streams under one policy after another, its clock, and its measured costs."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGCONT, SIGSTOP, Signals
from typing import Any, Literal, Self

from bench.command import say
from headway.core.cost import CostModel
from headway.engine.machine import machine_name, vllm_version
from headway.engine.profiling.profile import Identity, Measurements, Profiler, conclude
from headway.engine.settings import EngineSettings
from headway.engine.step.guard import GuardedPolicy
from headway.engine.vllm.stepped_engine import (
    Hints,
    SteppedEngine,
    core_request,
    core_worker_pids,
    prompt_tokens,
    start_core,
)
from headway.lab.real_engine import PredictionFeed, made_requests
from headway.policies.policy import Policy
from headway.policies.presets import build_policy
from headway.predict.steps.calibration import write_cost_file
from headway.sim.lengths import LengthSource
from headway.traces import TraceRequest

# ---- clocks: the machine's, or an engine's own while several take turns ------------------------------

NAP_S = 0.002
"""How long an idle engine waits before it looks for arrivals again."""
START_MARGIN_S = 0.1
TURN_S = 0.1
"""Of an engine's own time: long beside what it costs to find the caches full of another's weights, short beside what
a machine's speed takes to change.
"""


class WallTime:
    """The machine's: an idle engine sleeps."""

    speed = 1.0

    def __init__(self) -> None:
        self._origin_s = 0.0

    def begin(self) -> None:
        """The stream begins soon."""
        self._origin_s = time.perf_counter() + START_MARGIN_S

    def now_s(self) -> float:
        """Seconds of the stream."""
        return time.perf_counter() - self._origin_s

    def idle(self, until_s: float) -> None:
        """Nobody asks for anything until then."""
        time.sleep(NAP_S)

    def stepped(self) -> None:
        """A step is over."""


class TurnTime:
    """An engine's own: what it has worked, and the times between requests, which it does not wait for.

    Whoever holds the turn works, the others stand still, and no clock but its own goes on. So engines that serve the
    same stream are compared within tenths of a second, whatever the machine's speed does from one second to the next.
    A turn is TURN_S or a step, whichever is longer; `turns` brings each, and is told at its end whether this engine
    wants more. Its worker processes are stopped meanwhile: vLLM's look for work without a rest for a second after the
    last. Used as a context: what is done before and after the stream needs the turn too. While the machine's clock
    goes on by a second this one goes on by `speed`: half of one where the machine has become half as fast.
    """

    def __init__(self, turns: Connection, worker_pids: Sequence[int], speed: float = 1.0) -> None:
        self.speed = speed
        self._turns = turns
        self._worker_pids = worker_pids
        self._origin_s = 0.0
        self._turn_ends_s = 0.0

    def __enter__(self) -> Self:
        """Wait for the first turn."""
        self._turns.recv()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the rest to the others."""
        self._turns.send(False)

    def begin(self) -> None:
        """The stream begins now."""
        self._origin_s = time.perf_counter()
        self._turn_ends_s = TURN_S

    def now_s(self) -> float:
        """Seconds of the stream, the others' turns left out."""
        return (time.perf_counter() - self._origin_s) * self.speed

    def idle(self, until_s: float) -> None:
        """It is then at once."""
        skipped_s = max(0.0, until_s - self.now_s())
        self._origin_s -= skipped_s / self.speed
        self._turn_ends_s += skipped_s

    def stepped(self) -> None:
        """A step is over, and perhaps the turn."""
        now_s = self.now_s()
        if now_s < self._turn_ends_s:
            return
        signal_all(self._worker_pids, SIGSTOP)
        self._turns.send(True)
        self._turns.recv()
        signal_all(self._worker_pids, SIGCONT)
        self._origin_s = time.perf_counter() - now_s / self.speed
        self._turn_ends_s = now_s + TURN_S


EngineTime = WallTime | TurnTime


def signal_all(pids: Iterable[int], signal: Signals) -> None:
    """Send a signal to those of the processes that are left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal)


Mistaken = Callable[[CostModel], CostModel]
"""Makes of what an engine has learned of cost what its policy is told."""
StockPolicy = Literal["fcfs", "priority"]
"""vLLM's own `--scheduling-policy`."""

_ANSWERED = ("stop", "length", "repetition")
"""vLLM's reasons for the end of an answer; the others are those of a request that was given up."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request: its place in the stream, how many tokens came, and when, in seconds of the run.

    `given_up` says why, where the engine ended it before its answer was whole; a first token it may never have had.
    """

    number: int
    output_tokens: int
    arrival_s: float
    first_token_s: float | None
    finished_s: float
    given_up: str = ""

    @property
    def jct_s(self) -> float:
        """From arrival to the last token."""
        return self.finished_s - self.arrival_s


class ServingEngine:
    """vLLM's engine core in this process, scheduled as vLLM chooses (asynchronously, where it does so by default).

    The scheduler is put in anew for every run; model and workers stay. `core` is vLLM's engine core itself;
    `worker_slots` is how many requests it holds at most.
    """

    def __init__(self, model: str, vllm_flags: Sequence[str], settings: EngineSettings) -> None:
        self.core = start_core(model, vllm_flags, settings)
        self.worker_slots = int(self.core.vllm_config.scheduler_config.max_num_seqs)

    @property
    def asynchronous(self) -> bool:
        """Whether steps are scheduled ahead of the last one's tokens."""
        return bool(self.core.vllm_config.scheduler_config.async_scheduling)

    @property
    def tokens_a_step(self) -> int:
        """As the flags say, or as vLLM chooses itself."""
        return int(self.core.vllm_config.scheduler_config.max_num_batched_tokens)

    @property
    def num_blocks(self) -> int:
        """KV blocks that requests can have, without vLLM's null block."""
        return int(self.core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    @property
    def worker_pids(self) -> list[int]:
        """As `core_worker_pids`, of this engine."""
        return core_worker_pids(self.core)

    @property
    def policy(self) -> Policy | None:
        """Headway's policy as it stands; None under vLLM's own scheduler."""
        guard = getattr(self.core.scheduler, "guard", None)
        return None if guard is None else guard.policy

    @property
    def counters(self) -> dict[str, int]:
        """Headway's totals since the scheduler was put in; none under vLLM's own."""
        counters = getattr(self.core.scheduler, "counters", None)
        return {} if counters is None else dict(counters.flat())

    def use(
        self, settings: EngineSettings, max_num_seqs: int | None = None, mistaken: Mistaken | None = None
    ) -> None:
        """Put in a new scheduler with an empty prefix cache; requests that pause have all slots, or so many.

        With `mistaken` its policy is told that of cost, while the engine goes on learning the truth.
        """
        self.core.vllm_config.additional_config = {"headway": asdict(settings)}
        self._schedule_with(max_num_seqs or self.worker_slots)
        if mistaken is not None:
            scheduler = self.core.scheduler
            policy = build_policy(settings.preset(), mistaken(scheduler.cost))
            scheduler.guard = GuardedPolicy(policy, scheduler.ledger, scheduler.counters)

    def use_stock(self, policy: StockPolicy, max_num_seqs: int) -> None:
        """Put in vLLM's own scheduler, with nothing of Headway in it; the engine must be without host memory."""
        config = self.core.vllm_config.scheduler_config
        assert self.core.vllm_config.kv_transfer_config is None, (
            "stock vLLM knows nothing of Headway's copies"
        )
        before = config.scheduler_cls, config.policy
        config.scheduler_cls, config.policy = None, policy
        try:
            self._schedule_with(max_num_seqs)
        finally:
            config.scheduler_cls, config.policy = before

    def _schedule_with(self, max_num_seqs: int) -> None:
        config, old = self.core.vllm_config, self.core.scheduler
        assert not old.has_requests()
        config.scheduler_config.max_num_seqs = max_num_seqs
        self.core.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=self.core.structured_output_manager,
            log_stats=False,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
        )
        config.scheduler_config.max_num_seqs = self.worker_slots

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return int(self.core.vllm_config.model_config.max_model_len)

    def serve(
        self,
        requests: Sequence[TraceRequest],
        seed: int | str,
        *,
        lengths: LengthSource | None = None,
        own_stops: bool = False,
        clock: EngineTime | None = None,
        on_tokens: Callable[[str, int, float], None] = lambda request_id, tokens, now_s: None,
        after_step: Callable[[float], None] = lambda now_s: None,
    ) -> list[Served]:
        """Serve a stream (in order of arrival) in real time, each request added when it is due; all of them end.

        With a `clock` of its own, all times, the scheduler's too, are by that.
        With `own_stops` the model ends its answers itself; `lengths` predicts each as its request is added. Whose
        tokens came, how many and when, `on_tokens` hears; `after_step` hears the time after every step.
        """
        made = deque(made_requests(self, requests, seed, own_stops=own_stops))
        feed = PredictionFeed(lengths, [request for request, _ in made], self.max_model_len)
        tokens: Counter[str] = Counter()
        first_s: dict[str, float] = {}
        finished_s: dict[str, float] = {}
        given_up: dict[str, str] = {}
        clock = clock or WallTime()
        self.core.scheduler.clock = clock.now_s  # vLLM's own has no use for it
        clock.begin()
        while made or self._busy():
            now_s = clock.now_s()
            while made and made[0][0].arrival_s <= now_s:
                request, ready = made.popleft()
                ready.arrival_time = time.time() - (now_s - request.arrival_s)
                feed.arrives(request, ready)
                self.core.add_request(ready)
            if not self._busy():
                clock.idle(made[0][0].arrival_s)
                continue
            outputs, _ = self.core.step_fn()
            now_s = clock.now_s()
            for output in (output for core in (outputs or {}).values() for output in core.outputs):
                if output.new_token_ids:
                    first_s.setdefault(output.request_id, now_s)
                    tokens[output.request_id] += len(output.new_token_ids)
                    on_tokens(output.request_id, len(output.new_token_ids), now_s)
                if output.finish_reason is None:
                    continue
                finished_s[output.request_id] = now_s
                answered = str(output.finish_reason) in _ANSWERED
                feed.ended(output.request_id, tokens[output.request_id], finished=answered)
                if not answered:
                    given_up[output.request_id] = str(output.stop_reason or output.finish_reason)
            after_step(now_s)
            clock.stepped()
        return [
            Served(number, tokens[id_], arrival_s, first_s.get(id_), finished_s[id_], given_up.get(id_, ""))
            for number, (id_, arrival_s) in enumerate((each.id, each.arrival_s) for each in requests)
        ]

    def _busy(self) -> bool:
        return bool(self.core.scheduler.has_requests() or self.core.batch_queue)

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        output_tokens: int,
        hints: Hints | None = None,
        *,
        own_stop: bool = False,
    ) -> Any:
        """As `core_request`, of this engine."""
        return core_request(self.core, request_id, prompt, output_tokens, hints, own_stop=own_stop)

    def token_ids(self, prompt: str) -> list[int]:
        """As `prompt_tokens`, of this engine's model."""
        return prompt_tokens(self.core, prompt)

    def close(self) -> None:
        """Stop the workers and free the device."""
        self.core.shutdown()


# ---- measured costs, for the simulator ---------------------------------------------------------------


def profiled(
    file: Path, model: str, vllm_flags: Sequence[str], settings: EngineSettings, seconds: float
) -> Path:
    """The cost file of an engine, measured for about so long unless it is there."""
    if not file.exists():
        say("profiling")
        engine = SteppedEngine(model, vllm_flags, settings)
        try:
            measured = Measurements(engine.sizes)
            profiler = Profiler(engine, measured, seconds=seconds)
            profiler.prepare(lambda share, what: None)
            profile_for(engine, profiler, seconds)
            conclude_profile(measured, model, file)
        finally:
            engine.close()
    return file


def profile_for(engine: SteppedEngine, profiler: Profiler, seconds: float) -> None:
    """Go on with the profile for about so long."""
    engine.schedule_with(EngineSettings())
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        profiler.play_next()


def conclude_profile(measured: Measurements, model: str, file: Path) -> None:
    """Write what was measured as a cost file. Raises ConfigError if it is too little."""
    identity = Identity(
        machine=machine_name(), model=model, vllm_version=vllm_version(), measured_on=date.today().isoformat()
    )
    result = conclude(measured, identity)
    write_cost_file(file, result.cost)
    say(json.dumps(result.to_dict()))
