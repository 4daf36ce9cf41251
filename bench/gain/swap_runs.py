"""The runs of `bench/gain/swap.py`: policies, loads, a watched engine, and the figures of a run."""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from bench.real_runs import kept_apart
from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate, StepOutcome
from headway.core.record import Record
from headway.engine.demo_model import DemoRecipe, ensure_model
from headway.engine.host_kv import HostKv
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine, SteppedStep
from headway.lab.real_engine import EngineClock, made_requests, turns
from headway.predict.steps.law import fit_step_time
from headway.results import summarize
from headway.statistics import mean, median
from headway.traces import AllAtOnce, LogNormal, TraceRequest, Workload

# ---- the engine: every step noted, copies held to a bandwidth ----------------------------------------

PREFILLS_TIMED = 5
"""Prefills timed for each length; their median counts."""


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """A step with work; `copying` says whether KV was copied during it."""

    shape: BatchShape
    seconds: float
    copying: bool


@dataclass(slots=True)
class Watch:
    """Observations since the watch began. `idle_s` is the time of steps without work while copies were under way."""

    steps: list[WatchedStep] = field(default_factory=list)
    idle_s: float = 0.0
    fates: Counter[Fate] = field(default_factory=Counter)
    records: list[Record] = field(default_factory=list)


class WatchedEngine(SteppedEngine):
    """Notes steps, preemptions and records in `watch`, which may be replaced between two runs."""

    def __init__(self, model: str, vllm_flags: Sequence[str], settings: EngineSettings) -> None:
        self.watch = Watch()
        super().__init__(model, vllm_flags, settings)

    def schedule_with(self, settings: EngineSettings, max_num_seqs: int | None = None) -> None:
        """As in the base class, and listen to the new scheduler."""
        super().schedule_with(settings, max_num_seqs)
        self.hear_records(lambda record: self.watch.records.append(record))
        ledger = self.scheduler.ledger
        apply = ledger.apply

        def applied(outcome: StepOutcome) -> None:
            self.watch.fates.update(outcome.preempted.values())
            apply(outcome)

        ledger.apply = applied  # type: ignore[method-assign]  # heard, not changed

    def step(self) -> SteppedStep | None:
        """One turn of the loop, noted in the watch."""
        swaps, counters = self.scheduler.swaps, self.scheduler.counters
        assert swaps is not None, "the engine has host memory"
        copies = swaps.copies
        copied, copying = _blocks_copied(counters), copies.busy
        started = time.perf_counter()
        step = super().step()
        seconds = time.perf_counter() - started
        copying = copying or copies.busy or _blocks_copied(counters) > copied
        if step is not None:
            self.watch.steps.append(WatchedStep(step.shape, step.seconds, copying))
        elif copying:
            self.watch.idle_s += seconds
        return step

    def serve(self, requests: Sequence[TraceRequest], seed: int, clock: EngineClock) -> float:
        """Serve requests that are all queued at once; return the seconds until the last has ended."""
        for _ in turns(self, made_requests(self, requests, seed, own_stops=False), clock):
            self.step()
        return clock.now_s()

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of a step that computes one prompt of this length alone; the engine must be idle."""
        times = []
        for _ in range(PREFILLS_TIMED):
            self.add(self.make_request(self.fresh_id(), [10] * num_tokens, 1))
            while self.busy:
                step = self.step()
                if step is not None:
                    times.append(step.seconds)
        return median(times)

    def limit_copies(self, bytes_per_s: float | None) -> None:
        """Limit each direction to a bandwidth from now on; None removes the limit. The engine must be idle."""
        self.on_workers(limit_on_worker, bytes_per_s)


def _blocks_copied(counters: Any) -> int:
    copied: int = counters.swapped_out_blocks + counters.swapped_in_blocks
    return copied


def limit_on_worker(worker: Any, bytes_per_s: float | None) -> None:
    """Set the bandwidth of this worker's copies."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    get_kv_transfer_group().worker.copier.bytes_per_s = bytes_per_s


# ---- loads, and policies that differ in the eviction alone -------------------------------------------

RECIPE = DemoRecipe(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
)
"""8 million parameters: a prefill and a swap take milliseconds, a run seconds."""
BLOCK_TOKENS, DEVICE_BLOCKS = 32, 128
"""As many blocks as the paper has, each of them the CPU backend's size."""
HOST_BLOCKS = 384
"""Room for more than the device's whole KV, so that no swap is refused."""
SEATS = 64
LONGEST_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: how many requests, and the laws of their lengths."""

    name: str
    requests: int
    mean_input_tokens: float
    longest_input_tokens: int
    mean_output_tokens: float
    longest_output_tokens: int

    def draw(self, count: int, seed: int) -> list[TraceRequest]:
        """Draw this many requests, all arriving at once."""
        return Workload(
            AllAtOnce(),
            LogNormal.fitted(self.mean_input_tokens, 0.5, self.longest_input_tokens, 4),
            LogNormal.fitted(self.mean_output_tokens, 0.4, self.longest_output_tokens, 8),
            count,
            seed,
            self.longest_output_tokens,
        ).requests()


LOADS = (Load("short", 80, 20.0, 128, 100.0, 200), Load("long", 16, 340.0, 640, 240.0, 384))


@dataclass(frozen=True, slots=True)
class Family:
    """Policies that differ in the eviction alone: a preset, and its twins' evictions; `beside` are other policies
    served for comparison.
    """

    preset: str
    evictions: Mapping[str, str]
    beside: tuple[str, ...] = ()

    def settings(self) -> dict[str, EngineSettings]:
        """Settings of the twins and then the preset, by their names in a cell."""
        host = HostKv(blocks=HOST_BLOCKS)
        suffix = self.preset.removeprefix("adaptivellm")
        twins = {
            f"{twin}{suffix}": EngineSettings(policy=self.preset, eviction=eviction, host_kv=host)
            for twin, eviction in self.evictions.items()
        }
        return {**twins, self.preset: EngineSettings(policy=self.preset, host_kv=host)}

    def others(self) -> dict[str, EngineSettings]:
        """Settings of the policies beside them, by name."""
        host = HostKv(blocks=HOST_BLOCKS)
        return {name: EngineSettings(policy=name, host_kv=host) for name in self.beside}

    def served(self) -> dict[str, EngineSettings]:
        """Settings of all served policies."""
        return {**self.others(), **self.settings()}


SERIAL = Family("adaptivellm", {"recompute": "recompute", "swap": "swap:serial=true"})
"""Steps wait for their copies."""
BESIDE = Family(
    "adaptivellm-plus", {"recompute": "recompute", "swap": "swap:min_residency=4"}, beside=("vllm",)
)
"""Copies go on beside the steps, as today; and today's vLLM, which recomputes."""
FAMILIES = (SERIAL, BESIDE)


@dataclass(frozen=True, slots=True)
class SwapCase:
    """A load at a bandwidth."""

    load: Load
    bandwidth: str
    bytes_per_s: float

    @property
    def name(self) -> str:
        """The name in the report."""
        return f"{self.load.name}/{self.bandwidth}"


@dataclass(frozen=True, slots=True)
class SwapEngine:
    """The engine of every run; `blocks` is the number on the device."""

    blocks: int = DEVICE_BLOCKS

    @contextmanager
    def serving(self) -> Iterator[WatchedEngine]:
        """A running engine without prefix caching."""
        flags = (
            *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(self.blocks + 1)),
            *("--max-num-seqs", str(SEATS), "--max-num-batched-tokens", "2048"),
            *("--max-model-len", str(LONGEST_TOKENS), "--no-enable-prefix-caching", "--enforce-eager"),
        )
        settings = EngineSettings(policy=SERIAL.preset, host_kv=HostKv(blocks=HOST_BLOCKS))
        model = str(ensure_model("swap", RECIPE))
        engine = kept_apart(lambda: WatchedEngine(model, flags, settings))
        try:
            yield engine
        finally:
            engine.close()


# ---- figures of a run --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRun:
    """One policy's requests served once, without those that it learned from."""

    makespan_s: float
    mean_jct_s: float
    p99_jct_s: float
    output_tokens: int
    swaps: int
    recomputes: int
    recomputed_tokens: int
    swap_out_s: float
    swap_in_s: float
    copy_wait_s: float
    idle_s: float
    steps: Sequence[WatchedStep] = field(repr=False)

    @property
    def copy_s(self) -> float:
        """Seconds of copies in both directions."""
        return self.swap_out_s + self.swap_in_s


COUNTED = ("swap_out_s", "swap_in_s", "copy_wait_s")
"""Counters of the engine that a run keeps."""


def run_of(watch: Watch, makespan_s: float, grown: Mapping[str, Any]) -> SwapRun:
    """The run's result, from the watch and the increase of the counters."""
    summary = summarize(watch.records)
    assert summary.mean_jct_s is not None
    assert summary.p99_jct_s is not None
    return SwapRun(
        makespan_s=makespan_s,
        mean_jct_s=summary.mean_jct_s,
        p99_jct_s=summary.p99_jct_s,
        output_tokens=sum(record.output_tokens for record in watch.records),
        swaps=watch.fates[Fate.SWAP],
        recomputes=watch.fates[Fate.RECOMPUTE],
        recomputed_tokens=sum(record.recomputed_tokens for record in watch.records),
        idle_s=watch.idle_s,
        steps=tuple(watch.steps),
        **grown,
    )


StepSeconds = Callable[[BatchShape], float]


def law_of(runs: Sequence[SwapRun]) -> StepSeconds:
    """A law of step seconds by shape, fitted to the steps of these runs in which nothing was copied."""
    rows = [(step.shape, step.seconds) for run in runs for step in run.steps if not step.copying]
    random.Random(0).shuffle(rows)
    return fit_step_time(rows).law.step_s


def at_one_speed_s(run: SwapRun, law: StepSeconds) -> float:
    """The run's duration with every step at the law's time; its waits for copies stay as they were."""
    return fsum(law(step.shape) for step in run.steps) + run.copy_wait_s + run.idle_s


def lengthened(run: SwapRun, law: StepSeconds) -> float | None:
    """By what share steps beside copies were longer than the law predicts for their shape; None without copies."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for step in run.steps:
        ratios[step.copying].append(step.seconds / law(step.shape))
    return median(ratios[True]) / median(ratios[False]) - 1 if all(ratios.values()) else None


def hidden_share(run: SwapRun, law: StepSeconds, *, serial: bool) -> float | None:
    """The share of copy time that no step waited for; None without copies. Noise may take it outside 0 to 1."""
    longer = lengthened(run, law)
    if not run.copy_s or longer is None:
        return None
    if serial:
        return 1 - run.copy_wait_s / run.copy_s
    beside_s = sum(step.seconds for step in run.steps if step.copying) * longer / (1 + longer)
    return 1 - (beside_s + run.idle_s) / run.copy_s


def versus(own: Sequence[float], twins: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Throughput relative to the better twin, from each one's seconds in every round."""
    better = min(twins, key=lambda twin: median(twins[twin]))
    ratios = [theirs / mine for theirs, mine in zip(twins[better], own, strict=True)]
    return {"better": better, "ratio": median(ratios), "spread": [min(ratios), max(ratios)]}


def policy_row(runs: Sequence[SwapRun], law: StepSeconds) -> dict[str, Any]:
    """Means over the rounds of one policy's figures; its makespan is the median."""

    def usual(value: Callable[[SwapRun], float]) -> float:
        return mean(map(value, runs))

    makespan_s = median(run.makespan_s for run in runs)
    return {
        "makespan_s": makespan_s,
        "makespan_at_one_speed_s": median(at_one_speed_s(run, law) for run in runs),
        "output_tps": runs[0].output_tokens / makespan_s,
        "mean_jct_s": usual(lambda run: run.mean_jct_s),
        "p99_jct_s": usual(lambda run: run.p99_jct_s),
        "preemptions": usual(lambda run: run.swaps + run.recomputes),
        "swap_share": share(sum(run.swaps for run in runs), sum(run.recomputes for run in runs)),
        "recomputed_tokens": usual(lambda run: run.recomputed_tokens),
        "copy_s": usual(lambda run: run.copy_s),
        "copy_wait_s": usual(lambda run: run.copy_wait_s),
    }


def share(part: int, rest: int) -> float | None:
    """Part of part and rest together; None if both are 0."""
    return part / (part + rest) if part + rest else None


OTHER_SEED = 10**6
"""Added to the run's seed to draw the requests that do not count."""


def run_once(
    engine: WatchedEngine,
    clock: EngineClock,
    *,
    load: Load,
    settings: EngineSettings,
    seed: int,
    learning_share: float,
    bytes_per_s: float | None,
) -> SwapRun:
    """Serve a load under one policy, after some requests of the same kind from which it learns costs."""
    engine.limit_copies(bytes_per_s)
    engine.schedule_with(settings)
    gc.collect()
    if learning := round(learning_share * load.requests):
        engine.serve(load.draw(learning, seed + OTHER_SEED), seed, clock)
    counters = engine.scheduler.counters
    before = {name: getattr(counters, name) for name in COUNTED}
    engine.watch = watch = Watch()
    makespan_s = engine.serve(load.draw(load.requests, seed), seed, clock)
    if counters.policy_faults or counters.refused_swaps or counters.failed_copies:
        raise RuntimeError(f"the policy or its copies failed: {counters}")
    grown = {name: getattr(counters, name) - before[name] for name in COUNTED}
    return run_of(watch, makespan_s, grown)


@dataclass(frozen=True, slots=True)
class Victim:
    """A load's mean victim under a policy that always recomputes."""

    victim_tokens: int
    prefill_s: float
    break_even_bytes_per_s: float


def victims_of(engine: WatchedEngine, clock: EngineClock, *, loads: Sequence[Load]) -> dict[str, Victim]:
    """Each load's mean victim, by the load's name; measured before all runs."""
    engine.prefill_s(LONGEST_TOKENS // 2)  # the first prefill pays for allocations
    return {load.name: _victim(engine, clock, load) for load in loads}


def _victim(engine: WatchedEngine, clock: EngineClock, load: Load) -> Victim:
    settings = SERIAL.settings()["recompute"]
    run = run_once(engine, clock, load=load, settings=settings, seed=0, learning_share=0.0, bytes_per_s=None)
    tokens = round(run.recomputed_tokens / run.recomputes)
    prefill_s = engine.prefill_s(tokens)
    block_bytes = engine.sizes.kv_bytes_per_token * BLOCK_TOKENS
    return Victim(tokens, prefill_s, break_even_bytes_per_s(tokens, block_bytes, prefill_s))


def break_even_bytes_per_s(num_tokens: int, block_bytes: int, prefill_s: float) -> float:
    """The bandwidth at which copying this many tokens' KV out and back takes as long as computing it again."""
    return 2 * -(-num_tokens // BLOCK_TOKENS) * block_bytes / prefill_s
